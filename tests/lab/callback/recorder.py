# SPDX-License-Identifier: Apache-2.0
"""Callback plugin of the lab tests: one JSON line per task result, into the file named by FLEET_RECORD.

And the name of each task when it begins, into the one named by FLEET_STARTED: on the terminal it comes with the first
result.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: recorder
type: aggregate
short_description: write task results as JSON lines
description: Used by the lab tests to see which modules ran where, and what they did.
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "recorder"
    CALLBACK_NEEDS_ENABLED = True

    def _write(self, status: str, result: Any) -> None:
        path = os.environ.get("FLEET_RECORD")
        if not path:
            return
        record = {
            "status": status,
            "host": result.host.get_name(),
            "task": result.task.get_name(),
            "module": result.task.action.removeprefix("instinct.fleet."),
            "result": result.result,
            "at": time.time(),  # when it ended, in seconds since 1970
        }
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(record, default=str) + "\n")

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        if path := os.environ.get("FLEET_STARTED"):
            with open(path, "a", encoding="utf-8") as stream:
                stream.write(f"{task.get_name().rpartition(' : ')[2]}\n")

    def v2_runner_on_ok(self, result: Any) -> None:
        self._write("ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._write("failed", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._write("unreachable", result)
