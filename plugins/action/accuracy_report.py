# SPDX-License-Identifier: Apache-2.0
"""Judge what the instances answered: reads hosts' variables and earlier runs, writes results/<run>/.

Documentation: plugins/modules/accuracy_report.py (`ansible-doc -t module instinct.fleet.accuracy_report`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import Redactor
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.hints import cause, failed_item
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.files import CATALOG
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import Knowledge
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.baseline import (
    PREVIOUS,
    baseline_of,
    check_baseline,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.judge import (
    AccuracyRules,
    DeploymentVerdict,
    judge_run,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.nll import NllLimits
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.paired import check_tolerance
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.pairing import AccuracyError
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.results import (
    SANITY,
    SCHEMA,
    DeploymentRun,
    gather,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.scoring import parse_items
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.task_files import (
    planned_tasks,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.tasks import parse_tasks
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.text import report_text
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.accuracy_runs import (
    FILE,
    read_accuracy_runs,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.run_names import (
    ResultsError,
    check_run,
    free_run,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.files import (
    json_text,
    write_run,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import (
    InventoryReader,
    to_plain_data,
)

RESULTS, FAILURE = ("__accuracy_result", "__accuracy_lm_eval"), "__accuracy_failure"
"""Variables of a host: what its instances answered, and why one of its tasks failed."""
REPORT = "accuracy.txt"


class ActionModule(ControllerAction):
    """accuracy_report."""

    BYPASS_HOST_LOOP = True
    expected: ClassVar = (AccuracyError, FleetError, ResultsError, OSError)
    options: ClassVar = {
        "phase": {"type": "str", "choices": ["check", "report"], "default": "report"},
        "run": {"type": "str", "default": ""},
        "results_dir": {"type": "path", "default": "results"},
        "tasks": {"type": "raw", "default": ["sanity", "nll"]},
        "data_dir": {"type": "path", "default": ""},
        "tolerance": {"type": "float", "default": 2},
        "baseline": {"type": "str", "default": PREVIOUS},
        "live": {"type": "bool", "default": False},
    }

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return what to ask, or write the verdicts and return them."""
        knowledge = Knowledge(CATALOG)
        shipped, known = knowledge.accuracy["sets"], knowledge.accuracy["tasks"]
        names = parse_tasks(options["tasks"], [*shipped, *known])
        check_tolerance(options["tolerance"])
        now = datetime.now(UTC)
        run = check_run(options["run"] or now.strftime("accuracy-%Y%m%dT%H%M%SZ"))
        results_dir = Path(options["results_dir"]).expanduser().absolute()
        earlier = read_accuracy_runs(results_dir)
        check_baseline(options["baseline"], earlier)
        if options["phase"] == "check":
            return _to_ask(names, shipped, known, options["data_dir"])
        if self._task.check_mode:
            return {"changed": False, "skipped": True, "msg": "Nothing is measured in check mode."}
        entries, failures = _answered(InventoryReader(facts))
        runs = gather(entries, parse_items(knowledge.accuracy_set("sanity")))
        if not runs and not failures:
            return {"changed": False, "msg": "There was no instance to ask."}
        verdicts, against = _judged(runs, earlier, options, knowledge)
        run = free_run(results_dir, run)
        summary = {
            "schema": SCHEMA,
            "run": run,
            "finished": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "live": options["live"],
            "tolerance": options["tolerance"],
            "failures": failures,
            "deployments": {
                verdict.name: {"against": against[verdict.name] or None, **verdict.to_json()}
                for verdict in verdicts
            },
        }
        redact = Redactor()  # modules have masked the secrets that they know; this masks what looks like one
        files = {
            FILE: json_text(redact.data(summary)),
            REPORT: redact(report_text(run, options["live"], verdicts, against, failures)),
            "answers.jsonl": redact(_answers(entries)),
        }
        report = write_run(results_dir, run, files, newest=False) / REPORT
        paths = "\n".join([str(report), *_reports(results_dir, runs)])
        self.show(f"\n{files[REPORT]}{paths}")
        return _result(report, files[REPORT], verdicts, failures)


def _to_ask(
    names: Sequence[str], shipped: Collection[str], known: Mapping[str, Any], data_dir: str
) -> dict[str, Any]:
    """Return the sets of this collection to ask, and the tasks of lm-eval. shipped, known: all of them."""
    others = planned_tasks([name for name in names if name not in shipped], known, data_dir)
    return {
        "changed": False,
        "sets": [name for name in names if name in shipped],
        "lm_eval": [task.to_json() for task in others],
    }


def _answered(reader: InventoryReader) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Return what the instances of each host answered, and why hosts have no answers."""
    own = {host: reader.values(host, (*RESULTS, FAILURE), lenient=True) for host in reader.hosts(None)}
    entries = {
        host: [
            entry
            for name in RESULTS
            for entry in to_plain_data((values.get(name) or {}).get("instances") or [], str)
        ]
        for host, values in own.items()
    }
    return entries, {host: why for host, values in own.items() if (why := _failure(values))}


def _judged(
    runs: Mapping[str, DeploymentRun],
    earlier: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
    knowledge: Knowledge,
) -> tuple[Sequence[DeploymentVerdict], dict[str, str]]:
    """Return the verdicts of deployments, and the earlier runs with which they were compared; "" for none."""
    rules = AccuracyRules(
        options["tolerance"],
        NllLimits(**knowledge.accuracy["nll_limits"]),
        tuple(knowledge.accuracy["expectations"]),
    )
    before = {
        name: baseline_of(name, measured, earlier, options["baseline"]) for name, measured in runs.items()
    }
    baselines = {name: found[1] if found else None for name, found in before.items()}
    verdicts = judge_run({name: (measured, baselines[name]) for name, measured in runs.items()}, rules)
    return verdicts, {name: found[0] if found else "" for name, found in before.items()}


def _result(
    report: Path, text: str, verdicts: Iterable[DeploymentVerdict], failures: Mapping[str, str]
) -> dict[str, Any]:
    problems = {verdict.name: list(verdict.problems) for verdict in verdicts if verdict.problems}
    result = {"changed": True, "directory": str(report.parent), "problems": problems, "text": text}
    wrong = [*problems, *failures]
    if wrong:
        message = f"Accuracy: problems of {', '.join(wrong)}. Report: {report}"
        return {**result, "failed": True, "msg": message}
    return result


def _reports(results_dir: Path, deployments: Iterable[str]) -> list[str]:
    """Write the reports of the deployments' newest benchmarks again, and return their paths; or why they are not."""
    if not (results_dir / "latest").is_symlink():
        return []  # nothing was measured
    try:
        from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.rewrite import (
            rewrite_newest,
        )

        return [str(path) for path in rewrite_newest(results_dir, deployments)]
    except (FleetError, OSError, ValueError, LookupError, ImportError) as error:
        return [f"The report of the newest benchmark was not changed: {error}"]


def _failure(values: Mapping[str, Any]) -> str:
    """Return why a host has no answers; "" if it has some."""
    for name in (*RESULTS, FAILURE):
        found = values.get(name) or {}
        if found.get("failed") or found.get("unreachable"):
            failed = failed_item(found)
            return cause(failed) or str(failed.get("msg") or "the host did not answer")
    return "" if any(values.get(name) for name in RESULTS) else "its instances were not asked"


def _answers(entries: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    rows = (
        {"host": host, "instance": entry["name"], "task": task, **answer}
        for host, of_host in entries.items()
        for entry in of_host
        for task, answers in _answers_of(entry)
        for answer in answers
    )
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _answers_of(entry: Mapping[str, Any]) -> Iterable[tuple[str, Iterable[Mapping[str, Any]]]]:
    yield SANITY, entry.get("answers") or ()
    for name, task in (entry.get("tasks") or {}).items():
        yield name, task["samples"]
