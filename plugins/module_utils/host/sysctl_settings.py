# SPDX-License-Identifier: Apache-2.0
"""The lines of a node's files that set a sysctl, each with the file that its path leads to."""

from __future__ import annotations

import os

from ..observe.source import Source
from ..observe.sysctl import Setting
from ..observe.sysctl_files import sysctl_settings


def resolved_settings(source: Source, key: str) -> list[Setting]:
    """Return every line that sets `key`, in the order in which a boot applies them."""
    return [
        Setting(path, _resolved(source, path), line, value)
        for path, line, value in sysctl_settings(source, key)
    ]


def _resolved(source: Source, path: str) -> str:
    """Return a path of the node with its links followed."""
    return "/" + os.path.relpath(os.path.realpath(source.root + path), os.path.realpath(source.root or "/"))
