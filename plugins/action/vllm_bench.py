# SPDX-License-Identifier: Apache-2.0
"""Run the module vllm_bench on the node, with command lines for the releases that measure.

Documentation: plugins/modules/vllm_bench.py (`ansible-doc -t module instinct.fleet.vllm_bench`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import (
    FleetError,
    Problem,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils import bytecode  # before all others  # noqa: F401  # pylint: disable=unused-import
from ansible_collections.instinct.fleet.plugins.plugin_utils.catalog.load import CATALOG, Knowledge
from ansible_collections.instinct.fleet.plugins.plugin_utils.instances.benchmark import bench_command
from ansible_collections.instinct.fleet.plugins.plugin_utils.instances.cells import describe_cell
from ansible_collections.instinct.fleet.plugins.plugin_utils.program_action import ProgramAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.suites.compose import suite_commands
from ansible_collections.instinct.fleet.plugins.plugin_utils.text import printable

_OF_JOBS = ("args", "suite", "overrides", "repeat", "most", "warmups", "half_width")
"""The module's options that become jobs here."""
_TIMEOUT = 7200


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
        if given.get("targets"):
            given["targets"] = [self._target(item, facts) for item in given["targets"]]
        jobs, warnings = _jobs(given)
        for text in warnings:
            self._display.warning(printable(text))
        kept = {name: value for name, value in given.items() if name not in _OF_JOBS}
        most = max((len(job["cells"]) for job in jobs.values()), default=1)
        return {**kept, "jobs": jobs, "timeout": most * int(_number(given, "timeout", _TIMEOUT))}

    def _target(self, target: Mapping[str, Any], facts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a target, and for one at a load balancer what its clients need."""
        endpoint = target.get("endpoint")
        if not endpoint:
            return target
        # Here, as other measurements would wait for what they import.
        from ansible_collections.instinct.fleet.plugins.plugin_utils.endpoint.assets import VaultReader
        from ansible_collections.instinct.fleet.plugins.plugin_utils.endpoint.client_secrets import (
            client_secrets,
        )

        name = str(endpoint["balancer"])
        planned = facts["fleet_plan_result"]["plan"]["balancers"][name]
        declared = (facts["hostvars"].raw_get(name) or {}).get("load_balancer_api_keys") or {}
        found = client_secrets(name, planned, declared, VaultReader(self._loader))
        return {**target, "endpoint": {**endpoint, **found}}


def _jobs(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the job of each target, and warnings. All have the same seeds, and the same order of the same cells."""
    knowledge, kind, targets = Knowledge(CATALOG), given.get("kind") or "serve", given.get("targets") or ()
    if given.get("suite") and targets:
        overrides = {"seed": int(time.time()), **(given.get("overrides") or {}), "kinds": [kind]}
        found = suite_commands(knowledge, str(given["suite"]), targets, overrides)
        return {name: {**job, "suite": found.suite} for name, job in found.cells.items()}, list(
            found.warnings
        )
    args = dict(given.get("args") or {})
    # Each run has another seed, so that no prompt is in the prefix cache.
    seed = args.pop("seed", None)
    repeat = int(_number(given, "repeat", 1))
    numbers = {
        "suite": None,
        "blocks": repeat,
        "most": max(repeat, int(_number(given, "most", 10)))
        if repeat > 2
        else repeat,  # fewer have no interval
        "half_width": _number(given, "half_width", 0.02),
        "warmups": int(_number(given, "warmups", 0)),
        "seed": int(time.time()) if seed is None else int(_number({"args.seed": seed}, "args.seed", 0)),
    }
    jobs, warnings = {}, []
    for target in targets:
        made = bench_command(knowledge, kind, target, args)
        warnings += [f"{target['name']}: {text}" for text in made.warnings]
        cell = describe_cell(kind, made.argv)
        jobs[target["name"]] = {
            "cells": [cell],
            **numbers,
            "order": [[cell["cell"]]] * int(numbers["most"] or 1),
        }
    return jobs, warnings


def _number(given: Mapping[str, Any], name: str, default: float) -> float:
    """Return an option as a number. Raise FleetError for anything else."""
    value = given.get(name, default)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise FleetError([Problem((name,), f"{value!r} is not a number.")]) from None
