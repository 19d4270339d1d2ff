# SPDX-License-Identifier: Apache-2.0
"""Interfaces and RDMA ports of engines over hosts, and what is said of groups before anything stops."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.node_state import Hca
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.placement.layout import lay_out_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.placement.network import (
    choose_hcas,
    gid_index,
    group_address,
    network_of,
)

from tests.worlds.catalogue import knowledge
from tests.worlds.network_world import ethernet, node, rail
from tests.worlds.plan_world import deployment, fleet, gpus

SPAN = {"nodes": 2, "tensor_parallel_size": 8, "pipeline_parallel_size": 2}


def told(first: dict[str, Any], second: dict[str, Any], **keys: Any) -> tuple[list[str], list[str]]:
    """Problems and warnings of two hosts that run an engine together; `own`: variables of hosts."""
    own = keys.pop("own", {})
    addresses = {f"n{i}": {"ansible_host": f"10.0.0.{i}", **own.get(f"n{i}", {})} for i in (1, 2)}
    wanted = fleet({"n1": first, "n2": second}, [deployment(**{**SPAN, **keys})], own=addresses)
    layouts, problems = lay_out_fleet(wanted)
    return [item.text() for item in problems], [text for found in layouts.values() for text in found.warnings]


# ---- what a host uses --------------------------------------------------------------------------------


def test_a_hosts_variables_have_reasons_and_sources() -> None:
    (host,) = fleet({"n1": node(1)}, [deployment()], own={"n1": {"ansible_host": "10.0.0.1"}}).hosts
    place, _ = group_address(host)
    assert place
    found = network_of(host, place)
    assert {item.setting: item.value for item in found.env} == {
        "VLLM_HOST_IP": "10.0.0.1",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_IB_HCA": "=" + ",".join(f"mlx5_{number}:1" for number in range(8)),
        "NCCL_IB_GID_INDEX": "3",
    }
    assert found.devices == ("/dev/infiniband",)
    assert all(item.reason and item.source in knowledge().sources for item in found.env)


@pytest.mark.parametrize(
    ("address", "interfaces", "wanted"),
    [
        ("10.0.0.1", [ethernet(1)], ("10.0.0.1", "eth0")),
        ("fd00:0::1", [ethernet(1, addresses=["10.0.0.1", "fd00::1"])], ("fd00:0::1", "eth0")),
        ("10.0.0.1", [], None),
        # A name will do where there is one address only; bridges and rails do not count.
        ("n1", [ethernet(1), ethernet(9, name="docker0"), ethernet(8, name="rdma0")], ("10.0.0.1", "eth0")),
        (
            "n1", [ethernet(1), ethernet(2, name="ens9")],
            "host n1: its address is a name (n1), but the host has several addresses: eth0 10.0.0.1, ens9 10.0.0.2. "
            "Set instinct_address to the address at which the other hosts of its group reach it.",
        ),
        (
            "198.51.100.1", [ethernet(1)],
            "host n1: its address 198.51.100.1 is on none of its interfaces (eth0 10.0.0.1). Set instinct_address to "
            "the address at which the other hosts of its group reach it.",
        ),
    ],
)  # fmt: skip
def test_where_a_host_is_in_the_network(address: str, interfaces: Any, wanted: Any) -> None:
    known = node(1, interfaces=interfaces)
    (host,) = fleet({"n1": known}, [deployment()], own={"n1": {"ansible_host": address}}).hosts
    place, problem = group_address(host)
    found = (place.address, place.interface.name) if place else problem and problem.text()
    assert found == wanted


def hcas(*items: dict[str, Any]) -> list[Hca]:
    return [
        Hca(item["name"], item["port"], item["state"] == "ACTIVE", item["layer"], item["rate"],
            item["interface"], item["gid_index"])
        for item in items
    ]  # fmt: skip


DOWN = {"state": "DOWN", "rate": 40}
RAILS = [rail(number) for number in range(8)]


@pytest.mark.parametrize(
    ("ports", "chosen", "left"),
    [
        ([], "", ""),
        ([rail(0, **DOWN)], "", ""),
        (RAILS, "0 1 2 3 4 5 6 7", ""),
        # A link that is down now does not change an engine's variables.
        ([*RAILS[:3], rail(3, **DOWN), *RAILS[4:]], "0 1 2 3 4 5 6 7", ""),
        ([rail(8, rate=100, interface="eth0"), *RAILS], "0 1 2 3 4 5 6 7", "not mlx5_8:1 (100 Gb/s)"),
        ([*RAILS, rail(8, interface="eth0")], "0 1 2 3 4 5 6 7", "not mlx5_8:1 (the host's address is on its eth0)"),
        # One of as many as GPUs has the address: it is a rail too. And the only one there is.
        ([rail(0, interface="eth0"), *RAILS[1:]], "0 1 2 3 4 5 6 7", ""),
        ([rail(0, interface="eth0")], "0", ""),
        ([rail(0, layer="InfiniBand"), rail(1, layer="InfiniBand"), rail(2)], "0 1", "not mlx5_2:1 (Ethernet)"),
        ([rail(10), rail(9)], "9 10", ""),
    ],
)  # fmt: skip
def test_ports_for_traffic_between_gpus(ports: list[dict[str, Any]], chosen: str, left: str) -> None:
    found, out = choose_hcas(hcas(*ports), "eth0", 8)
    assert (" ".join(item.name[5:] for item in found), out) == (chosen, left)


@pytest.mark.parametrize(
    ("ports", "wanted"),
    [
        (RAILS, 3),
        ([rail(0), rail(1, gid_index=5)], None),
        ([rail(0), rail(1, gid_index=None, **DOWN)], 3),
        ([rail(0, layer="InfiniBand", gid_index=None)], None),
    ],
)
def test_the_index_of_the_gid(ports: list[dict[str, Any]], wanted: int | None) -> None:
    assert gid_index(hcas(*ports)) == wanted


# ---- groups ------------------------------------------------------------------------------------------


def test_a_group_that_is_well() -> None:
    assert told(node(1), node(2)) == ([], [])


def test_hosts_differ_and_the_head_has_a_number() -> None:
    other = node(2, interfaces=[ethernet(2, name="ens1f0")], rdma=[rail(n, gid_index=5) for n in range(8)])
    found, problems = lay_out_fleet(fleet({"n1": node(1), "n2": other}, [deployment(**SPAN)]))
    assert problems == ()
    networks = [slot.network for one in found.values() for slot in one.slots]
    values = [{item.setting: item.value for item in one.env} for one in networks if one]
    assert [one["GLOO_SOCKET_IFNAME"] for one in values] == ["eth0", "ens1f0"]
    assert [one["NCCL_IB_GID_INDEX"] for one in values] == ["3", "5"]
    assert {slot.rank.master for one in found.values() for slot in one.slots if slot.rank} == {"10.0.0.1"}


def test_engines_within_a_host_have_no_network() -> None:
    found, _ = lay_out_fleet(fleet({"n1": node(1)}, [deployment(tensor_parallel_size=8)]))
    assert found["n1"].slots[0].network is None


@pytest.mark.parametrize(
    ("second", "keys", "text"),
    [
        (
            node(2, interfaces=[ethernet(2, up=False)]), {},
            "host n2: eth0, the interface with its address 10.0.0.2, is down. Bring the interface up, or set "
            "instinct_address to another address.",
        ),
        (
            node(2), {"env": {"VLLM_HOST_IP": "10.0.0.1"}},
            "vllm_deployments[0].env.VLLM_HOST_IP (host n2): 10.0.0.1 is not an address of n2; each host of the "
            "group needs its own. Leave the variable out: it is 10.0.0.2 here.",
        ),
        (
            node(2, rdma=[]), {},
            "host n2: has no active RDMA port, but n1 of its group have one: RCCL would not connect. Repair them "
            "(ibstat, ls /dev/infiniband), or let all hosts use TCP: env: {NCCL_IB_DISABLE: \"1\"}, slowly.",
        ),
        (
            node(2, rdma=[rail(n, layer="InfiniBand", gid_index=None) for n in range(8)]), {},
            "host n2: its RDMA ports are InfiniBand, but those of n1 are Ethernet: RCCL cannot connect them. Choose "
            "ports in env: {NCCL_IB_HCA: …}.",
        ),
        (
            node(2, interfaces=[ethernet(2, addresses=["fd00::2"])]), {"own": {"n2": {"ansible_host": "fd00::2"}}},
            "host n2: its address fd00::2 is IPv6, but that of n1 is IPv4. Set instinct_address to addresses of the "
            "same kind.",
        ),
        (
            node(2, interfaces=[ethernet(1)]), {"own": {"n2": {"ansible_host": "10.0.0.1"}}},
            "host n2: has the same address as n1, 10.0.0.1. Set instinct_address to the address at which the other "
            "hosts of its group reach it.",
        ),
        (
            node(2), {"own": {"n2": {"ansible_host": "127.0.0.1"}}},
            "host n2: the other hosts of its group (n1) cannot reach n2 at 127.0.0.1. Set instinct_address to its "
            "address in the cluster's network.",
        ),
        (
            node(2, gpus=[{**gpu, "memory_partition": "NPS4"} for gpu in gpus()]), {},
            "host n2: deployment llama spans n1 in NPS1 and n2 in NPS4. Set the same gpu_partition_memory on hosts "
            "that run an engine together.",
        ),
    ],
)  # fmt: skip
def test_what_makes_a_group_hang_is_an_error(second: dict[str, Any], keys: dict[str, Any], text: str) -> None:
    assert told(node(1), second, **keys)[0] == [text]


@pytest.mark.parametrize(
    ("second", "keys", "text"),
    [
        (
            node(2, interfaces=[ethernet(2, mtu=9000)]), {},
            "interfaces of its hosts differ in their MTU (n1 eth0 1500, n2 eth0 9000): large packets may be lost "
            "between them",
        ),
        (
            node(2, rdma=[*RAILS[:7], rail(7, **DOWN)]), {},
            "n2 has 7 active RDMA ports, but others of its group have 8 (mlx5_7:1 down): RCCL pairs ports by their "
            "position in the list, so all hosts get slower",
        ),
        (
            node(2, rdma=[*RAILS[:7], rail(7, gid_index=None)]), {},
            "mlx5_7 of n2 have no RoCE v2 address: give their interfaces IPv4 addresses",
        ),
        (
            node(2), {"runtime": {"ulimits": {"memlock": 8388608}}},
            "runtime.ulimits.memlock is limited, but RDMA needs locked memory: leave it out",
        ),
    ],
)  # fmt: skip
def test_what_makes_it_slow_is_a_warning(second: dict[str, Any], keys: dict[str, Any], text: str) -> None:
    assert told(node(1), second, **keys) == ([], [f"deployment llama: {text}"])


def test_without_rdma_it_is_tcp() -> None:
    slow = "deployment llama: its hosts have no active RDMA ports: RCCL uses TCP between them, which is slow"
    assert told(node(1, rdma=[]), node(2, rdma=[])) == ([], [slow])
    assert told(node(1), node(2, rdma=[]), env={"NCCL_IB_DISABLE": "1"}) == ([], [])
    problems, warnings = told(node(1, verbs=False), node(2, verbs=False))
    unusable = "has RDMA devices, but no /dev/infiniband to use them: modprobe ib_uverbs"
    assert problems == []
    assert sorted(warnings) == sorted([slow, *(f"deployment llama: n{n} {unusable}" for n in (1, 2))])
