# SPDX-License-Identifier: Apache-2.0
"""Plans of recorded fleets stay what they were, to the byte: for changes that are meant to change no plan.

Where a plan is meant to change, write the record anew, and look at what changed:

    python -m tests.unit.plan.test_recorded_plans > tests/data/recorded_plans.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances import compose
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan

from tests import ROOT, commands
from tests.worlds.plan_world import deployment, gpus, plan, state

RECORD = ROOT / "tests/data/recorded_plans.json"
# The program around vLLM is part of a container's specification, and of no other part of a plan.
SUPERVISOR = "/etc/instinct-fleet/lib/000000000000:/instinct-lib:ro"
ADDRESSES = {f"n{number}": {"instinct_address": f"192.0.2.{number}"} for number in range(1, 5)}
TWO = {"n1": state(), "n2": state()}
FLEETS: dict[str, Callable[[], FleetPlan]] = {
    "one instance": lambda: plan({"n1": state()}, [deployment()]),
    "an instance on each GPU of two nodes": lambda: plan(TWO, [deployment(instances_per_host=8)]),
    "two deployments": lambda: plan(
        TWO, [deployment(gpus=[0, 1, 2, 3]), deployment(name="other", port=9000, gpus=[4], hosts=["n2"])]
    ),
    "CPX is to come": lambda: plan(TWO, [deployment(instances_per_host=2)], gpu_partition_compute="CPX"),
    "CPX is there": lambda: plan({"n1": state(gpus=gpus("CPX"))}, [deployment()], gpu_partition_compute="CPX"),
    "tensor parallel over two nodes": lambda: plan(
        TWO, [deployment(nodes=2, tensor_parallel_size=8, pipeline_parallel_size=2)], own=ADDRESSES
    ),
    "tensor parallel in a node": lambda: plan(TWO, [deployment(tensor_parallel_size=4)]),
    "an objective and variables": lambda: plan(
        TWO, [deployment(objective="latency", env={"VLLM_LOGGING_LEVEL": "DEBUG"})]
    ),
    "offline": lambda: plan(
        {"n1": None}, [deployment()], offline=True, instinct_gpus={"model": "MI325X", "count": 8}
    ),
    "MI355X": lambda: plan({"n1": state(gpus=gpus(device_id=0x75A3))}, [deployment()]),
}  # fmt: skip


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]


def recorded(make: Callable[[], FleetPlan]) -> dict[str, Any]:
    """What is kept of a plan: hashes of plan.json, of both explanations and of each instance, and the specifications.

    specs: a container is replaced when its own changes. That of `instances` is of all that the node is given.
    """
    try:
        made = make()
    except FleetError as error:
        return {"refused": digest("\n".join(problem.text() for problem in error.problems))}
    data = json.loads(json.dumps(made.to_json()))
    return {
        "plan": digest(json.dumps(data, sort_keys=True)),
        "told": digest(explain(made)),
        "explained": digest(explain(made, full=True)),
        "instances": {
            f"{name}/{instance['name']}": digest(json.dumps(instance["server"], sort_keys=True))
            for name, host in data["hosts"].items()
            for instance in host["instances"]
        },
        "specs": {
            f"{name}/{instance['name']}": instance["spec_hash"]
            for name, host in data["hosts"].items()
            for instance in host["instances"]
        },
    }


def fleets() -> Mapping[str, Callable[[], FleetPlan]]:
    """All fleets: those above, and the deployments of every documented command."""
    documented = {
        f"{number} {entry.id}": lambda entry=entry: commands.plan(entry)
        for number, entry in enumerate(commands.entries())
    }
    return {**FLEETS, **documented}


@pytest.mark.parametrize("name", fleets())
def test_the_plan_is_what_it_was(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose, "lib_bind", lambda: SUPERVISOR)
    monkeypatch.setattr(commands, "PLANS", {})  # those of other tests name the program
    assert recorded(fleets()[name]) == json.loads(RECORD.read_text(encoding="utf-8"))[name]


def test_the_record_has_these_fleets_and_no_other() -> None:
    assert sorted(json.loads(RECORD.read_text(encoding="utf-8"))) == sorted(fleets())


if __name__ == "__main__":
    compose.lib_bind = lambda: SUPERVISOR
    json.dump({name: recorded(make) for name, make in fleets().items()}, sys.stdout, indent=1, sort_keys=True)
    print()
