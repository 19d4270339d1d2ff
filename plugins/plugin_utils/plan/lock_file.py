# SPDX-License-Identifier: Apache-2.0
"""The lock file beside the inventory, read."""

from __future__ import annotations

import json
from pathlib import Path

from ...module_utils.common.errors import FleetError, Problem
from ..desired.lockfile import Lock, parse_lock


def read_lock(path: Path) -> Lock:
    """Return the pins of a lock file; none when there is no file. Raises FleetError for a damaged one."""
    try:
        return parse_lock(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Lock()
    except (OSError, ValueError) as error:
        what = f"{path} cannot be used: {error}."
        raise FleetError([Problem((), what, "Restore it, or remove it to pin everything again.")]) from None
