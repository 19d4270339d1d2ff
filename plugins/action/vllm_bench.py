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
from ansible_collections.instinct.fleet.plugins.plugin_utils.instances.cells import describe_cell
from ansible_collections.instinct.fleet.plugins.plugin_utils.program_action import ProgramAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.text import printable

_OF_JOBS = {"repeat": 1, "most": 10, "warmups": 0, "half_width": 0.02}
"""The module's options that are part of a job, and their defaults."""


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
        """The task's, with jobs in place of what they are composed of. Raises FleetError."""
        given = super().arguments(facts)
        jobs, warnings = _jobs(given)
        for text in warnings:
            self._display.warning(printable(text))
        return {
            **{name: value for name, value in given.items() if name not in (*_OF_JOBS, "args")},
            "jobs": jobs,
        }


def _jobs(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the job of each target, and warnings. All have the same seeds and the same order."""
    knowledge, kind, args = Knowledge(CATALOG), given.get("kind") or "serve", dict(given.get("args") or {})
    # Each run has another seed, so that no prompt is in the prefix cache.
    seed = args.pop("seed", None)
    numbers = {name: given.get(name, default) for name, default in _OF_JOBS.items()}
    repeat = int(numbers["repeat"])
    shared = {
        "blocks": repeat,
        "most": max(repeat, int(numbers["most"])) if repeat > 2 else repeat,  # fewer runs have no interval
        "half_width": float(numbers["half_width"]),
        "warmups": int(numbers["warmups"]),
        "seed": int(time.time()) if seed is None else int(seed),
    }
    jobs, warnings = {}, []
    for target in given.get("targets") or ():
        made = bench_command(knowledge, kind, target, args)
        warnings += [f"{target['name']}: {text}" for text in made.warnings]
        cell = describe_cell(kind, made.argv)
        jobs[target["name"]] = {"cells": [cell], **shared, "order": [[cell["cell"]]] * shared["most"]}
    return jobs, warnings
