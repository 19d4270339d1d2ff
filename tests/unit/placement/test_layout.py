# SPDX-License-Identifier: Apache-2.0
"""Which GPUs, CPUs and ports the instances of a host get."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.topology import LogicalGpu
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.placement.gpu_groups import group_gpus
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.placement.gpu_shares import ranges
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.placement.layout import lay_out_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.placement.slots import Slot

from tests.worlds.layout_world import layouts, refused
from tests.worlds.plan_world import deployment, fleet, gpus, state


def slots(wanted: dict[str, Any], *, name: str = "llama", **changes: Any) -> list[Slot]:
    """The slots of one deployment on one host."""
    variables = {key: changes.pop(key) for key in list(changes) if key.startswith("gpu_partition")}
    found = layouts({"n1": state(**changes)}, [deployment(**wanted)], **variables)["n1"]
    return [slot for slot in found.slots if slot.deployment.name == name]


def indices(found: list[Slot]) -> list[list[int]]:
    return [[gpu.index for gpu in slot.gpus] for slot in found]


# ---- GPUs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "mode", "expected"),
    [
        ({}, "SPX", [[0]]),
        ({"instances_per_host": "max"}, "SPX", [[gpu] for gpu in range(8)]),
        ({"instances_per_host": "max"}, "CPX", [[gpu] for gpu in range(64)]),
        ({"instances_per_host": "max", "tensor_parallel_size": 2}, "SPX", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ({"instances_per_host": "max", "tensor_parallel_size": 8}, "SPX", [[*range(8)]]),
        ({"instances_per_host": "max", "gpus": [3, 1, 6]}, "SPX", [[3], [1], [6]]),
        ({"instances_per_host": "max", "gpus": [3, 1, 6], "tensor_parallel_size": 2}, "SPX", [[3, 1]]),
        # A group of three leaves one GPU of each socket free rather than cross to the other socket …
        ({"instances_per_host": 2, "tensor_parallel_size": 3}, "SPX", [[0, 1, 2], [4, 5, 6]]),
        # … and six GPUs are of both sockets in any case.
        ({"tensor_parallel_size": 6}, "SPX", [[*range(6)]]),
        # Partitions of one GPU first; of two GPUs of a socket when so many instances are wanted.
        ({"instances_per_host": 2, "tensor_parallel_size": 5}, "CPX", [[*range(5)], [*range(32, 37)]]),
        ({"instances_per_host": 9, "tensor_parallel_size": 5}, "CPX",
         [[*range(i, i + 5)] for i in (0, 32, 10, 42, 20, 52, 25, 57, 5)]),
        # Instances on partitions take all NUMA nodes and all GPUs before any GPU has two.
        ({"instances_per_host": 2}, "CPX", [[0], [32]]),
        ({"instances_per_host": 8}, "CPX", [[gpu] for gpu in (0, 32, 8, 40, 16, 48, 24, 56)]),
        ({"instances_per_host": 16}, "CPX",
         [[gpu + part] for part in (0, 1) for gpu in (0, 32, 8, 40, 16, 48, 24, 56)]),
        ({"instances_per_host": 6}, "DPX", [[gpu] for gpu in (0, 8, 2, 10, 4, 12)]),
        ({"instances_per_host": 4, "tensor_parallel_size": 2}, "CPX", [[0, 1], [32, 33], [8, 9], [40, 41]]),
        ({"instances_per_host": 2, "pipeline_parallel_size": 2}, "CPX", [[0, 1], [32, 33]]),
        ({"instances_per_host": 2, "gpus": [0, 1, 2]}, "CPX", [[0], [1]]),  # the operator's order
        ({"instances_per_host": 2, "tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "SPX",
         [[0, 1, 2, 3], [4, 5, 6, 7]]),
        # Stages of a pipeline may lie on different sockets; the groups within a stage do not.
        ({"tensor_parallel_size": 3, "pipeline_parallel_size": 2}, "SPX", [[0, 1, 2, 4, 5, 6]]),
        ({"data_parallel_size": 4, "tensor_parallel_size": 2}, "SPX", [[*range(8)]]),
    ],
)  # fmt: skip
def test_gpus(wanted: dict[str, Any], mode: str, expected: list[list[int]]) -> None:
    assert indices(slots(wanted, gpus=gpus(mode))) == expected


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("mode", ["DPX", "QPX", "CPX"])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_no_gpu_has_two_instances_more_than_another(mode: str, size: int, nodes: int) -> None:
    cards = [{**gpu, "numa_node": gpu["index"] * nodes // 8} for gpu in gpus(mode)]
    parts = len(cards[0]["partitions"])
    earlier: list[Any] = []
    for count in range(1, 8 * (parts // size)):
        found = slots({"instances_per_host": count, "tensor_parallel_size": size}, gpus=cards)
        on = Counter(slot.gpus[0].gpu for slot in found)
        assert max(on.values()) - (min(on.values()) if len(on) == 8 else 0) <= 1
        at = Counter(slot.gpus[0].numa for slot in found)
        assert max(at.values()) - (min(at.values()) if len(at) == nodes else 0) <= 1
        assert indices(found)[:-1] == earlier  # one more moves none that runs
        earlier = indices(found)


def test_several_instances_share_a_gpu() -> None:
    found = slots({"instances_per_host": "max", "instances_per_gpu": 3, "gpus": [2, 5]})
    assert indices(found) == [[2], [2], [2], [5], [5], [5]]
    assert {slot.share for slot in found} == {1 / 3}
    assert [slot.port for slot in found] == [8000, 8001, 8002, 8003, 8004, 8005]
    assert indices(slots({"instances_per_host": 4, "instances_per_gpu": 3})) == [[0], [0], [0], [1]]


TO_SHARE = (
    " To share it, name it in the gpus of all, and set instances_per_gpu: {count} in each, or gpu_memory_utilization "
    "in each, at most 1 together (without it each takes about 0.9)."
)


def test_deployments_share_a_gpu_up_to_its_memory() -> None:
    half = {"instances_per_gpu": 2, "gpus": [0]}
    pair = [deployment(name="a", **half), deployment(name="b", port=9000, **half)]
    assert indices(list(layouts({"n1": state()}, pair)["n1"].slots)) == [[0], [0]]
    third = deployment(name="c", port=9100, instances_per_gpu=8, gpus=[0])
    assert refused([*pair, third]) == [
        "vllm_deployments[2].gpus (host n1): instances a-0 and c-0 would both use GPU 0, and want 112% of its memory "
        "(0.5 + 0.5 + 0.125). Name other GPUs in gpus; free: 1-7." + TO_SHARE.format(count=3)
    ]


def sharing(*parts: float | str | None, **keys: Any) -> list[dict[str, Any]]:
    """Deployments on GPU 0, each with its part of the memory."""
    return [
        deployment(
            name=f"m{index}",
            port=8000 + 100 * index,
            **{"gpus": [0], **keys},
            engine_args={} if part is None else {"gpu_memory_utilization": part},
        )
        for index, part in enumerate(parts)
    ]


@pytest.mark.parametrize(
    ("parts", "keys"),
    [
        ((0.45, 0.45), {}),
        ((0.6, 0.3), {}),
        ((0.6, 0.3), {"instances_per_gpu": 2}),
        ((0.5, 0.25, 0.25), {}),
        (("0.45", 0.45), {}),
        ((0.45, 0.45), {"tensor_parallel_size": 2, "gpus": [0, 1]}),
    ],
)
def test_unequal_deployments_share_a_gpu(parts: tuple[float, ...], keys: dict[str, Any]) -> None:
    found = layouts({"n1": state()}, sharing(*parts, **keys))["n1"].slots
    assert [slot.share for slot in found] == [float(part) for part in parts]
    assert {tuple(gpu.index for gpu in slot.gpus) for slot in found} == {tuple(keys.get("gpus", [0]))}


@pytest.mark.parametrize(
    ("parts", "keys", "text"),
    [
        ((0.6, 0.45), {}, "m0-0 and m1-0 would both use GPU 0, and want 105% of its memory (0.6 + 0.45)."),
        ((0.6, None), {}, "m0-0 and m1-0 would both use GPU 0."),
        ((None, None), {}, "set instances_per_gpu: 2 in each, or gpu_memory_utilization in each"),
        # Not by accident: who names no GPU wants one of its own.
        ((0.45, 0.45), {"gpus": None}, "m0-0 and m1-0 would both use GPU 0."),
        ((0.9, 0.9), {"tensor_parallel_size": 2, "gpus": [0, 1]}, "set gpu_memory_utilization in each"),
    ],
)
def test_a_gpu_that_is_too_small_for_all(parts: tuple[float, ...], keys: dict[str, Any], text: str) -> None:
    (problem,) = refused(sharing(*parts, **keys))
    assert text in problem


def test_a_part_of_the_memory_alone_shares_nothing() -> None:
    (slot,) = layouts({"n1": state()}, sharing(0.5))["n1"].slots
    assert slot.share == 1


def test_groups_stay_in_an_island_of_eight() -> None:
    """Nobody has seen sixteen in one hive; a host of two boards is planned as two islands."""
    two = [LogicalGpu(index, index, 0, 128 + 8 * index, 1 << 30, index // 8) for index in range(16)]
    assert [[gpu.index for gpu in item] for item in group_gpus(two, 3, 3)] == [
        [0, 1, 2], [3, 4, 5], [8, 9, 10], [11, 12, 13],
    ]  # fmt: skip
    assert group_gpus(two, 16, 16) == ()
    assert [gpu.index for gpu in group_gpus(two, 16, 8)[0]] == [*range(16)]


def test_a_socket_whose_gpus_are_not_next_to_each_other() -> None:
    mixed = [LogicalGpu(index, index, 0, 128 + 8 * index, 1 << 30, index % 2) for index in range(8)]
    assert [[gpu.index for gpu in item] for item in group_gpus(mixed, 4, 4)] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [[gpu.index for gpu in item] for item in group_gpus(mixed, 1, 1, 2)] == [[0], [1]]


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (
            {"tensor_parallel_size": 16},
            "vllm_deployments[0].tensor_parallel_size (host n1): tensor_parallel_size 16 needs 16 GPUs, and the "
            "host has 8 GPUs (0 to 7) in SPX. Lower tensor_parallel_size, or divide it over hosts (nodes: 2, "
            "tensor_parallel_size: 8, pipeline_parallel_size: 2).",
        ),
        (
            {"pipeline_parallel_size": 3, "data_parallel_size": 3, "instances_per_host": "max"},
            "vllm_deployments[0].pipeline_parallel_size (host n1): pipeline_parallel_size 3 x data_parallel_size "
            "3 needs 9 GPUs, and the host has 8 GPUs (0 to 7) in SPX. Lower pipeline_parallel_size, "
            "or divide it over hosts (nodes: 3).",
        ),
        (
            {"tensor_parallel_size": 4, "gpus": [0, 1, 2]},
            "vllm_deployments[0].tensor_parallel_size (host n1): tensor_parallel_size 4 needs 4 GPUs, and gpus "
            "names 3. Lower tensor_parallel_size, or name more GPUs.",
        ),
        (
            {"instances_per_host": 5, "instances_per_gpu": 2, "gpus": [0, 1]},
            "vllm_deployments[0].instances_per_host (host n1): 5 instances with tensor_parallel_size 1 need 3 "
            "GPUs, and gpus names 2. Lower instances_per_host, or name more GPUs.",
        ),
        (
            {"instances_per_host": "max", "port": 65530},
            "vllm_deployments[0].port (host n1): 8 instances from port 65530 on would need ports beyond 65535. "
            "Choose a lower port.",
        ),
    ],
)
def test_what_does_not_fit(wanted: dict[str, Any], text: str) -> None:
    assert refused([deployment(**wanted)]) == [text]


def test_groups_that_no_island_holds() -> None:
    sixteen = {"n1": state(gpus=gpus(count=16))}
    assert refused([deployment(tensor_parallel_size=16)], sixteen) == [
        "vllm_deployments[0].tensor_parallel_size (host n1): tensor_parallel_size 16 needs 16 GPUs, and the host "
        "has 16 GPUs (0 to 15) in SPX, too few of them joined by XGMI. Lower tensor_parallel_size."
    ]
    named = layouts(sixteen, [deployment(tensor_parallel_size=2, gpus=[7, 8])])["n1"]
    assert named.warnings == ("deployment llama: a tensor parallel group has GPUs that XGMI does not join",)


@pytest.mark.parametrize(("port", "count"), [(22, 1), (1023, 1), (1024, 0), (8000, 0)])
def test_a_port_of_the_systems_own_services_is_a_warning(port: int, count: int) -> None:
    warnings = layouts({"n1": state()}, [deployment(port=port)])["n1"].warnings
    assert len(warnings) == count
    assert all(f"deployment llama: port {port} is below 1024" in text for text in warnings)


# ---- CPUs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"gpus": [3]}, "0-95,192-287"),
        ({"gpus": [4]}, "96-191,288-383"),
        ({"gpus": [4, 7], "tensor_parallel_size": 2}, "96-191,288-383"),
        ({"gpus": [3, 4], "tensor_parallel_size": 2}, ""),
        ({"gpus": [3], "runtime": {"numa": "any"}}, ""),
    ],
)
def test_cpus_of_the_gpus_numa_node(wanted: dict[str, Any], expected: str) -> None:
    (slot,) = slots(wanted)
    assert slot.cpus == expected


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([], ""),
        ([{"id": 0, "cpus": "0-7", "memory_bytes": 1}], ""),  # one node: there is nothing to choose
        ([{"id": 0, "cpus": "", "memory_bytes": 1}, {"id": 1, "cpus": "0-7", "memory_bytes": 1}], ""),
        ([{"id": 0, "cpus": "0-7", "memory_bytes": 0}, {"id": 1, "cpus": "8-9"}], "0-7"),
        ([{"id": 2, "cpus": "0-7", "memory_bytes": 1}, {"id": 3, "cpus": "8-9"}], ""),
    ],
)
def test_what_numa_nodes_must_have(nodes: list[dict[str, Any]], expected: str) -> None:
    (slot,) = slots({}, numa_nodes=nodes)
    assert slot.cpus == expected


def test_gpus_whose_node_is_not_known() -> None:
    unknown = [{**gpu, "numa_node": None} for gpu in gpus()]
    found = slots({"instances_per_host": 2, "tensor_parallel_size": 3}, gpus=unknown)
    assert (indices(found), found[0].cpus) == ([[0, 1, 2], [3, 4, 5]], "")


# ---- hosts of one kind -------------------------------------------------------------------------------


def test_equal_hosts_share_slots() -> None:
    found = layouts({f"n{i}": state() for i in range(3)}, [deployment(instances_per_host="max")])
    assert found["n0"] is found["n1"] is found["n2"]
    other = layouts({"n0": state(), "n1": state(gpus=gpus("CPX"))}, [deployment(instances_per_host="max")])
    assert [len(layout.slots) for layout in other.values()] == [8, 64]


def test_problems_name_every_host() -> None:
    text = refused([deployment(tensor_parallel_size=9)], {"n1": state(), "n2": state()})
    assert text[0].startswith("vllm_deployments[0].tensor_parallel_size (hosts n1, n2): ")


# ---- edges -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"gpus": [7]}, []),
        (
            {"gpus": [0, 8, 9], "instances_per_host": 3},
            [
                "vllm_deployments[0].gpus[1] (host n1): GPU 8 does not exist: the host has 8 GPUs (0 to 7) in SPX.",
                "vllm_deployments[0].gpus[2] (host n1): GPU 9 does not exist: the host has 8 GPUs (0 to 7) in SPX.",
            ],
        ),
        ({"instances_per_host": "max", "port": 65528}, []),
        (
            {"instances_per_host": "max", "port": 65529},
            [
                "vllm_deployments[0].port (host n1): 8 instances from port 65529 on would need ports beyond 65535. "
                "Choose a lower port."
            ],
        ),
        ({"instances_per_host": 1, "port": 65535}, []),
    ],
)
def test_gpus_and_ports_up_to_the_last(wanted: dict[str, Any], expected: list[str]) -> None:
    _, found = lay_out_fleet(fleet({"n1": state()}, [deployment(**wanted)]))
    assert [problem.text() for problem in found] == expected


def test_each_pair_of_deployments_is_told_once_at_the_later_one() -> None:
    wanted = [
        deployment(name="a", gpus=[0, 1], instances_per_host=2, port=8000),
        deployment(name="b", gpus=[2, 3], instances_per_host=2, port=8001),
        deployment(name="c", gpus=[3, 4], instances_per_host=2, port=9000),
        deployment(name="d", gpus=[0, 1], instances_per_host=2, port=8000),
    ]
    assert refused(wanted) == [
        "vllm_deployments[1].port (host n1): instances a-1 and b-0 would both listen on port 8001. Choose another "
        "port; instance i of a deployment uses port + i.",
        "vllm_deployments[3].port (host n1): instances a-0 and d-0 would both listen on port 8000. Choose another "
        "port; instance i of a deployment uses port + i.",
        "vllm_deployments[2].gpus (host n1): instances b-1 and c-0 would both use GPU 3. Name other GPUs in gpus; "
        "free: 5-7." + TO_SHARE.format(count=2),
        "vllm_deployments[3].gpus (host n1): instances a-0 and d-0 would both use GPU 0. Name other GPUs in gpus; "
        "free: 5-7." + TO_SHARE.format(count=2),
    ]


def test_no_gpu_is_left() -> None:
    both = [
        deployment(name="a", instances_per_host="max"),
        deployment(name="b", gpus=[5], port=9000),
    ]
    assert refused(both) == [
        "vllm_deployments[1].gpus (host n1): instances a-5 and b-0 would both use GPU 5. Name other GPUs in gpus; "
        "none is free." + TO_SHARE.format(count=2)
    ]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([4], "4"), ([2, 0, 1, 5], "0-2, 5"), ([0, 2, 4], "0, 2, 4"), ([3, 4, 7, 8, 9], "3-4, 7-9")],
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_hosts_are_of_one_kind_by_all_that_their_layout_follows_from() -> None:
    """A shared layout of hosts that differ would place instances on GPUs that are not there."""
    wanted = [deployment(instances_per_host="max")]
    states = {
        "same": state(), "alike": state(), "fewer": state(gpus=gpus(count=4)), "partitions": state(gpus=gpus("DPX")),
        "sockets": state(numa_nodes=[]),
    }  # fmt: skip
    found = layouts(states, wanted)
    assert {name: len(layout.slots) for name, layout in found.items()} == {
        "same": 8, "alike": 8, "fewer": 4, "partitions": 16, "sockets": 8,
    }  # fmt: skip
    assert found["same"] is found["alike"]
    assert [found[name].slots[0].cpus for name in ("same", "sockets")] == ["0-95,192-287", ""]
    own = {"n2": {"gpu_partition_compute": "CPX"}}
    changed = layouts({"n1": state(), "n2": state()}, wanted, own=own)
    assert [(len(changed[name].slots), changed[name].repartition) for name in ("n1", "n2")] == [
        (8, False),
        (64, True),
    ]
    offline = {"n1": None, "n2": None}
    declared = {
        "n1": {"instinct_gpus": {"model": "MI300X", "count": 8}},
        "n2": {"instinct_gpus": {"model": "MI300X", "count": 4}},
    }
    wanted = [deployment(instances_per_host="max", vllm_version="0.11.1")]
    assert [len(item.slots) for item in layouts(offline, wanted, offline=True, own=declared).values()] == [
        8,
        4,
    ]
