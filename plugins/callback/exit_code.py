# SPDX-License-Identifier: Apache-2.0
"""Callback plugin: the exit code of a run that did everything except what a failed task with an exit code of its own
names.
"""

from __future__ import annotations

DOCUMENTATION = """
name: exit_code
type: aggregate
short_description: End with the exit code that the only failed task names
description:
  - ansible-playbook ends with 2 if a host failed, whatever the failure. If all tasks that failed have the variable
    C(exit_code), and every host was reached, this plugin ends the run with its value instead.
  - A run of site.yml, deploy.yml or upgrade.yml that left out an edit of a held deployment, and did everything else,
    then ends with 10.
  - Enable it as the last of C(callbacks_enabled), because callbacks after it do not get the event of the recap.
requirements:
  - enabled in the configuration, as the ansible.cfg of the collection's repository has it
"""

from typing import Any

from ansible.plugins.callback import CallbackBase

VARIABLE = "exit_code"


class CallbackModule(CallbackBase):
    """The exit code of a run."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "exit_code"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.codes: list[int] = []

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Keep the code of a failed task, if it has one."""
        code = result.task.vars.get(VARIABLE)
        if code is not None and not ignore_errors:
            self.codes.append(int(code))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """End the run with the code that explains all failures, after the recap. Ansible still cleans up."""
        if self.codes and sum(stats.failures.values()) == len(self.codes) and not any(stats.dark.values()):
            raise SystemExit(self.codes[-1])
