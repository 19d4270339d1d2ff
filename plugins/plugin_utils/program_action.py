# SPDX-License-Identifier: Apache-2.0
"""Provide the base of action plugins for modules that install a program on the node.

It is separate from action_base.py because each task of each host imports it anew, and it does not need the planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.vars import merge_hash

from . import bytecode  # before all others  # noqa: F401  # pylint: disable=unused-import
from .bundle import GIVEN
from .call_limit import CallTimeout, call_limit, time_limit


class ProgramAction(ActionBase):
    """An action plugin that passes a program to a module on the node, as its parameter `program`."""

    TRANSFERS_FILES = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's own result, or a failure where the node does not end the call."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        name = str(self._task.action).rpartition(".")[2]
        args = {**self.arguments(task_vars or {}), "program": GIVEN[name]()}
        seconds = call_limit(name, args)
        try:
            with time_limit(seconds):
                own = self._execute_module(
                    module_args=args, task_vars=task_vars, wrap_async=self._task.async_val
                )
        except CallTimeout:
            return {
                **result,
                "failed": True,
                "changed": False,
                "timedout": {"period": seconds},
                "msg": f"{name} did not end within {seconds} s: something on this host may hang, such as the GPU "
                "driver or a file system. See dmesg there; once the host answers, run the same command again.",
            }
        merged: dict[str, Any] = merge_hash(result, own)
        return merged

    def arguments(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the module's other parameters; `facts` are the task's variables."""
        del facts
        return dict(self._task.args)
