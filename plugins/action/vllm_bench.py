# SPDX-License-Identifier: Apache-2.0
"""Run the module vllm_bench on the node, with command lines for the releases that measure.

Documentation: plugins/modules/vllm_bench.py (`ansible-doc -t module instinct.fleet.vllm_bench`).
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import (
    FleetError,
    Problem,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions import bytecode  # before all others  # noqa: F401  # pylint: disable=unused-import
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.call_limit import CallTimeout, time_limit
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.program_action import ProgramAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.text import printable
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.files import CATALOG
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import Knowledge
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.unfinished_runs import (
    ProbeJournal,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.compose import suite_commands
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.datasets import (
    DatasetFile,
    with_dataset,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.search import InstanceSearch
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.suite import PRECISE
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.benchmark import bench_command
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.cells import describe_cell

_OF_JOBS = ("args", "suite", "overrides", "repeat", "most", "warmups", "half_width", "results_dir")
"""The module's options that become jobs here, or are used here only."""
_OF_A_CALL = ("benchmarks", "failed", "msg", "warnings")
"""Keys of the module's result that are about one call: in a search, about one probe."""
_TIMEOUT = 7200
_COPY_SECONDS = 1800


class ActionModule(ProgramAction):
    """vllm_bench."""

    TRANSFERS_FILES = True
    dataset: DatasetFile | None = None
    """The file of the data set that the clients read."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's own result, or why an instance cannot be measured like that."""
        try:
            return super().run(tmp, task_vars)
        except FleetError as error:
            return {"failed": True, "changed": False, "msg": str(error)}

    def arguments(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the task's arguments, with jobs in place of what they are composed of. Raise FleetError."""
        given = super().arguments(facts)
        if given.get("targets"):
            given["targets"] = [self._target(item, facts) for item in given["targets"]]
        name = "overrides" if given.get("suite") else "args"
        given[name], self.dataset = with_dataset(given.get(name) or {}, name)
        jobs, self._searches, warnings = _jobs(given)
        for text in warnings:
            self._display.warning(printable(text))
        kept = {name: value for name, value in given.items() if name not in _OF_JOBS}
        results_dir = Path(str(given.get("results_dir") or "results")).expanduser().absolute()
        self._journal = ProbeJournal(results_dir, str(given.get("run") or ""), self._host(dict(facts)))
        most = max((len(job["cells"]) for job in jobs.values()), default=1)
        return {**kept, "jobs": self._bound(jobs), "timeout": most * int(_number(given, "timeout", _TIMEOUT))}

    def call(self, args: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        """Return the module's own result, of a search that of all its probes; or why the data set was not copied."""
        if not (self.dataset or self._searches) or self._task.check_mode:
            return super().call(args, facts)
        failed = self._copied(self.dataset, facts) if self.dataset else None
        if failed or not self._searches:
            return failed or super().call(args, facts)
        answer: dict[str, Any] = {"changed": False, "actions": []}
        restored = (self._restore(search, str(args.get("run"))) for search in self._searches.values())
        warnings = [text for text in restored if text]
        while jobs := {name: job for name, search in self._searches.items() if (job := search.next_job())}:
            targets = [target for target in args["targets"] if target["name"] in jobs]
            answer = super().call({**args, "targets": targets, "jobs": self._bound(jobs)}, facts)
            warnings += answer.get("warnings") or ()
            for entry in answer.get("benchmarks") or ():
                search = self._searches[entry["instance"]]
                search.add(entry)
                if not search.failure:
                    self._journal.add(search.work, search.entries[-1])
                self._display.v(f"{self._host(facts)}: {entry['instance']}: measuring {entry['cell']}")
            if not answer.get("benchmarks"):
                break
        return self._found(answer, warnings)

    def _restore(self, search: InstanceSearch, run: str) -> str:
        """Take the probes of an interrupted call. Return a text that says how many; "" for none."""
        count = 0 if search.entries else search.restore(self._journal.entries(search.work))
        probes = "1 probe" if count == 1 else f"{count} probes"
        return f"{search.target['name']}: {probes} of {run} kept from an interrupted call" if count else ""

    def _found(self, answer: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
        """Return the result of all searches; `answer` is that of the last call, without entries if it failed itself."""
        searches = self._searches.values()
        found = {
            **{key: value for key, value in answer.items() if key not in _OF_A_CALL},
            "benchmarks": [entry for search in searches for entry in search.rows()],
            "searches": [result for search in searches for result in search.results()],
            "warnings": warnings,
        }
        failures = [f"{name}: {search.failure}" for name, search in self._searches.items() if search.failure]
        if answer.get("failed") and not answer.get("benchmarks"):
            return {
                **found,
                "failed": True,
                "msg": str(answer.get("msg") or "the call failed without a message"),
            }
        if failures:
            message = f"{len(failures)} of {len(self._searches)} searches failed. {' || '.join(failures)}"
            return {**found, "failed": True, "msg": message}
        return found

    def _bound(self, jobs: Mapping[str, Any]) -> dict[str, Any]:
        """Return jobs whose clients see the file of the data set."""
        binds = {"binds": [self.dataset.bind]} if self.dataset else {}
        return {target: {**job, **binds} for target, job in jobs.items()}

    def _copied(self, dataset: DatasetFile, facts: dict[str, Any]) -> dict[str, Any] | None:
        """Copy a file to the node unless it is there. Return a failure; None if it is there now."""
        task = self._task.copy()
        # The slash lets the module make the directory. Data may be the users' own texts, and the client runs as root.
        task.args = {
            "src": str(dataset.path),
            "dest": f"{dataset.directory}/",
            "owner": "root",
            "mode": "0600",
            "directory_mode": "0700",
        }
        copy = self._shared_loader_obj.action_loader.get(
            "ansible.legacy.copy", task=task, connection=self._connection, play_context=self._play_context,
            loader=self._loader, templar=self._templar, shared_loader_obj=self._shared_loader_obj,
        )  # fmt: skip
        try:
            with time_limit(_COPY_SECONDS):
                found = copy.run(task_vars=facts)
        except CallTimeout:
            found = {"failed": True, "msg": f"it took more than {_COPY_SECONDS} s."}
        if not found.get("failed"):
            return None
        what = (
            f"{shlex.quote(str(dataset.path))} could not be copied to {dataset.directory}: {found.get('msg')}"
        )
        return {**found, "changed": False, "msg": f"Nothing was measured: {what}"}

    def _target(self, target: Mapping[str, Any], facts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a target, and for one at a load balancer what its clients need."""
        endpoint = target.get("endpoint")
        if not endpoint:
            return target
        # Imported here, so that other measurements do not pay for it.
        from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.assets import (
            VaultReader,
        )
        from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.client_secrets import (
            client_secrets,
        )

        name = str(endpoint["balancer"])
        planned = facts["fleet_plan_result"]["plan"]["balancers"][name]
        declared = (facts["hostvars"].raw_get(name) or {}).get("load_balancer_api_keys") or {}
        found = client_secrets(name, planned, declared, VaultReader(self._loader))
        return {**target, "endpoint": {**endpoint, **found}}


def _jobs(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, InstanceSearch], list[str]]:
    """Return the job of each target, what is searched on each, and warnings.

    All jobs have the same seeds, and the same order of the same cells. Those of searches are their first ones.
    """
    knowledge, kind, targets = Knowledge(CATALOG), given.get("kind") or "serve", given.get("targets") or ()
    if given.get("suite") and targets:
        overrides = {"seed": int(time.time()), **(given.get("overrides") or {}), "kinds": [kind]}
        found = suite_commands(knowledge, str(given["suite"]), targets, overrides)
        by_name = {str(target["name"]): target for target in targets}
        searches = {
            name: InstanceSearch(found.suite, cells, by_name[name]) for name, cells in found.searches.items()
        }
        first = {name: job for name, search in searches.items() if (job := search.next_job())}
        fixed = {name: {**job, "suite": found.suite} for name, job in found.cells.items()}
        return {**fixed, **first}, searches, list(found.warnings)
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
        "half_width": _number(given, "half_width", PRECISE),
        "warmups": int(_number(given, "warmups", 0)),
        "seed": int(time.time()) if seed is None else int(_number({"args.seed": seed}, "args.seed", 0)),
    }
    jobs: dict[str, Any] = {}
    warnings: list[str] = []
    for target in targets:
        made = bench_command(knowledge, kind, target, args)
        warnings += [f"{target['name']}: {text}" for text in made.warnings]
        cell = describe_cell(kind, made.argv)
        jobs[target["name"]] = {
            "cells": [cell],
            **numbers,
            "order": [[cell["cell"]]] * int(numbers["most"] or 1),
        }
    return jobs, {}, warnings


def _number(given: Mapping[str, Any], name: str, default: float) -> float:
    """Return an option as a number. Raise FleetError for anything else."""
    value = given.get(name, default)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise FleetError([Problem((name,), f"{value!r} is not a number.")]) from None
