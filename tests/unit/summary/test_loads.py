# SPDX-License-Identifier: Apache-2.0
"""The loads of a deployment: throughput per GPU, interactivity, their intervals, and the GPUs by address."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.load_sections import (
    ROOFLINE,
    roofline_text,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.gpu_spread import (
    MOST_LANES,
    GpuReading,
    gpu_readings,
    lanes,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.loads import (
    Interval,
    curves,
    gpu_count,
    load_figures,
)

from tests.worlds.bench_samples import suite_fleet, summary_of
from tests.worlds.report_fleet import page

HOSTS = {"n1": {"gpus": [{"index": number, "bdf": f"b{number}", "partitions": 8} for number in range(2)]}}


def row(host: str = "n1", output: float = 1000.0, tpot: float = 20.0, **more: Any) -> dict[str, Any]:
    cell = {
        "cell": "in8-out4-c2",
        "shape": {"input": 8, "output": 4},
        "load": {"kind": "concurrency", "value": 2},
    }
    found = {
        "host": host, "instance": "a-0", "kind": "serve", **cell, "gpus": [0, 1], "serve_command": "vllm serve m",
        "output_throughput": output, "median_tpot_ms": tpot, "metric": "output_throughput", "interval": None,
        "power_w": None, "hbm_share": None, "flop_share": None, "roofline_note": None,
    }  # fmt: skip
    return found | more


@pytest.mark.parametrize(
    ("rows", "hosts", "count"),
    [
        ([row()], {}, 2),
        ([row(), row("n2")], {}, 4),
        ([row(gpus=[0, 1, 2, 3]), row(gpus=[4, 5, 6, 7], instance="a-1")], HOSTS, 1),  # partitions of one GPU
        ([row(gpus=[0, 8])], HOSTS, 2),
        ([row(serve_command="vllm serve m -tp 2 --pipeline-parallel-size 2")], {}, 4),  # over two nodes
        ([row(gpus=[])], {}, 0),
    ],
)
def test_gpus_are_counted_once(rows: list[Any], hosts: Any, count: int) -> None:
    assert gpu_count(rows, hosts) == count


def test_sums_and_intervals_of_instances() -> None:
    rows = [row(), row("n2", 3000.0, 30.0)]
    runs = [
        row(item["host"], item["output_throughput"] * factor, item["median_tpot_ms"] * factor)
        for item in rows
        for factor in (0.99, 1.0, 1.01)
    ]
    (found,) = load_figures(rows, runs, {})
    assert (found.gpus, found.power_w, found.joules) == (4, None, None)
    assert found.per_gpu is not None
    assert found.per_user is not None
    assert found.per_gpu.value == 1000.0
    assert found.per_user.value == pytest.approx(1000 / 25)
    # Student's t with two degrees of freedom: 4.303 * 0.01 / sqrt(3) of each instance.
    share = 4.303 * 0.01 / 3**0.5
    assert found.per_gpu.high == pytest.approx(1000 + share * (1000**2 + 3000**2) ** 0.5 / 4)
    assert found.per_user.half_width == pytest.approx(share * 2**0.5 / 2)


def test_a_run_with_failed_requests_widens_no_interval() -> None:
    """It is left out as in the median, unless there are no others."""
    good = [row(output=output) for output in (990.0, 1000.0, 1010.0)]
    died = row(output=100.0, failed=500)
    (found,) = load_figures([row()], [*good, died], {})
    assert found.per_gpu == load_figures([row()], good, {})[0].per_gpu
    (failed,) = load_figures([row()], [{**run, "failed": 1} for run in good], {})
    assert failed.per_gpu == found.per_gpu


def test_without_enough_runs_there_is_no_interval() -> None:
    (found,) = load_figures([row()], [row(), row()], {})
    assert found.per_gpu == Interval(500.0)
    assert load_figures([row(output=None, median_tpot_ms=None)], [], {})[0].per_gpu is None
    (summed,) = load_figures([row(interval=[990.0, 1010.0])], [], {})
    assert summed.per_gpu == Interval(500.0, 495.0, 505.0)


def test_curves_are_of_one_shape_and_one_kind_of_load() -> None:
    summary = summary_of(suite_fleet())
    found = curves(load_figures(summary["benchmarks"], [], summary["hosts"]))
    assert [(curve.name, curve.kind, [label for label, _point in curve.points]) for curve in found] == [
        ("1,024 tokens in, 1,024 out", "concurrency", ["256", "64", "16"]),
        ("1,024 tokens in, 1,024 out", "rate", ["4"]),
    ]


@pytest.mark.parametrize(
    ("cell", "shape", "name"),
    [
        ("16k-in8-out4-c2", {"input": 8, "output": 4}, "16k: 8 tokens in, 4 out"),
        ("sharegpt-c2", None, "sharegpt"),
        ("c2", None, "the data set's lengths"),
        ("in8-out4-r2-c16", {"input": 8, "output": 4}, "8 tokens in, 4 out"),
    ],
)
def test_names_of_curves(cell: str, shape: Any, name: str) -> None:
    assert curves(load_figures([row(cell=cell, shape=shape)], [], {}))[0].name == name


def test_power_of_all_instances_or_none() -> None:
    rows = [row(power_w=1400.0), row("n2", power_w=1000.0)]
    (found,) = load_figures(rows, [], {})
    assert (found.power_w, found.joules) == (600.0, 1.2)
    assert load_figures([rows[0], row("n2")], [], {})[0].power_w is None


def test_shares_of_the_roofline_are_medians_of_the_instances() -> None:
    rows = [row("n1", hbm_share=0.3, flop_share=0.05), row("n2", hbm_share=0.4), row("n3", hbm_share=0.8)]
    (found,) = load_figures(rows, [], {})
    assert (found.hbm, found.flop) == (0.4, 0.05)
    assert roofline_text([found]) == f"{ROOFLINE}"
    lacking = load_figures([row(hbm_share=0.3, roofline_note="so"), row("n2", roofline_note="so")], [], {})
    assert roofline_text(lacking) == f"{ROOFLINE} –: so."  # noqa: RUF001
    assert not roofline_text(load_figures([row(roofline_note="so")], [], {}))


def test_gpus_by_address() -> None:
    summary, _around = page(16, 4)
    cell = [row for row in summary["benchmarks"] if row["cell"] == "in1024-out1024-c256"]
    found = gpu_readings(cell, summary["hosts"], summary["gpu_verdicts"])
    assert len(found) == 15 * 8
    assert {(item.host, item.index) for item in found if item.flagged} == {
        ("mi300x-05", n) for n in (4, 5, 6, 7)
    }
    first = found[0]
    assert (first.host, first.index, first.bdf, first.instances) == (
        "mi300x-01",
        0,
        "0000:05:00.0",
        ("llama-0",),
    )
    assert first.values["per_gpu"] == pytest.approx(cell[0]["output_throughput"] / 4)
    assert first.values["power_w"] == pytest.approx(745, rel=0.1)
    assert len(lanes(found)) == 8


def test_the_rarest_addresses_are_left_out() -> None:
    usual = [GpuReading("a", n, f"{n:02}", (), {}) for n in range(MOST_LANES)]
    rare = [GpuReading("b", n, f"x{n}", (), {}) for n in range(3)]
    assert lanes([*usual, *usual, *rare]) == [reading.bdf for reading in usual]
