# SPDX-License-Identifier: Apache-2.0
"""Flags of engines of several GPUs, servers and hosts: what each release takes, held against its parser's data."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.findings import errors
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.parallel import (
    parallel_args,
    parallel_problems,
    uses_ray,
)

from tests.helpers.some import some
from tests.oracles.vllm_parser import check_argv
from tests.worlds.catalogue import knowledge
from tests.worlds.layout_world import layouts
from tests.worlds.plan_world import deployment, state


def flags(wanted: dict[str, Any], version: str, hosts: int = 1) -> dict[str, list[dict[str, Any]]]:
    """Per host the flags of each server."""
    table = knowledge().flags(version)
    found = layouts({f"n{number}": state() for number in range(1, hosts + 1)}, [deployment(**wanted)])
    return {
        name: [
            {item.flag: item.value for item in parallel_args(slot.deployment, slot, table)}
            for slot in layout.slots
        ]
        for name, layout in found.items()
    }


def test_one_gpu_needs_no_flag() -> None:
    assert flags({}, "0.11.1") == {"n1": [{}]}


def test_sizes_within_a_host() -> None:
    wanted = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 2}
    assert flags(wanted, "0.8.3") == {"n1": [wanted]}
    assert flags({**wanted, "data_parallel_balancing": "hybrid"}, "0.11.1") == {"n1": [wanted]}


SPAN = {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}


def test_hosts_by_vllms_own_launcher() -> None:
    common = {**SPAN, "nnodes": 2, "master_addr": "n1", "master_port": 28000}
    assert flags({**SPAN, "nodes": 2}, "0.11.1", 2) == {
        "n1": [{**common, "node_rank": 0}],
        "n2": [{**common, "node_rank": 1, "headless": True}],
    }


@pytest.mark.parametrize(
    ("version", "keys"),
    [("0.11.0", {}), ("0.6.3", {}), ("0.15.0", {"engine_args": {"distributed_executor_backend": "ray"}}),
     ("0.15.0", {"settings": {"executor": "ray"}})],
)  # fmt: skip
def test_hosts_by_ray(version: str, keys: dict[str, Any]) -> None:
    wanted = {**SPAN, "distributed_executor_backend": "ray"}
    assert flags({**SPAN, "nodes": 2, **keys}, version, 2) == {"n1": [wanted], "n2": [wanted]}


def test_ray_is_for_engines_over_hosts_only() -> None:
    asked = {"engine_args": {"distributed_executor_backend": "ray"}, "tensor_parallel_size": 2}
    (slot,) = layouts({"n1": state()}, [deployment(**asked)])["n1"].slots
    assert not uses_ray(slot.deployment, knowledge().flags("0.15.0"))


@pytest.mark.parametrize(
    ("balancing", "first", "second"),
    [
        ("internal", [{"data_parallel_size_local": 2}],
         [{"data_parallel_size_local": 2, "data_parallel_start_rank": 2, "headless": True}]),
        ("hybrid", [{"data_parallel_size_local": 2, "data_parallel_hybrid_lb": True}],
         [{"data_parallel_size_local": 2, "data_parallel_start_rank": 2, "data_parallel_hybrid_lb": True}]),
        ("external", [{"data_parallel_rank": 0}, {"data_parallel_rank": 1}],
         [{"data_parallel_rank": 2}, {"data_parallel_rank": 3}]),
    ],
)  # fmt: skip
def test_data_parallel_over_hosts(balancing: str, first: Any, second: Any) -> None:
    common = {
        "tensor_parallel_size": 2,
        "data_parallel_size": 4,
        "data_parallel_address": "n1",
        "data_parallel_rpc_port": 28000,
    }
    wanted = {"nodes": 2, "data_parallel_size": 4, "tensor_parallel_size": 2}
    assert flags({**wanted, "data_parallel_balancing": balancing}, "0.11.1", 2) == {
        "n1": [{**common, **item} for item in first],
        "n2": [{**common, **item} for item in second],
    }


def test_ranks_of_one_host_meet_on_it() -> None:
    wanted = {"data_parallel_size": 2, "data_parallel_balancing": "external"}
    assert flags(wanted, "0.9.2")["n1"][1] == {
        "data_parallel_size": 2,
        "data_parallel_rank": 1,
        "data_parallel_address": "127.0.0.1",
        "data_parallel_rpc_port": 28000,
    }


SHAPES: list[dict[str, Any]] = [
    {"tensor_parallel_size": 4, "pipeline_parallel_size": 2},
    {"data_parallel_size": 2},
    {"data_parallel_size": 2, "data_parallel_balancing": "external"},
    {**SPAN, "nodes": 2},
    {"nodes": 2, "data_parallel_size": 2},
    {"nodes": 2, "data_parallel_size": 4, "data_parallel_balancing": "hybrid"},
    {"nodes": 2, "data_parallel_size": 4, "data_parallel_balancing": "external"},
]


@pytest.mark.parametrize("version", knowledge().line.releases)
def test_every_release_takes_what_is_not_refused(version: str) -> None:
    table = knowledge().flags(version)
    taken = 0
    for shape in SHAPES:
        nodes = shape.get("nodes", 1)
        found = layouts({f"n{number}": state() for number in range(nodes)}, [deployment(**shape)])
        slots = [slot for layout in found.values() for slot in layout.slots]
        if parallel_problems(slots[0].deployment, table):
            continue
        for slot in slots:
            args = parallel_args(slot.deployment, slot, table)
            words = ["lab/tiny-llama"]
            for item in args:
                words.append("--" + item.flag.replace("_", "-"))
                words += [] if item.value is True else [str(item.value)]
            assert errors(check_argv(table, words)) == (), words
            taken += len(args)
    assert taken


@pytest.mark.parametrize(
    ("shape", "last_without", "text"),
    [
        (
            {"data_parallel_size": 2},
            "0.8.2",
            "vllm_deployments[0].data_parallel_size: needs --data-parallel-size, which came with vLLM 0.8.3, and "
            "this is 0.8.2. Use an image with a newer vLLM.",
        ),
        (
            {"data_parallel_size": 2, "nodes": 2},
            "0.8.5.post1",
            "vllm_deployments[0].nodes: needs --data-parallel-size-local, which came with vLLM 0.9.0, and this is "
            "0.8.5.post1. Use an image with a newer vLLM.",
        ),
        (
            {"data_parallel_size": 2, "data_parallel_balancing": "external"},
            "0.9.1",
            "vllm_deployments[0].data_parallel_balancing: needs --data-parallel-rank, which came with vLLM 0.9.2, "
            "and this is 0.9.1. Use an image with a newer vLLM.",
        ),
        (
            {"data_parallel_size": 4, "nodes": 2, "data_parallel_balancing": "hybrid"},
            "0.9.2",
            "vllm_deployments[0].data_parallel_balancing: needs --data-parallel-hybrid-lb, which came with vLLM "
            "0.10.0, and this is 0.9.2. Use an image with a newer vLLM.",
        ),
    ],
)
def test_what_a_release_cannot_do(shape: dict[str, Any], last_without: str, text: str) -> None:
    found = layouts({"n1": state(), "n2": state()}, [deployment(**shape)])
    wanted = found["n1"].slots[0].deployment
    assert [item.text() for item in parallel_problems(wanted, knowledge().flags(last_without))] == [text]
    line = knowledge().line
    following = line.releases[line.find(last_without).index + 1]
    assert parallel_problems(wanted, knowledge().flags(following)) == ()


def test_reasons_name_catalogued_sources() -> None:
    found = layouts({"n1": state(), "n2": state()}, [deployment(**SPAN, nodes=2)])
    (slot,) = found["n2"].slots
    for version in ("0.11.0", "0.11.1"):
        for item in some(parallel_args(slot.deployment, slot, knowledge().flags(version))):
            assert item.reason
            assert item.source in knowledge().sources or item.source.startswith("deployment llama: ")


@pytest.mark.parametrize(
    ("version", "keys", "text"),
    [
        ("0.11.0", {"engine_args": {"distributed_executor_backend": "mp"}},
         "vllm_deployments[0].engine_args.distributed_executor_backend: mp cannot span hosts in vLLM 0.11.0; 0.11.1 is "
         "the first that can. Use a newer vLLM, or leave it out: older releases join hosts with Ray."),
        ("0.11.0", {"settings": {"executor": "mp"}},
         "vllm_deployments[0].settings.executor: mp cannot span hosts in vLLM 0.11.0; 0.11.1 is the first that can. "
         "Use a newer vLLM, or leave it out: older releases join hosts with Ray."),
        ("0.11.0", {}, None),
        ("0.11.1", {"engine_args": {"distributed_executor_backend": "mp"}}, None),
    ],
)  # fmt: skip
def test_what_else_spans_hosts(version: str, keys: dict[str, Any], text: str | None) -> None:
    placed = layouts({"n1": state(), "n2": state()}, [deployment(**SPAN, nodes=2, **keys)])
    found = parallel_problems(placed["n1"].slots[0].deployment, knowledge().flags(version))
    assert [item.text() for item in found] == ([text] if text else [])
