# SPDX-License-Identifier: Apache-2.0
"""Write the history of deployments: reads the results directory, writes history/.

Documentation: plugins/modules/bench_history.py (`ansible-doc -t module instinct.fleet.bench_history`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import (
    FleetError,
    Problem,
    suggest,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.history import (
    cell_histories,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.history_page import (
    history_text,
    page_name,
    render_history,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.index import ResultsIndex
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.runs_on_disk import (
    LATEST,
    resolve_run,
)


class ActionModule(ControllerAction):
    """bench_history."""

    expected: ClassVar = (FleetError, OSError)
    options: ClassVar = {
        "deployment": {"type": "str"},
        "results_dir": {"type": "path", "default": "results"},
    }

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return text and the files."""
        del facts
        results_dir = Path(options["results_dir"]).expanduser().absolute()
        resolve_run(results_dir, LATEST)  # there are results
        index = ResultsIndex(results_dir)
        index.update()
        measured = index.deployments()
        wanted = options["deployment"]
        if wanted and wanted not in measured:
            what = f"no run in {results_dir} measured a deployment {wanted}."
            raise FleetError([Problem((), what, suggest(wanted, measured))])
        lines, files = [], []
        for name in [wanted] if wanted else measured:
            histories = cell_histories(index.rows(name))
            path = results_dir / "history" / page_name(name)
            if not self._task.check_mode:
                path.parent.mkdir(exist_ok=True)
                path.write_text(render_history(name, histories), encoding="utf-8")
            files.append(str(path))
            lines += [history_text(name, histories), f"  {path}"]
        text = "\n".join(lines)
        self.show(f"\n{text}")
        return {"changed": False, "text": text, "files": files}
