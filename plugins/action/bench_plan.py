# SPDX-License-Identifier: Apache-2.0
"""Plan what a run measures: read the hosts' suites and what they keep, have it planned, show it, and decide nothing
here.

Documentation: plugins/modules/bench_plan.py (`ansible-doc -t module instinct.fleet.bench_plan`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.run_reading import plan_problems
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.files import CATALOG
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import Knowledge
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import InventoryReader
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.public_variables import (
    public_variables,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.node_state import NodeState
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.request import OPTIONS


class ActionModule(ControllerAction):
    """bench_plan."""

    options: ClassVar[dict[str, dict[str, Any]]] = {
        "hosts": {"type": "list", "elements": "str"},
        "todo": {"type": "list", "elements": "dict", "required": True},
        "kinds": {**OPTIONS["kinds"], "default": None, "required": True},
        **{name: OPTIONS[name] for name in ("operation", "deployment", "instance", "live", "rate")},
        "run": public_variables()["benchmark_run"].option,
        "results_dir": public_variables()["benchmark_results_dir"].option,
    }

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the run, and the text; or fail with everything that would make the measurement fail."""
        # Here, as every run imports the actions of its play ahead, and most runs measure nothing.
        from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.pipeline import (
            BenchmarkInputs,
            plan_benchmark,
        )
        from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.begin import (
            benchmark_variables,
        )
        from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.request import (
            measured_instances,
        )

        reader, instances = InventoryReader(facts), measured_instances(options["todo"])
        names = benchmark_variables(options["kinds"])
        states = {name: reader.host(name, False, ()).state for name, _instance in instances}
        plan = plan_benchmark(
            BenchmarkInputs(
                knowledge=Knowledge(CATALOG),
                options=options,
                instances=instances,
                variables={name: reader.values(name, names) for name in reader.hosts(options["hosts"])},
                kept={name: NodeState.from_json(state).benchmarks for name, state in states.items() if state},
            )
        )
        if plan.text:
            self.show(plan.text)
        return {"changed": False, "run": plan.run, "text": plan.text}

    def error_message(self, error: Exception, facts: Mapping[str, Any]) -> str:
        """Return every problem of the input, with the place where it was written."""
        return plan_problems(InventoryReader(facts), error.problems if isinstance(error, FleetError) else ())
