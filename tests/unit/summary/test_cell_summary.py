# SPDX-License-Identifier: Apache-2.0
"""Cells: medians over their runs, and how well these agree."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.bench.results import compress_lists, separate
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import Redactor
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import ImageSoftware
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.text import text_summary
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.cell_summary import (
    cell_summaries,
    median,
    relative_half_width,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.node_facts import (
    SoftwareSources,
    versions,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.summary import collect
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import ImagePin, Lock

from tests.worlds.bench_samples import (
    GPU_MODELS,
    entry,
    run,
    suite_entries,
    summary_of,
    variables,
    with_result,
)
from tests.worlds.request_timings import Client, Server, simulate

BASE = {"completed": 100, "num_prompts": 100, "failed": 0, "duration": 10.0}


def summaries(*entries: dict[str, Any]) -> list[dict[str, Any]]:
    measured = collect(["n1"], {"n1": variables("n1", list(entries))}, Redactor(), GPU_MODELS)
    return cell_summaries(measured.rows)


def test_medians_of_three_runs_with_their_interval() -> None:
    results = [
        {**BASE, "output_throughput": value, "p90_ttft_ms": value / 10} for value in (99.0, 100.0, 101.0)
    ]
    (row,) = summaries(with_result(entry("n1"), *results))
    assert (row["runs"], row["output_throughput"], row["p90_ttft_ms"], row["p95_ttft_ms"]) == (
        3,
        100.0,
        10.0,
        None,
    )
    assert row["cv"] == pytest.approx(0.01)
    low, high = row["interval"]
    assert (low + high) / 2 == pytest.approx(100.0)
    assert relative_half_width(row) == pytest.approx(4.303 * 0.01 / 3**0.5)
    assert (row["block"], row["order"], row["seed"], row["started"]) == (
        None,
        None,
        None,
        "2026-01-31T10:15:02Z",
    )


def test_one_run_has_no_interval_and_two_have_a_variation() -> None:
    results = [{**BASE, "output_throughput": value} for value in (99.0, 101.0)]
    (one,) = summaries(with_result(entry("n1"), *results[:1]))
    assert (one["runs"], one["cv"], one["interval"], relative_half_width(one)) == (1, None, None, None)
    (two,) = summaries(with_result(entry("n1"), *results))
    assert two["cv"] == pytest.approx(0.01414, abs=1e-5)
    assert two["interval"] is None


def test_failed_requests_of_one_run_are_not_hidden_by_a_median() -> None:
    dying = {**BASE, "completed": 60, "failed": 40, "output_throughput": 9.0}
    results = [{**BASE, "output_throughput": 1.0}, dying, {**BASE, "output_throughput": 2.0}]
    measured = collect(["n1"], {"n1": variables("n1", [with_result(entry("n1"), *results)])}, Redactor())
    (row,) = cell_summaries(measured.rows)
    assert (row["failed"], row["completed"], row["runs"], row["output_throughput"]) == (40, 100, 2, 1.5)
    assert [item.message for item in measured.failures] == [
        "40 of 100 requests failed: such runs only count if there are no others"
    ]
    (alone,) = summaries(with_result(entry("n1"), dying))
    assert (alone["failed"], alone["completed"], alone["runs"], alone["output_throughput"]) == (
        40,
        60,
        1,
        9.0,
    )


def test_a_cell_has_the_median_power_and_the_worst_faults_of_its_runs() -> None:
    gpus = [
        {
            "bdf": "0000:05:00.0", "power_w": power, "energy_j": joules, "throttled": throttled,
            "ecc_uncorrectable": errors, "vbios": "1.2",
        }
        for power, joules, throttled, errors in (
            (700.0, 7000.0, {"ppt": 0.5}, 0), (710.0, 7100.0, {"ppt": 0.1, "prochot": 0.2}, 2),
            (720.0, None, None, 0),
        )
    ]  # fmt: skip
    measured = with_result(entry("n1"), *[{**BASE, "total_output_tokens": 1000}] * 3)
    for one, gpu in zip(measured["runs"], gpus, strict=True):
        one["telemetry"] = {"gpus": [gpu], "problems": [], "shared": False}
    (row,) = summaries(measured)
    assert (row["power_w"], row["joules_per_output_token"], row["power_valid"]) == (705.0, 7.05, False)
    assert row["throttled"] == {"ppt": 0.5, "prochot": 0.2}
    assert row["ecc"] == 2
    (gpu,) = row["gpu_telemetry"]
    assert (gpu["power_w"], gpu["vbios"], gpu["ecc_uncorrectable"]) == (710.0, "1.2", 2)
    assert gpu["throttled"] == row["throttled"]


def test_cells_are_apart_and_the_interval_is_that_of_the_cells_metric() -> None:
    rows = summaries(*suite_entries("n1"))
    assert [row["cell"] for row in rows] == [
        f"in1024-out1024-{load}" for load in ("c16", "c64", "c256", "r4")
    ]
    for row in rows:
        low, high = row["interval"]
        assert low < row[row["metric"]] < high
    assert rows[-1]["metric"] == "median_tpot_ms"


def test_a_failed_cell_is_named() -> None:
    entries = suite_entries("n1")
    entries[1] |= {"runs": [], "error": "the engine died"}
    measured = collect(["n1"], {"n1": variables("n1", entries)}, Redactor())
    assert [(item.what, item.message) for item in measured.failures] == [
        ("serve benchmark of llama-0, in1024-out1024-c64", "the engine died")
    ]
    assert len(cell_summaries(measured.rows)) == 3


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        ([None], None),
        ([1, 2], 1),
        ([1, 3, None], 1),
        ([1.0, 2.0], 1.5),
        (["inf", "inf"], "inf"),
        ([True], True),
    ],
)
def test_median(values: list[Any], expected: Any) -> None:
    assert median(values) == expected


# ---- what single requests show -----------------------------------------------------------------------

LIMITS = [{"name": "chat", "ttft_ms": 310, "tpot_ms": None, "e2el_ms": None}]


def detailed(*raws: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An entry whose runs carry their lists as vllm_bench packs them."""
    runs = []
    for block, raw in enumerate(raws, 1):
        plain, lists = separate("serve", raw)
        runs.append(run(plain, block, detail=compress_lists(lists, 1 << 24)))
    return {**entry("n1", slos=LIMITS, **more), "runs": runs}


def cell_of(concurrency: int) -> dict[str, Any]:
    load = {"kind": "concurrency", "value": concurrency}
    return {"cell": f"c{concurrency}", "load": load, "metric": "output_throughput"}


def test_single_requests_fill_the_steady_part_goodput_and_lag() -> None:
    server = Server()
    raws = [simulate(server, Client(640, concurrency=32), seed=seed) for seed in (1, 2, 3)]
    (row,) = summaries(detailed(*raws, **cell_of(32)))
    assert row["steady_output_throughput"] == pytest.approx(server.truth(32, 200), rel=0.01)
    assert 0.5 < row["steady_share"] < 1
    assert row["send_lag_ms"] == pytest.approx(0, abs=0.02)  # times are carried to 10 µs
    assert row["client_bound"] is False
    assert 0 < row["goodput"]["chat"] < row["request_throughput"]
    assert row["warnings"] == []


def test_a_client_that_sends_late_is_named_and_so_is_a_run_that_was_too_short() -> None:
    late = simulate(server := Server(), Client(640, concurrency=32, lag=0.008))
    short = [simulate(server, Client(64, concurrency=64), seed=seed) for seed in (1, 2)]
    entries = [detailed(late, **cell_of(32)), detailed(*short, **cell_of(64))]
    summary = summary_of({"n1": variables("n1", entries)})
    assert [row["client_bound"] for row in summary["benchmarks"]] == [True, False]
    lines = [line for line in text_summary(summary).splitlines() if line.startswith("NOTE")]
    assert lines == [
        "NOTE    The client, not the server, was the limit of c32.",
        "NOTE    c64: 64 requests are too few: p95 needs 90, p99 needs 459; they are null.",
        "NOTE    c64: the run never reached its load while requests were still being sent: use more requests.",
    ]


def test_lists_that_are_no_such_are_a_failure_of_the_cell() -> None:
    own = detailed(simulate(Server(), Client(8, concurrency=2)), **cell_of(2))
    own["runs"][0]["detail"] = compress_lists({"ttfts": ["soon"], "itls": [[]], "output_lens": [1]}, 1 << 20)
    measured = collect(["n1"], {"n1": variables("n1", [own])}, Redactor())
    assert measured.rows == []
    assert "its lists of requests cannot be read" in measured.failures[0].message


# ---- versions ----------------------------------------------------------------------------------------

DIGEST = "sha256:" + "a" * 64
SOFTWARE = ImageSoftware("0.11.0", "rocm", "7.0.0", "2.9.0", "3.12", None)
UNKNOWN = dict.fromkeys(("vllm", "torch", "rocm", "aiter", "rccl", "driver", "vbios"))


@pytest.mark.parametrize(
    ("plan", "states", "lock", "expected"),
    [
        ({}, [], Lock(), {}),
        ({"vllm": "0.11.0"}, [{"driver": {"version": "6.14"}}], Lock(), {"vllm": "0.11.0", "driver": "6.14"}),
        (
            {"vllm": "0.11.0+rocm"},
            [{}, {"images": [{"digests": [f"r/vllm@{DIGEST}"], "tags": [], "software": SOFTWARE.to_json()}]}],
            Lock(),
            {"vllm": "0.11.0+rocm", "torch": "2.9.0", "rocm": "7.0.0"},
        ),
        (
            {},
            [{"images": [{"digests": [f"r/vllm@{DIGEST}"], "tags": [], "software": {"vllm": "damaged"}}]}],
            Lock({"r/vllm:x": ImagePin(DIGEST, None, SOFTWARE)}),
            {"vllm": "0.11.0", "torch": "2.9.0", "rocm": "7.0.0"},
        ),
        ({}, [{"gpus": [{"vbios": "113-M3000100-103"}, {}]}], Lock(), {"vbios": "113-M3000100-103"}),
    ],
)
def test_versions(plan: Any, states: Any, lock: Lock, expected: dict[str, str]) -> None:
    found = versions(plan, f"r/vllm@{DIGEST}", states, SoftwareSources(lock))
    assert found == {**UNKNOWN, **expected}


def test_versions_of_a_documented_tag() -> None:
    from tests.worlds.catalogue import knowledge

    sources = SoftwareSources(Lock(), knowledge().images)
    found = versions({}, "rocm/vllm:rocm6.4.1_vllm_0.10.0_20250812", [], sources)
    assert (found["vllm"], found["rocm"], found["torch"]) == ("0.10.0", "6.4.1", "2.7.0")
