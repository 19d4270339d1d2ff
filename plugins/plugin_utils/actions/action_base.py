# SPDX-License-Identifier: Apache-2.0
"""Provide the base of action plugins that run on the control node, open no connections, and report errors as text."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible.errors import AnsibleValueOmittedError
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars

from . import bytecode  # before all others  # noqa: F401  # pylint: disable=unused-import

# isort: split
from ...module_utils.common.errors import FleetError, Problem
from ..base.text import printable
from ..planning.inventory.public_variables import public_variables
from ..planning.inventory.unknown_variables import unknown_extra_variables


class ControllerAction(ActionBase):
    """An action plugin that works with variables of hosts.

    A subclass sets `options` (an argument_spec) and defines work().
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    options: ClassVar[dict[str, dict[str, Any]]] = {}
    expected: ClassVar[tuple[type[Exception], ...]] = (FleetError,)
    """Exceptions of work() whose messages are for users; any other is a bug, and Ansible reports it."""

    @classmethod
    def finalize_task_arg(cls, name: str, value: Any, templar: Any, context: Any) -> Any:
        """Leave out an option whose variable is not set, without evaluating a template for it: 0.6 ms each.

        If Ansible drops this method, all options are evaluated again.
        """
        given = templar.available_variables
        if isinstance(value, Mapping):
            value = {key: item for key, item in value.items() if not _unset(item, given)}
        elif _unset(value, given):
            raise AnsibleValueOmittedError
        return super().finalize_task_arg(name, value, templar, context)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of work(), or a failure with the message of an expected exception."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        # A copy: Ansible fills in the suboptions of a default, which the next call in this process would have, too.
        _unused, options = self.validate_argument_spec(argument_spec=copy.deepcopy(self.options))
        facts = task_vars or {}
        # Former names that are general words are not refused: the operator's own playbook may give them a meaning.
        wrong = unknown_extra_variables(map(str, load_extra_vars(self._loader)), public_variables())
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
            return {**result, "failed": True, "changed": False, "msg": self.error_message(error, facts)}

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Do the work; `facts` are the task's variables."""
        raise NotImplementedError

    def show(self, text: str) -> None:
        """Print a text, which may contain output of hosts."""
        self._display.display(printable(text))

    def error_message(self, error: Exception, facts: Mapping[str, Any]) -> str:
        """Return the message of an expected exception."""
        del facts
        return str(error)


_OPTIONAL = re.compile(r"{{ (\w+) \| default\(omit\) }}")


def _unset(value: Any, given: Mapping[str, Any]) -> bool:
    """Return whether a value is a template of nothing but an optional variable that is not set."""
    found = _OPTIONAL.fullmatch(value) if isinstance(value, str) else None
    return bool(found and found[1] not in given)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a file completely or not at all. Raise FleetError."""
    text = json.dumps(data, indent=2, sort_keys=True) + "\n"
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # a pipe or /dev/stdout stays what it is
            return
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        what = f"{path} cannot be written: {error.strerror}."
        raise FleetError([Problem((), what, "Create its directory, or choose another path.")]) from None
