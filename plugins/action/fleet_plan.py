# SPDX-License-Identifier: Apache-2.0
"""Plan the fleet: read what a run is planned from, have it planned, show the plan, and decide nothing here.

Documentation: plugins/modules/fleet_plan.py (`ansible-doc -t module instinct.fleet.fleet_plan`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import (
    ControllerAction,
    write_json,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.run_reading import (
    RunReading,
    plan_problems,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.files import CATALOG
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import Knowledge
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import InventoryReader
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import (
    check_run,
    finish_run,
    plan_run,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.request import OPTIONS


class ActionModule(ControllerAction):
    """fleet_plan."""

    options: ClassVar = OPTIONS

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return plan, todo, changes and text; or fail with every problem of the input."""
        reading = RunReading(
            options, InventoryReader(facts), self._loader, Knowledge(CATALOG), self._task.check_mode
        )
        checked = check_run(reading.inputs())
        planned = plan_run(checked, reading.resources(checked))
        run = finish_run(planned, reading.access_warnings(planned))
        self.show(f"\n{run.text}")
        if options["plan_file"]:
            # Also in check mode: it is what was asked for, and no change of the fleet.
            write_json(Path(options["plan_file"]), run.data)
        return {"changed": False, **run.to_json()}

    def error_message(self, error: Exception, facts: Mapping[str, Any]) -> str:
        """Return every problem of the input, with the place where it was written."""
        return plan_problems(InventoryReader(facts), error.problems if isinstance(error, FleetError) else ())
