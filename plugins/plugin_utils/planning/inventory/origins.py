# SPDX-License-Identifier: Apache-2.0
"""Say where Ansible read a value: file and line, which its data carries as tags."""

from __future__ import annotations

import os
from typing import Any


def origin_tag(*values: Any) -> Any:
    """Return the tag of the first value that has one; None without any."""
    # Internal to Ansible, but it saves the operator a search through group_vars, and nothing depends on it.
    try:
        from ansible._internal._datatag._tags import Origin
    except ImportError:
        return None
    return next((tag for tag in map(Origin.get_tag, values) if tag), None)


def place_of(tag: Any) -> str:
    """Return file:line of a tag, or what it says instead; "" of none."""
    path, line = getattr(tag, "path", None), getattr(tag, "line_num", None)
    if not path:
        return str(getattr(tag, "description", None) or "")
    near = os.path.relpath(path)
    near = path if near.startswith("..") else near
    return f"{near}:{line}" if line else near
