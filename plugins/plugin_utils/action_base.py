# SPDX-License-Identifier: Apache-2.0
"""What the action plugins have in common: they run on the control node only, connect to nothing, and fail in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars, merge_hash

from .catalog.load import read_yaml
from .desired import host_settings, unknown_variables
from .rollout import plan

ROOT = Path(__file__).resolve().parents[2]


class ControllerAction(ActionBase):
    """A plugin that works with variables of hosts. It sets `options` (an argument_spec) and defines work()."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    options: ClassVar[dict[str, dict[str, Any]]] = {}
    expected: ClassVar[tuple[type[Exception], ...]] = ()
    """What work() raises for its user to read; anything else is a bug, and Ansible reports it."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The task's result: what work() returns, or a failure with what told() makes of an expected exception."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(argument_spec=self.options)
        facts = task_vars or {}
        wrong = unknown_variables.mistaken(map(str, load_extra_vars(self._loader)), known_variables())
        if wrong:
            return {
                **result,
                "failed": True,
                "changed": False,
                "msg": "\n".join(["Nothing was done.", *wrong]),
            }
        try:
            return {**result, **self.work(options, facts)}
        except self.expected as error:
            return {**result, "failed": True, "changed": False, "msg": self.told(error, facts)}

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Do it; `facts` are the task's variables."""
        raise NotImplementedError

    def told(self, error: Exception, facts: Mapping[str, Any]) -> str:
        """The message of an expected exception."""
        del facts
        return str(error)


class ProgramAction(ActionBase):
    """A module that runs on the node and is given a program to put there, as its parameter `program`."""

    TRANSFERS_FILES = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The module's own result."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = {**self.arguments(), "program": self.program()}
        own = self._execute_module(module_args=args, task_vars=task_vars, wrap_async=self._task.async_val)
        merged: dict[str, Any] = merge_hash(result, own)
        return merged

    def arguments(self) -> dict[str, Any]:
        """The module's other parameters."""
        return dict(self._task.args)

    def program(self) -> str | dict[str, str]:
        """What the node is given."""
        raise NotImplementedError


def known_variables() -> set[str]:
    """Variables of the planner, the roles and the playbooks."""
    found = {*host_settings.VARIABLES, *plan.VARIABLES, *unknown_variables.PLAYBOOKS}
    found |= {"hf_model_token", "hf_model_token_file"}
    for path in sorted((ROOT / "roles").glob("*/meta/argument_specs.yml")):
        found.update(name for part in read_yaml(path)["argument_specs"].values() for name in part["options"])
    return found
