# SPDX-License-Identifier: Apache-2.0
"""Provide the base of action plugins for modules whose work on the node may take long, or hang."""

from __future__ import annotations

from typing import Any

from . import bytecode  # before all others  # noqa: F401  # pylint: disable=unused-import
from .call_limit import CallTimeout, call_limit, time_limit
from .leased_action import LeasedAction


class TimedAction(LeasedAction):
    """An action plugin that waits for its module as long as that may take, but no longer."""

    def call(self, args: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        """Return the module's own result, or a failure where the node does not end the call."""
        seconds = call_limit(self.module, args)
        try:
            with time_limit(seconds):
                return super().call(args, facts)
        except CallTimeout:
            return {
                "failed": True,
                "changed": False,
                "timedout": {"period": seconds},
                "msg": f"{self.module} did not end within {seconds} s: something on this host may hang, such as the "
                "GPU driver or a file system. See dmesg on the host; once it answers, run the same command again.",
            }
