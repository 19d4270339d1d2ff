# SPDX-License-Identifier: Apache-2.0
"""Judge the burn-in of all nodes, print and write the verdicts: reads hosts' variables, connects to nothing.

Documentation: plugins/modules/burnin_report.py (`ansible-doc -t module instinct.fleet.burnin_report`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.hints import cause
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.text import plural
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import (
    load_acceptance,
    load_gpus,
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
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.burnin.text import burnin_text
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.burnin.verdict import (
    between_error,
    burnin_verdicts,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import (
    InventoryReader,
    to_plain_data,
)

RESULT = "__burnin_result"


class ActionModule(ControllerAction):
    """burnin_report."""

    BYPASS_HOST_LOOP = True
    expected: ClassVar = (FleetError, ResultsError, OSError)
    options: ClassVar = {
        "run": {"type": "str", "default": ""},
        "results_dir": {"type": "path", "default": "results"},
    }

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return verdicts, path and text; fail if a GPU is bad or a test of a host has no result."""
        if self._task.check_mode:
            return {"changed": False, "skipped": True, "msg": "Nothing is tested in check mode."}
        now = datetime.now(UTC)
        results_dir = Path(options["results_dir"]).expanduser().absolute()
        run = free_run(results_dir, check_run(options["run"] or now.strftime("burnin-%Y%m%dT%H%M%SZ")))
        reader = InventoryReader(facts)
        outcomes = {
            host: reader.values(host, (RESULT,), lenient=True).get(RESULT)
            for host in map(str, facts["ansible_play_hosts_all"])
        }
        tested = {host: item["burnin"] for host, item in outcomes.items() if item and item.get("burnin")}
        failed = {
            host: why
            for host, item in outcomes.items()
            if (why := between_error(tested[host]) if host in tested else _why(item))
        }
        models = {pci_id: model.name for model in load_gpus().models for pci_id in model.pci_ids}
        verdicts = burnin_verdicts(tested, load_acceptance(), models)
        data = {
            "schema": 1,
            "run": run,
            "finished": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "verdicts": [verdict.to_json() for verdict in verdicts],
            "hosts": to_plain_data(tested, str),
            "failed": failed,
        }
        path = write_run(results_dir, run, {"burnin.json": json_text(data)}, newest=False) / "burnin.json"
        text = burnin_text(run, verdicts, tested, failed)
        self.show(f"\n{text}\n{path}")
        bad = [verdict for verdict in verdicts if verdict.verdict == "bad"]
        result = {"changed": True, "verdicts": data["verdicts"], "path": str(path), "text": text}
        if not bad and not failed:
            return result
        parts = [f"{plural(len(bad), 'GPU')} bad"] if bad else []
        parts += [f"{plural(len(failed), 'host')} not tested as a whole"] if failed else []
        return {**result, "failed": True, "msg": f"{', '.join(parts)}: see above, and {path}."}


def _why(outcome: Any) -> str:
    if not isinstance(outcome, Mapping):
        return "not tested: the host failed earlier in this run; its error is in the play's output"
    return cause(outcome) or str(outcome.get("msg") or "not tested")
