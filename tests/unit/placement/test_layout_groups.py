# SPDX-License-Identifier: Apache-2.0
"""Engines of several servers: over groups of hosts, and with a server per data parallel rank."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.fleet import (
    HostInput,
    build_fleet,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.placement.layout import (
    Layout,
    lay_out_fleet,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.placement.ranks import (
    group_port,
    rendezvous_port,
)

from tests.worlds.layout_world import layouts, refused
from tests.worlds.plan_world import catalog, deployment, fleet, gpus, state

NODES = ("n1", "n2", "n3", "n10")


def world(*names: str) -> dict[str, dict[str, Any]]:
    return {name: state() for name in names or NODES}


def ranks(found: dict[str, Layout]) -> dict[str, list[tuple[Any, ...]]]:
    """Per host (group, node_rank, master, master_port, data_rank, headless) of every slot."""
    return {
        name: [
            (
                slot.rank.group,
                slot.rank.node_rank,
                slot.rank.master,
                slot.rank.master_port,
                slot.rank.data_rank,
                slot.rank.headless,
            )
            for slot in layout.slots
            if slot.rank
        ]
        for name, layout in found.items()
    }


def two(**keys: Any) -> dict[str, Any]:
    """A deployment over two hosts at a time."""
    return deployment(**{"nodes": 2, "tensor_parallel_size": 8, "pipeline_parallel_size": 2, **keys})


# ---- groups of hosts ---------------------------------------------------------------------------------


def test_hosts_are_grouped_in_natural_order() -> None:
    found = layouts(world(), [two()])
    assert ranks(found) == {
        "n1": [(0, 0, "n1", 28000, 0, False)],
        "n2": [(0, 1, "n1", 28000, 0, True)],
        "n3": [(1, 0, "n3", 28000, 0, False)],
        "n10": [(1, 1, "n3", 28000, 0, True)],
    }
    first, second = (found[name].slots[0] for name in ("n1", "n2"))
    assert [slot.rank and slot.rank.hosts for slot in (first, second)] == [("n1", "n2")] * 2
    assert (first.ports, second.ports) == ((8000, 28000, 23000), ())
    assert [gpu.index for gpu in second.gpus] == [*range(8)]


def test_a_group_meets_at_the_first_hosts_address() -> None:
    own = {"n1": {"ansible_host": "192.0.2.1"}, "n3": {"ansible_host": "x", "instinct_address": "10.0.0.3"}}
    found = ranks(layouts(world(), [two()], own=own))
    assert [found[name][0][2] for name in NODES] == ["192.0.2.1", "192.0.2.1", "10.0.0.3", "10.0.0.3"]


def test_an_address_that_others_cannot_reach() -> None:
    assert refused([two()], world("n1", "n2"), own={"n1": {"ansible_host": "127.0.0.1"}}) == [
        "host n1: the other hosts of its group (n2) cannot reach n1 at 127.0.0.1. Set instinct_address to its "
        "address in the cluster's network."
    ]
    layouts(world("n1", "n2"), [deployment()], own={"n1": {"ansible_host": "127.0.0.1"}})
    assert refused([], world("n1"), own={"n1": {"instinct_address": "a b"}}) == [
        "instinct_address (host n1): 'a b' is not valid. It must be an address."
    ]


def test_several_engines_on_a_group() -> None:
    found = layouts(world("n1", "n2"), [two(tensor_parallel_size=2, instances_per_host="max")])
    assert [slot.port for slot in found["n1"].slots] == [8000, 8001, 8002, 8003]
    assert [rank[3] for rank in ranks(found)["n2"]] == [28000, 28001, 28002, 28003]


def test_a_group_is_the_same_in_a_limited_run() -> None:
    """--limit leaves hosts out of the run; their groups are left as they are."""
    wanted = [two(hosts=["instinct"])]
    known = {"instinct": list(NODES), "all": list(NODES)}
    found = layouts(world("n1", "n3", "n10"), wanted, groups=known)
    assert ranks(found)["n10"] == [(1, 1, "n3", 28000, 0, True)]
    assert (found["n1"].slots, found["n1"].unplaced) == ((), ("llama-0",))
    assert found["n1"].warnings == (
        "deployment llama spans n1, n2, but this run does not have n2 (it is not in this run); it is left as it is",
    )


def test_a_limited_run_without_the_first_host_of_a_group() -> None:
    known = {"instinct": list(NODES), "all": list(NODES)}
    found = layouts(world("n2", "n10"), [two(hosts=["instinct"])], groups=known)
    assert [(layout.slots, layout.unplaced) for layout in found.values()] == [((), ("llama-0",))] * 2
    assert "n1 (it is not in this run)" in found["n2"].warnings[0]


def test_hosts_that_are_not_named_cannot_be_told_from_a_limited_run() -> None:
    known = {"instinct": list(NODES), "all": list(NODES)}
    found = layouts(world("n1", "n2"), [two()], groups=known)
    assert [layout.unplaced for layout in found.values()] == [("llama-0",), ("llama-0",)]
    assert "the deployment does not name its hosts" in found["n1"].warnings[0]


def test_an_unreachable_host_leaves_its_group_alone() -> None:
    own = deployment(name="b", port=9000, hosts=["n1"], gpus=[7])
    found = layouts({**world(), "n2": None}, [two(tensor_parallel_size=4), own])
    assert found["n1"].unplaced == ("llama-0",)
    assert [slot.name for slot in found["n1"].slots] == ["b-0"]
    assert "n2 (it could not be reached)" in found["n1"].warnings[0]
    assert ranks(found)["n3"] == [(1, 0, "n3", 28000, 0, False)]


def test_hosts_that_make_no_whole_groups() -> None:
    assert refused([two()], world("n1", "n2", "n3")) == [
        "vllm_deployments[0].nodes (host n3): the deployment has 3 hosts, which is not a multiple of 2: n3 would be "
        "unused. Add 1 to hosts, or remove 1."
    ]


def test_hosts_of_a_group_must_be_alike() -> None:
    odd = {**world(), "n2": state(gpus=gpus("DPX")), "n10": state(gpus=gpus(device_id=0x74A5))}
    assert refused([two()], odd) == [
        "host n2: deployment llama spans n1 with 8 MI300X and n2 with 16 MI300X. Hosts that run an engine together "
        "must have the same GPUs.",
        "host n10: deployment llama spans n3 with 8 MI300X and n10 with 8 MI325X. Hosts that run an engine together "
        "must have the same GPUs.",
    ]


def test_hosts_of_a_group_that_are_only_declared_must_be_alike() -> None:
    def declared(model: str, count: int = 8) -> dict[str, Any]:
        return {"instinct_gpus": {"model": model, "count": count}}

    bare: dict[str, Any] = {"n1": None, "n2": None}
    wanted = [two(vllm_version="0.11.1")]
    own = {"n1": declared("MI300X"), "n2": declared("MI325X")}
    assert refused(wanted, bare, offline=True, own=own) == [
        "host n2: deployment llama spans n1 with 8 MI300X and n2 with 8 MI325X. Hosts that run an engine together "
        "must have the same GPUs."
    ]
    layouts(bare, wanted, offline=True, own={"n1": declared("MI300X"), "n2": declared("MI300X")})


def test_hosts_of_a_group_that_is_not_whole_may_differ() -> None:
    """They do not run it together now; the run that has all of them says so."""
    three = [deployment(nodes=3, pipeline_parallel_size=3, hosts=["instinct"])]
    odd: dict[str, Any] = {"n1": state(), "n2": state(gpus=gpus("DPX")), "n3": None}
    found = layouts(odd, three)
    assert [found[name].unplaced for name in ("n1", "n2")] == [("llama-0",)] * 2
    assert len(refused(three, {**odd, "n3": state()})) == 1


def test_a_deployment_that_two_hosts_define_differently() -> None:
    inputs = {
        name: HostInput({"vllm_deployments": [two(port=port)]}, state())
        for name, port in (("n1", 8000), ("n2", 8001))
    }
    _, problems = lay_out_fleet(build_fleet(inputs, {"instinct": ["n1", "n2"]}, catalog()))
    assert [problem.text() for problem in problems] == [
        "vllm_deployments[0] (host n2): deployment llama spans hosts, but is defined differently on n1. Define it "
        "once for all its hosts."
    ]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (
            {"tensor_parallel_size": 8, "pipeline_parallel_size": 3},
            "vllm_deployments[0].tensor_parallel_size (hosts n1, n2): tensor parallel groups of 8 would be split "
            "unevenly across hosts: each has 12 GPUs. Make one a multiple of the other.",
        ),
        (
            {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 3},
            "vllm_deployments[0].data_parallel_size (hosts n1, n2): 3 data parallel ranks cannot be divided over "
            "2 nodes, and none may span two hosts. Make it a multiple of 2.",
        ),
    ],
)
def test_sizes_that_hosts_cannot_share(keys: dict[str, Any], text: str) -> None:
    assert refused([two(**keys)], world("n1", "n2")) == [text]


def test_a_tensor_group_may_span_hosts() -> None:
    found = layouts(world("n1", "n2"), [two(tensor_parallel_size=16, pipeline_parallel_size=1)])
    assert [len(layout.slots[0].gpus) for layout in found.values()] == [8, 8]


# ---- ports -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("port", "meeting", "supervisors"),
    [
        (8000, 28000, 23000),
        (1, 20001, 25001),
        (19999, 29999, 24999),
        (20000, 10000, 15000),
        (29999, 19999, 14999),
        (30000, 20000, 25000),
        (65535, 25535, 20535),
    ],
)
def test_where_an_engines_servers_and_their_supervisors_meet(
    port: int, meeting: int, supervisors: int
) -> None:
    found = fleet(world("n1", "n2"), [two(port=port)]).hosts[0].deployments[0]
    assert rendezvous_port(found, 0) == meeting != port
    assert group_port(meeting) == supervisors != port


def test_ports_where_groups_meet_are_kept_free() -> None:
    pair = [
        two(name="a", gpus=[0], tensor_parallel_size=1),
        two(name="b", gpus=[1], tensor_parallel_size=1, port=18000),
    ]
    assert refused(pair, world("n1", "n2")) == [
        "vllm_deployments[1].port (hosts n1, n2): instances a-0 and b-0 would both listen on port 28000. Choose "
        "another port; instance i of a deployment uses port + i, and engines of several servers meet at 20000 + its "
        "last four digits, and 5000 from there."
    ]


# ---- data parallel -----------------------------------------------------------------------------------


def test_a_server_balances_over_its_own_ranks() -> None:
    found = layouts(world("n1"), [deployment(data_parallel_size=4, tensor_parallel_size=2)])["n1"]
    assert [(len(slot.gpus), slot.rank) for slot in found.slots] == [(8, None)]


def test_external_balancing_makes_a_server_per_rank() -> None:
    wanted = deployment(data_parallel_size=2, data_parallel_balancing="external", tensor_parallel_size=2)
    found = layouts(world("n1"), [{**wanted, "instances_per_host": 2}])["n1"]
    assert [([gpu.index for gpu in slot.gpus], slot.port) for slot in found.slots] == [
        ([0, 1], 8000), ([2, 3], 8001), ([4, 5], 8002), ([6, 7], 8003),
    ]  # fmt: skip
    assert ranks({"n1": found})["n1"] == [
        (0, 0, "127.0.0.1", 28000, 0, False), (0, 0, "127.0.0.1", 28000, 1, False),
        (0, 0, "127.0.0.1", 28002, 0, False), (0, 0, "127.0.0.1", 28002, 1, False),
    ]  # fmt: skip
    assert [slot.ports for slot in found.slots] == [
        (8000, 28000, 23000), (8001,), (8002, 28002, 23002), (8003,),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("balancing", "expected"),
    [
        ("internal", {"n1": [(0, 0, 0, False)], "n2": [(0, 1, 8, True)]}),
        ("hybrid", {"n1": [(0, 0, 0, False)], "n2": [(0, 1, 8, False)]}),
        (
            "external",
            {"n1": [(0, 0, k, False) for k in range(8)], "n2": [(0, 1, k, False) for k in range(8, 16)]},
        ),
    ],
)
def test_data_parallel_over_hosts(balancing: str, expected: dict[str, Any]) -> None:
    wanted = deployment(nodes=2, data_parallel_size=16, data_parallel_balancing=balancing)
    found = layouts(world("n1", "n2"), [wanted])
    short = {
        name: [(rank[0], rank[1], rank[4], rank[5]) for rank in items] for name, items in ranks(found).items()
    }
    assert short == expected
    listening = [port for layout in found.values() for slot in layout.slots for port in slot.ports]
    assert listening.count(28000) == 1
