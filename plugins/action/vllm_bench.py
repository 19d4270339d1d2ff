# SPDX-License-Identifier: Apache-2.0
"""Run the module vllm_bench on the node, with command lines for the releases that measure.

Documentation: plugins/modules/vllm_bench.py (`ansible-doc -t module instinct.fleet.vllm_bench`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils import bytecode  # before all others  # noqa: F401  # pylint: disable=unused-import
from ansible_collections.instinct.fleet.plugins.plugin_utils.catalog.load import CATALOG, Knowledge
from ansible_collections.instinct.fleet.plugins.plugin_utils.instances.benchmark import bench_command
from ansible_collections.instinct.fleet.plugins.plugin_utils.program_action import ProgramAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.text import printable


class ActionModule(ProgramAction):
    """vllm_bench."""

    changes = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The module's own result, or why an instance cannot be measured so."""
        try:
            return super().run(tmp, task_vars)
        except FleetError as error:
            return {"failed": True, "changed": False, "msg": str(error)}

    def arguments(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The task's, with command lines in place of what they are composed of. Raises FleetError."""
        given = super().arguments(facts)
        args = dict(given.pop("args", None) or {})
        if (str(given.get("repeat", 1)), str(given.get("warmups", 0))) != ("1", "0"):
            # Each run has another one, so that no prompt is in the prefix cache.
            seed = args.pop("seed", None)
            given["seed"] = int(time.time()) if seed is None else seed
        knowledge = Knowledge(CATALOG)
        commands: dict[str, list[str]] = {}
        for target in given.get("targets") or ():
            made = bench_command(knowledge, given.get("kind", "serve"), target, args)
            commands[target["name"]] = list(made.argv)
            for text in made.warnings:
                self._display.warning(printable(f"{target['name']}: {text}"))
        return {**given, "commands": commands}
