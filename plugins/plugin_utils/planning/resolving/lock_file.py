# SPDX-License-Identifier: Apache-2.0
"""Read the lock file next to the inventory, and write it without losing what another run has pinned meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ....module_utils.common.errors import FleetError, Problem
from ..pins.lockfile import Lock, parse_lock


def read_lock(path: Path) -> Lock:
    """Return the pins of a lock file; none when there is no file. Raises FleetError for a damaged one."""
    try:
        return parse_lock(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Lock()
    except (OSError, ValueError) as error:
        what = f"{path} cannot be used: {error}."
        raise FleetError([Problem((), what, "Restore it, or remove it to pin everything again.")]) from None


def update_lock(
    path: Path, kept: Lock, lock: Lock, refresh: bool, write: Callable[[Path, Mapping[str, Any]], None]
) -> Lock:
    """Write the pins in which `lock` differs from `kept`, what this run read, and return all pins as written.

    Another run of this control node may have written in the meantime: its pins stay, and this run plans with them.
    Raise FleetError for a file that cannot be used.
    """
    with _locked(path.parent):
        merged = read_lock(path).rebased(kept, lock, refresh)
        write(path, merged.to_json())
    return merged


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let one run at a time write there; the lock is on the directory, so that no further file is left."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        what = f"{directory} cannot be opened: {error.strerror}."
        raise FleetError([Problem((), what, "Create it, or choose another lock_file.")]) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
