# SPDX-License-Identifier: Apache-2.0
"""Which run changes this node, or did last."""

from __future__ import annotations

import os

from ..leases.lease_file import LEASE, at_work, now, read_lease, seconds_left
from .source import ABSENT, Source

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any


def read_run(source: Source) -> dict[str, Any] | None:
    """Return the lease of the run that changes this node or did last, and how long it lasts; None without one."""
    try:
        file = os.open(source.root + LEASE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in ABSENT:
            source.problem(LEASE, error)
        return None
    try:
        found = read_lease(file)
        if not found:
            return None
        return {
            **{key: str(found[key]) for key in ("run", "who", "command", "started", "tag")},
            "at_work": at_work(file, found["run"]),
            "left": round(seconds_left(found, now()), 1),
        }
    finally:
        os.close(file)
