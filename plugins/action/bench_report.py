# SPDX-License-Identifier: Apache-2.0
"""Gather the benchmarks of all nodes into results/<run>/: reads hosts' variables, writes files.

Documentation: plugins/modules/bench_report.py (`ansible-doc -t module instinct.fleet.bench_report`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import yaml
from ansible.errors import AnsibleError
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import MIN_LENGTH, Redactor
from ansible_collections.instinct.fleet.plugins.plugin_utils.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.catalog.gpus import parse_gpus
from ansible_collections.instinct.fleet.plugins.plugin_utils.instances.masks import mask_data
from ansible_collections.instinct.fleet.plugins.plugin_utils.report.files import (
    ResultsError,
    check_run,
    csv_text,
    free_run,
    json_text,
    raw_names,
    write_run,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.report.summary import (
    REGISTERED,
    STATES,
    Measured,
    build_summary,
    collect,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.report.text import text_summary

ROOT = Path(__file__).resolve().parents[2]
OPTIONS: dict[str, dict[str, Any]] = {
    "run": {"type": "str", "default": ""},
    "results_dir": {"type": "path", "default": "results"},
    "hosts": {"type": "list", "elements": "str"},
    "report": {"type": "bool", "default": True},
    "plan": {"type": "dict"},
}


class ActionModule(ControllerAction):
    """bench_report."""

    BYPASS_HOST_LOOP = True
    expected: ClassVar = (ResultsError, OSError)
    options: ClassVar = OPTIONS

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return run, directory, failures and text; or fail when the results cannot be written."""
        if self._task.check_mode:
            return {"changed": False, "skipped": True, "msg": "Nothing is measured in check mode."}
        own = {host: _variables(facts["hostvars"][host]) for host in _hosts(options["hosts"], facts)}
        redact = Redactor(_secrets(own.values()))
        try:
            written = _write(options, own, redact)
        except self.expected as error:
            raise ResultsError(redact(str(error))) from None
        if "text" in written:
            self._display.display(f"\n{written['text']}")
        return written


def _write(options: Mapping[str, Any], own: Mapping[str, Any], redact: Redactor) -> dict[str, Any]:
    now = datetime.now(UTC)
    results_dir = Path(options["results_dir"]).expanduser().absolute()
    run = free_run(results_dir, check_run(options["run"] or now.strftime("%Y%m%dT%H%M%SZ")))
    measured = collect(list(own), own, redact, _gpu_models())
    if not measured.rows and not measured.failures:
        return {"changed": False, "msg": "There was no instance to measure."}
    summary = build_summary(run, now.strftime("%Y-%m-%dT%H:%M:%SZ"), measured)
    files = _files(summary, measured)
    plan = options["plan"] or _plan(own.values())
    if plan:
        files["plan.json"] = json_text(redact.data(mask_data(_plain(plan))))
    if options["report"]:
        from ansible_collections.instinct.fleet.plugins.plugin_utils.report.report import render_report

        files["report.html"] = render_report(summary)
    directory = write_run(results_dir, run, files)
    paths = [
        str(directory / name) for name in ("report.html", "benchmarks.csv", "summary.json") if name in files
    ]
    return {
        "changed": True,
        "run": run,
        "directory": str(directory),
        "failures": summary["failures"],
        "text": "\n".join([text_summary(summary), *paths]),
    }


def _files(summary: Mapping[str, Any], measured: Measured) -> dict[str, str]:
    files = {"summary.json": json_text(summary), "benchmarks.csv": csv_text(summary)}
    for name, raw in zip(raw_names(measured.rows), measured.raw, strict=True):
        files[f"raw/{name}"] = json_text(raw)
    return files


def _hosts(given: list[str] | None, facts: Mapping[str, Any]) -> list[str]:
    if given:
        return [str(host) for host in given]
    members = [str(host) for host in facts["groups"].get("instinct", [])]
    # Those that --limit leaves, with those that failed earlier.
    play = {str(host) for host in facts.get("ansible_play_hosts_all", [])}
    return [host for host in members if host in play] or members


def _variables(hostvars: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of a host that matter here, as plain data; one that cannot be rendered is not set."""
    names = (*REGISTERED, *STATES, "fleet_plan_result", "hf_model_token", "vllm_image_registries")
    found = {}
    for name in (*names, "hf_model_token_file"):
        try:
            if name in hostvars:
                found[name] = _plain(hostvars[name])
        except AnsibleError:
            continue
    return found


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _plan(hosts: Iterable[Mapping[str, Any]]) -> Any:
    """The last plan that fleet_plan registered: hosts that were not planned again have the first, a partial one."""
    plans = (own["fleet_plan_result"].get("plan") for own in hosts if own.get("fleet_plan_result"))
    return min(
        (plan for plan in plans if plan), key=lambda plan: len(plan.get("partial") or ()), default=None
    )


def _secrets(hosts: Iterable[Mapping[str, Any]]) -> set[str]:
    """Secrets of the inventory by value, so that no result can carry one wherever it turns up."""
    found: set[str] = set()
    for own in hosts:
        found.add(str(own.get("hf_model_token") or ""))
        registries = own.get("vllm_image_registries") or {}
        found |= {str(item.get("password") or "") for item in registries.values()}
        if own.get("hf_model_token_file"):
            try:
                found.add(Path(str(own["hf_model_token_file"])).expanduser().read_text("utf-8"))
            except OSError:
                continue  # then nobody could use it either
    return {secret.strip() for secret in found if len(secret.strip()) >= MIN_LENGTH}


def _gpu_models() -> dict[str, str]:
    data = yaml.safe_load((ROOT / "catalog" / "gpus.yml").read_text("utf-8"))
    return {pci_id: model.name for model in parse_gpus(data).models for pci_id in model.pci_ids}
