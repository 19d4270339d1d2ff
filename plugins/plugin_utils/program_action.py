# SPDX-License-Identifier: Apache-2.0
"""Provide the base of action plugins for modules that install a program on the node."""

from __future__ import annotations

from typing import Any

from . import bytecode  # before all others  # noqa: F401  # pylint: disable=unused-import
from .bundle import GIVEN
from .call_limit import CallTimeout, call_limit, time_limit
from .leased_action import LeasedAction


class ProgramAction(LeasedAction):
    """An action plugin that passes a program to a module on the node, as its parameter `program`."""

    def call(self, args: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        """Return the module's own result, or a failure where the node does not end the call."""
        name = str(self._task.action).rpartition(".")[2]
        seconds = call_limit(name, args)
        try:
            with time_limit(seconds):
                return super().call({**args, "program": GIVEN[name]()}, facts)
        except CallTimeout:
            return {
                "failed": True,
                "changed": False,
                "timedout": {"period": seconds},
                "msg": f"{name} did not end within {seconds} s: something on this host may hang, such as the GPU "
                "driver or a file system. See dmesg there; once the host answers, run the same command again.",
            }
