# SPDX-License-Identifier: Apache-2.0
"""Judge a new release by what was measured and asked: writes results/<run>/, and fails when it is bad.

Documentation: plugins/modules/canary_verdict.py (`ansible-doc -t module instinct.fleet.canary_verdict`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import Redactor
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.text import printable
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.files import CATALOG
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import Knowledge
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.nll import NllLimits
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.scoring import parse_items
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.canary import report
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.canary.accuracy import (
    AccuracyEvidence,
    read_accuracy,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.canary.evidence import (
    BROKEN,
    INFRASTRUCTURE,
    Baseline,
    CanaryVerdict,
    baseline,
    client,
    judge_canary,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.canary.verdict import OK
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.run_names import (
    ResultsError,
    check_run,
    free_run,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.files import (
    json_text,
    write_run,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.canary_tolerances import (
    CanaryError,
    CanaryTolerances,
)


class ActionModule(ControllerAction):
    """canary_verdict."""

    expected: ClassVar = (CanaryError, ResultsError, OSError)
    options: ClassVar = {
        "phase": {"type": "str", "choices": ["before", "after", "failed"], "required": True},
        "host": {"type": "str", "default": ""},
        "instance": {"type": "dict", "default": {}},
        "reference": {"type": "str", "default": ""},
        "smoke": {"type": "dict", "default": {}},
        "accuracy": {"type": "dict", "default": {}},
        "benchmarks": {"type": "list", "elements": "dict", "default": []},
        "baseline": {"type": "dict", "default": {}},
        "failure": {"type": "str", "default": ""},
        "log": {"type": "str", "default": ""},
        "change": {"type": "str", "default": ""},
        "runs": {"type": "int", "default": 5},
        "max_runs": {"type": "int", "default": 15},
        "tolerance": {"type": "float", "default": 10},
        "latency_tolerance": {"type": "float", "default": 30},
        "accuracy_tolerance": {"type": "float", "default": 2},
        "run": {"type": "str", "default": ""},
        "results_dir": {"type": "path", "default": "results"},
    }

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the baseline, the verdict, or how many more runs it takes."""
        if self._task.check_mode:
            return {"changed": False, "skipped": True, "more": 0, "msg": "Nothing is measured in check mode."}
        rules = CanaryTolerances(**{item.name: options[item.name] for item in fields(CanaryTolerances)})
        rules.check()
        accuracy = _accuracy(options["accuracy"])
        if options["phase"] == "before":
            bench = (options["benchmarks"] or [{}])[0]
            found = baseline(options["smoke"], bench, options["reference"], accuracy)
            for note in found.notes:
                self._display.warning(printable(f"canary: {note}"))
            return {"changed": False, "baseline": {} if found.empty else found.to_json()}
        before = Baseline.from_json(options["baseline"])
        if options["phase"] == "failed":
            verdict = CanaryVerdict(BROKEN, (options["failure"] or "it did not start",), before.notes)
        else:
            verdict = judge_canary(before, options["smoke"], options["benchmarks"], rules, accuracy)
        if verdict.kind == INFRASTRUCTURE:  # there is nothing to report about the release
            return {
                "changed": False,
                "failed": True,
                "more": 0,
                "class": INFRASTRUCTURE,
                "msg": verdict.summary,
            }
        if verdict.more:
            return {
                "changed": False,
                "verdict": verdict.kind,
                "more": verdict.more,
                "looks": options["benchmarks"],
                "client": client(before, options["smoke"].get("instance") or options["instance"]),
            }
        return self._final(options, before, verdict, rules)

    def _final(
        self, options: Mapping[str, Any], before: Baseline, verdict: CanaryVerdict, rules: CanaryTolerances
    ) -> dict[str, Any]:
        """Write the report and print it."""
        now = datetime.now(UTC)
        new = report.new_identity(options["smoke"], options["instance"])
        results_dir = Path(options["results_dir"]).expanduser().absolute()
        named = f"canary-{new.get('deployment') or 'deployment'}-{now.strftime('%Y%m%dT%H%M%SZ')}"
        run = free_run(results_dir, check_run(options["run"] or named))
        made = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        case = report.CanaryReport(run, made, options["host"], options["change"], new, before, verdict, rules)
        redact = Redactor()  # modules have masked the secrets that they know; this masks what looks like one
        text = redact(report.text(case))
        files = {"canary.json": json_text(redact.data(report.to_json(case))), "canary.txt": text}
        if options["log"]:
            files["startup.log"] = redact(options["log"])
        directory = write_run(results_dir, run, files, newest=False)
        page = directory / "canary.txt"
        self.show(f"\n{text}{page}")
        for warning in verdict.warnings:
            self._display.warning(printable(f"canary: {warning}"))
        summary = redact(re.sub(r"\s+", " ", verdict.summary))
        result = {
            "changed": True,
            "verdict": verdict.kind,
            "more": 0,
            "summary": summary,
            "warnings_told": list(verdict.warnings),
            "directory": str(directory),
            "text": text,
            "msg": f"{summary} Report: {page}",
        }
        stops = verdict.kind != OK and options["phase"] != "failed"
        return {**result, "failed": True} if stops else result


def _accuracy(result: Mapping[str, Any]) -> AccuracyEvidence | None:
    """Return what vllm_accuracy found, with the items that it asked; None if it was not called."""
    if not result or result.get("skipped"):
        return None
    knowledge = Knowledge(CATALOG)
    return read_accuracy(
        result,
        parse_items(knowledge.accuracy_set("sanity")),
        NllLimits(**knowledge.accuracy["nll_limits"]),
    )
