# SPDX-License-Identifier: Apache-2.0
"""What differs between two sides besides their speed, and how rows of older runs are read."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.commands import options
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.configuration import (
    differences,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.requests import LoadPoint
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.rows import (
    TokenLengths,
    cell_name,
    load_of,
    shape_of,
)

from tests.worlds.bench_samples import small_fleet, summary_of
from tests.worlds.compared_runs import COMMAND, row, side


def found(a: dict[str, Any], b: dict[str, Any], **facts: Any) -> list[tuple[str, str, str, str]]:
    pair = side("a", [row(**a)], **facts), side("b", [row(**b)])
    return [(item.what, item.name, item.a, item.b) for item in differences(*pair)]


@pytest.mark.parametrize(
    ("a", "difference"),
    [
        ({"image": "new"}, ("image", "name", "new", "vllm/vllm-openai-rocm:v0.14.0")),
        ({"digest": "sha256:1"}, ("image", "digest", "sha256:1", "sha256:" + "a" * 64)),
        ({"versions": {"vllm": "0.15.0", "torch": "2.9.0"}}, ("version", "vllm", "0.15.0", "0.14.0")),
        ({"versions": {"vllm": "0.14.0"}}, ("version", "torch", "", "2.9.0")),
        ({"serve_command": COMMAND + " --enforce-eager"}, ("option", "--enforce-eager", "true", "")),
        ({"serve_command": COMMAND.replace("512", "64")}, ("option", "--max-num-seqs", "64", "512")),
        ({"env": {}}, ("environment", "VLLM_ROCM_USE_AITER", "", "1")),
    ],
)
def test_one_difference(a: dict[str, Any], difference: tuple[str, str, str, str]) -> None:
    assert found(a, {}) == [difference]


def test_differences_of_hosts() -> None:
    gpus = [{"model": "MI300X", "vbios": "1"}, {"model": "MI300X", "vbios": "2"}]
    facts = {
        "driver": "6.16.1",
        "cmdline": ["root=UUID=1", "iommu=pt"],
        "gpus": gpus,
        "cpu": {"model": "EPYC"},
    }
    assert found({}, {}, **facts) == [
        ("host", "cpu", "EPYC", ""),
        ("host", "driver", "6.16.1", "6.14.14"),
        ("host", "gpu vbios", "1 2", ""),
        ("host", "kernel command line", "iommu=pt", ""),
    ]


@pytest.mark.parametrize(
    "a",
    [
        {},
        {"serve_command": COMMAND.replace("8000", "8001"), "port": 8001},
        {"env": {"VLLM_ROCM_USE_AITER": "1", "HIP_VISIBLE_DEVICES": "1"}},
    ],
)
def test_an_engine_on_another_port_or_gpu_is_no_other(a: dict[str, Any]) -> None:
    assert found(a, {}) == []


def test_cells_of_one_side_only_do_not_count() -> None:
    other = row(cell="c1", load={"kind": "concurrency", "value": 1}, image="other")
    assert differences(side("a", [row(), other]), side("b", [row()])) == []


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (None, {}),
        ("vllm serve 'x", {}),
        (
            "vllm serve m --a=1 --b_c 2 --flag --list x y",
            {"--a": "1", "--b-c": "2", "--flag": "true", "--list": "x y"},
        ),
        ("m --a 1 --a 2 --json '{\"x\": 1}'", {"--a": "2", "--json": '{"x": 1}'}),
        ("m -tp 8 --seed -1 -O3", {"--tensor-parallel-size": "8", "--seed": "-1", "-O3": "true"}),
    ],
)
def test_options_of_a_command(command: str | None, named: dict[str, str]) -> None:
    assert options(command) == named


def test_rows_of_before_there_were_suites() -> None:
    rows = summary_of(small_fleet())["benchmarks"]
    assert (cell_name(rows[0]), load_of(rows[0]), shape_of(rows[0])) == (
        "in1024-out1024-c128", LoadPoint("concurrency", 128), TokenLengths(1024, 1024),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "name", "load"),
    [
        ({"kind": "serve", "request_rate": 4.0, "max_concurrency": 8}, "r4", LoadPoint("rate", 4)),
        ({"kind": "serve", "request_rate": "inf"}, "serve", LoadPoint("all")),
        ({"kind": "serve", "request_rate": "inf", "max_concurrency": 8}, "c8", LoadPoint("concurrency", 8)),
        ({"load": {"kind": "rate", "value": 4}, "cell": "own"}, "own", LoadPoint("rate", 4)),
        (
            {"kind": "latency", "command": "x --input-len 128 --batch-size 8"},
            "in128-b8",
            LoadPoint("batch", 8),
        ),
        ({"kind": "throughput", "command": "x --output-len 64"}, "out64", LoadPoint("all")),
    ],
)
def test_cells_by_their_commands(given: dict[str, Any], name: str, load: LoadPoint) -> None:
    assert (cell_name(given), load_of(given)) == (name, load)
