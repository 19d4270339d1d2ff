# SPDX-License-Identifier: Apache-2.0
"""Gather the benchmarks of all nodes into results/<run>/: reads hosts' variables, writes files.

Documentation: plugins/modules/bench_report.py (`ansible-doc -t module instinct.fleet.bench_report`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import Redactor
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.files import CATALOG
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import (
    Knowledge,
    load_gpus,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.run_context import (
    read_run_context,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.text import text_summary
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.continuation import (
    UnfinishedRun,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.run_names import (
    ResultsError,
    check_run,
    free_run,
    node_directory,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.unfinished_runs import (
    keep_unfinished,
    remove_unfinished,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.earlier import read_earlier
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.files import (
    csv_text,
    json_text,
    run_files,
    write_run,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.inputs import (
    VARIABLES,
    inventory_secrets,
    last_plan,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.node_facts import (
    SoftwareSources,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.slo_searches import slo_csv
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.summary import (
    build_summary,
    collect,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import (
    InventoryReader,
    to_plain_data,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.redact import redact_data
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import LOCK, Lock
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving.lock_file import read_lock

OPTIONS: dict[str, dict[str, Any]] = {
    "run": {"type": "str", "default": ""},
    "results_dir": {"type": "path", "default": "results"},
    "hosts": {"type": "list", "elements": "str"},
    "report": {"type": "bool", "default": True},
    "plan": {"type": "dict"},
    "begin": {"type": "dict"},
}


class ActionModule(ControllerAction):
    """bench_report."""

    BYPASS_HOST_LOOP = True
    expected: ClassVar = (FleetError, ResultsError, OSError)
    options: ClassVar = OPTIONS

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return run, directory, failures and text; or fail when the results cannot be written."""
        if self._task.check_mode:
            return {"changed": False, "skipped": True, "msg": "Nothing is measured in check mode."}
        if options["begin"]:
            return _begin(options)
        reader = InventoryReader(facts)
        hosts = reader.hosts(options["hosts"] or None)
        own = {host: reader.values(host, VARIABLES, lenient=True) for host in hosts}
        redact = Redactor(inventory_secrets(own.values()))
        try:
            sources = SoftwareSources(_lock(reader.inventory_directory(hosts)), Knowledge(CATALOG).images)
            written = _write(options, own, redact, sources)
        except self.expected as error:
            raise ResultsError(redact(str(error))) from None
        if "text" in written:
            self.show(f"\n{written['text']}")
        return written


def _lock(directory: Path) -> Lock:
    """Return the pins next to the inventory; none if the file is damaged, as a report needs them for versions only."""
    try:
        return read_lock(directory / LOCK)
    except FleetError:
        return Lock()


def _begin(options: Mapping[str, Any]) -> dict[str, Any]:
    """Record what a run measures, for the command that continues if this one is killed."""
    given = options["begin"]
    try:
        run = UnfinishedRun.from_json(check_run(str(given.get("name"))), given)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ResultsError(f"begin: it is not a run of bench_plan ({error!r}).") from None
    keep_unfinished(_results_dir(options), run)
    return {"changed": False, "run": run.name}


def _results_dir(options: Mapping[str, Any]) -> Path:
    return Path(options["results_dir"]).expanduser().absolute()


def _write(
    options: Mapping[str, Any], own: Mapping[str, Any], redact: Redactor, sources: SoftwareSources
) -> dict[str, Any]:
    now = datetime.now(UTC)
    results_dir = _results_dir(options)
    run = free_run(results_dir, check_run(options["run"] or now.strftime("%Y%m%dT%H%M%SZ")))
    models = {pci_id: model.name for model in load_gpus().models for pci_id in model.pci_ids}
    measured = collect(list(own), own, redact, models, sources)
    if not measured.rows and not measured.failures:
        return {**_over(options), "changed": False, "msg": "There was no instance to measure."}
    summary = build_summary(run, now.strftime("%Y-%m-%dT%H:%M:%SZ"), measured, read_earlier(results_dir))
    files: dict[str, str | bytes] = {
        "summary.json": json_text(summary),
        "benchmarks.csv": csv_text(summary),
        **run_files(measured),
    }
    if summary["slo_searches"]:
        files["slo.csv"] = slo_csv(summary)
    plan = options["plan"] or last_plan(own.values())
    if plan:
        files["plan.json"] = json_text(redact.data(redact_data(to_plain_data(plan, str))))
    if options["report"]:
        from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.report import (
            render_report,
        )

        around = read_run_context(results_dir, summary, measured.rows, bool(plan))
        files["report.html"] = render_report(summary, around)
    directory = write_run(results_dir, run, files)
    paths = [
        str(directory / name)
        for name in ("report.html", "benchmarks.csv", "slo.csv", "summary.json")
        if name in files
    ]
    return {
        **_over(options),
        "changed": True,
        "run": run,
        "directory": str(directory),
        "failures": summary["failures"],
        "text": "\n".join([text_summary(summary), *paths]),
    }


def _over(options: Mapping[str, Any]) -> dict[str, str]:
    """Forget that a named run is unfinished. Return where nodes keep what they can remove now."""
    if not options["run"]:
        return {}
    remove_unfinished(_results_dir(options), options["run"])
    return {"on_nodes": node_directory(options["run"])}
