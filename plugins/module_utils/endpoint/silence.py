# SPDX-License-Identifier: Apache-2.0
"""Judge by its checks for how long an instance has answered nothing. Pure: the caller reads the clock."""

from __future__ import annotations

GAP_SECONDS = 5.0
"""How late a check may be, or how much longer than its time-outs it may take."""


class Silence:
    """The checks of one instance, one after the other. Times are seconds of a clock that only goes forward.

    A check that comes late says nothing about the instance: this program itself was stopped, as in a virtual machine
    that is paused, or got no CPU time. An answer may have arrived meanwhile without being read.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._ended: float | None = None

    def note(self, answered: bool, begun: float, ended: float, allowed: float) -> float:
        """Note a check; return the seconds since the first of the last checks that had no answer; 0 after an answer.

        allowed: seconds that the check's time-outs allow for it.
        """
        last, self._ended = self._ended, ended
        late = ended > begun + allowed + GAP_SECONDS or (last is not None and begun > last + GAP_SECONDS)
        if answered or late:
            self._since = None
            return 0.0
        if self._since is None:
            self._since = begun
        return ended - self._since
