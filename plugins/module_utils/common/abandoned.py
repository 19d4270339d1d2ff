# SPDX-License-Identifier: Apache-2.0
"""End a module whose controller is gone: nobody would get its result, and the next run waits for it (run_lock.py)."""

from __future__ import annotations

import select

from .module_main import NodeError


class ControllerGone(NodeError):
    """The control node is gone, so the result cannot be delivered. The next run continues from here."""


def leave_if_abandoned() -> None:
    """Raise ControllerGone if the reader of this process's output is gone."""
    poll = select.poll()
    poll.register(1, 0)  # errors and hang-ups are always reported
    if any(event & (select.POLLERR | select.POLLHUP) for _descriptor, event in poll.poll(0)):
        raise ControllerGone("The control node is gone. Run again: the work continues from here.")
