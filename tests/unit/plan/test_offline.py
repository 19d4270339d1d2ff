# SPDX-License-Identifier: Apache-2.0
"""An offline plan is the online one, action for action, but for what follows from facts that it lists as assumed."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.fleet import (
    HostInput,
    build_fleet,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import (
    FleetPlan,
    HostPlan,
)

from tests import commands
from tests.worlds.plan_world import DOCKER, apply_to_state, catalog, deployment, gpus, plan, state, workshop

MODES = [{**gpu, "available_memory_partitions": ["NPS1", "NPS4"]} for gpu in gpus()]
BARE = state(gpus=MODES, docker={**DOCKER, "installed": False, "available": False})
GPUS: dict[str, Any] = {"model": "MI300X", "count": 8}
ADDRESSES = {f"n{number}": {"instinct_address": f"192.0.2.{number}"} for number in range(1, 3)}
CPX = {"gpu_partition_compute": "CPX"}
FLEETS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "one instance": ([deployment()], {}),
    "an instance on each GPU": ([deployment(instances_per_host=8)], {}),
    "two deployments": (
        [deployment(gpus=[0, 1, 2, 3]), deployment(name="b", port=9000, gpus=[4], hosts=["n2"])],
        {},
    ),
    "CPX, three instances": ([deployment(instances_per_host=3)], CPX),
    "CPX in NPS4": ([deployment(instances_per_host="max")], {**CPX, "gpu_partition_memory": "NPS4"}),
    "CPX in NPS1": ([deployment(instances_per_host="max")], {**CPX, "gpu_partition_memory": "NPS1"}),
    "modes as from the factory": (
        [deployment()],
        {"gpu_partition_compute": "SPX", "gpu_partition_memory": "NPS1"},
    ),
    "NUMA balancing on": ([deployment()], {"host_prep_numa_balancing": True}),
    "clean GPUs": ([deployment()], {"gpu_clean": True}),
    "groups of four": ([deployment(instances_per_host=2, tensor_parallel_size=4)], {}),
    "a GPU that two share": ([deployment(instances_per_gpu=2, instances_per_host=4)], {}),
    "over two nodes": (
        [deployment(nodes=2, tensor_parallel_size=8, pipeline_parallel_size=2)],
        {"own": ADDRESSES},
    ),
    "nothing to serve": ([], {}),
}


def both(
    wanted: list[dict[str, Any]], keys: dict[str, Any], online: dict[str, Any]
) -> tuple[FleetPlan, FleetPlan]:
    offline = plan({"n1": None, "n2": None}, wanted, offline=True, instinct_gpus=GPUS, **keys)
    return offline, plan({"n1": online, "n2": online}, wanted, instinct_gpus=GPUS, **keys)


def listed(host: HostPlan) -> set[str]:
    """The kinds of actions of which the plan says that they depend on the host."""
    return {kind for item in host.assumed for kind in item.actions}


def actions(host: HostPlan) -> list[tuple[str, str, str]]:
    # The specification has the CPUs of a NUMA node and the groups of devices: both are listed as assumed.
    return [(item.kind, item.target, item.after.partition(", spec ")[0]) for item in host.actions]


def placed(host: HostPlan) -> dict[str, tuple[list[str], list[str]]]:
    """What each instance runs, and on which devices."""
    return {item.name: (item.described["argv"], item.described["render_nodes"]) for item in host.instances}


@pytest.mark.parametrize("name", FLEETS)
def test_on_hosts_as_they_are_assumed_the_plans_are_the_same(name: str) -> None:
    offline, online = both(*FLEETS[name], BARE)
    for before, after in zip(offline.hosts, online.hosts, strict=True):
        assert actions(before) == actions(after)
        assert placed(before) == placed(after)
        assert before.to_json()["partition"] == after.to_json()["partition"]
        assert before.warnings == after.warnings
        assert not after.assumed


OTHERS: dict[str, dict[str, Any]] = {
    "Docker is there": state(gpus=MODES),
    "in CPX": state(gpus=[{**gpu, "available_memory_partitions": ["NPS1", "NPS4"]} for gpu in gpus("CPX")]),
    "in NPS4": state(gpus=[{**gpu, "memory_partition": "NPS4"} for gpu in MODES]),
    "NUMA balancing is off": {
        **BARE,
        "numa_balancing": {"runtime": 0, "persisted": 0, "file": "/etc/sysctl.d/x"},
    },
    "memory is left in use": {**BARE, "gpus": [{**gpu, "vram_used": 40 << 30} for gpu in MODES]},
    "a partition change was interrupted": {**BARE, "partition_change": "verify"},
}


@pytest.mark.parametrize("name", FLEETS)
@pytest.mark.parametrize("other", [*OTHERS, "all is done"])
def test_elsewhere_what_differs_is_listed(name: str, other: str) -> None:
    wanted, keys = FLEETS[name]
    if other == "all is done":
        first = plan({"n1": BARE, "n2": BARE}, wanted, instinct_gpus=GPUS, **keys).to_json()["hosts"]["n1"]
        found = apply_to_state(BARE, first)
    else:
        found = OTHERS[other]
    offline, online = both(wanted, keys, found)
    there = {host.host.name: host for host in online.hosts}
    assert {*there, *(name for name, _why in online.excluded)} == {"n1", "n2"}
    for before in offline.hosts:
        after = there.get(before.host.name, before)  # one that is left out has its reason in the plan
        different = {kind for kind, *_rest in set(actions(before)) ^ set(actions(after))}
        assert different <= listed(before)


def documented(entry: commands.Entry) -> tuple[FleetPlan, FleetPlan]:
    """The plans of a documented command's deployments, offline and on its nodes."""
    online = commands.plan(entry)
    model = entry.data.get("gpu", entry.document["gpu"])
    shared = {
        "vllm_deployments": entry.deployments,
        **entry.host,
        "instinct_gpus": {"model": model, "count": 8},
    }
    names = [host.host.name for host in online.hosts]
    fleet = build_fleet(
        {name: HostInput(shared, None, "") for name in names}, {"all": names}, catalog(), True
    )
    return plan_fleet(check_fleet(fleet), workshop(commands.lock_of(entry))), online


@pytest.mark.parametrize(
    "entry", [item for item in commands.entries() if not item.refused], ids=lambda item: item.id
)
def test_documented_commands(entry: commands.Entry) -> None:
    offline, online = documented(entry)
    for before, after in zip(offline.hosts, online.hosts, strict=True):
        different = {kind for kind, *_rest in set(actions(before)) ^ set(actions(after))}
        assert different <= listed(before)
        assert placed(before) == placed(after)


def test_the_text_lists_what_is_assumed() -> None:
    text = explain(both([deployment()], CPX, BARE)[0])
    assert "8 MI300X are present, in SPX and NPS1 as from the factory" in text
    assert "changing the memory mode reloads the driver" in " ".join(text.split())
    assert "no Docker engine is installed" in text
    assert "Assumed" not in explain(both([deployment()], CPX, BARE)[1])
