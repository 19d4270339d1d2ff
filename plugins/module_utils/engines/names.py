# SPDX-License-Identifier: Apache-2.0
"""Names of deployments and instances, which become parts of paths and container names."""

from __future__ import annotations

import re

from ..common.module_main import NodeError

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


def check_name(name: str) -> str:
    """Return an instance's name if it is safe in paths. Raise NodeError if not."""
    if not NAME.fullmatch(name):
        raise NodeError(f"remove: {name!r} is not the name of an instance.")
    return name
