# SPDX-License-Identifier: Apache-2.0
"""The files of a run: CSV, names, and that nobody sees half of them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.bench_metrics import METRICS
from ansible_collections.instinct.fleet.plugins.plugin_utils.report.files import (
    ResultsError,
    check_run,
    csv_text,
    free_run,
    json_text,
    raw_names,
    write_run,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.report.text import text_summary

from tests.worlds.bench_samples import entry, large_fleet, mixed_fleet, small_fleet, summary_of, variables


def test_csv_has_all_metrics_and_what_it_takes_to_measure_again() -> None:
    summary = summary_of(mixed_fleet())
    rows = list(csv.DictReader(io.StringIO(csv_text(summary))))
    assert len(rows) == len(summary["benchmarks"]) == 15
    assert set(METRICS) <= set(rows[0])
    first = rows[0]
    assert (first["run"], first["host"], first["instance"]) == ("20260131T101500Z", "n1", "llama-0")
    assert first["gpus"] == "0 1 2 3"
    assert (first["rocm"], first["compute_partition"], first["numa_balancing"]) == ("7.0.0", "SPX", "0")
    assert first["cpu"].startswith("AMD EPYC")
    assert "HF_HUB_OFFLINE=1" in first["env"]
    assert first["backend"] == ""  # a latency benchmark has none
    served = next(row for row in rows if row["kind"] == "serve")
    assert served["backend"] == "openai"
    assert served["request_goodput"] == ""
    assert float(served["output_throughput"]) == summary["benchmarks"][1]["output_throughput"]


def test_csv_keeps_odd_text_and_percentiles_and_renames_what_clashes() -> None:
    odd = entry("n1", model='a,"b"\nc')
    odd["result"] |= {"p99.9_ttft_ms": 1.5, "host": "from --metadata", "speculative": True}
    rows = list(csv.DictReader(io.StringIO(csv_text(summary_of({"n1": variables("n1", [odd])})))))
    assert rows[0]["model"] == 'a,"b"\nc'
    assert rows[0]["p99.9_ttft_ms"] == "1.5"
    assert rows[0]["host"] == "n1"
    assert rows[0]["vllm_host"] == "from --metadata"
    assert rows[0]["speculative"] == "true"


def test_raw_names_are_safe_and_each_once() -> None:
    rows = [
        {"host": "n1", "instance": "a-0", "kind": "serve"},
        {"host": "n1", "instance": "a-0", "kind": "serve"},
        {"host": "../n:1", "instance": "", "kind": "latency"},
    ]
    assert raw_names(rows) == ["n1__a-0__serve.json", "n1__a-0__serve-2.json", "_n_1_____latency.json"]


@pytest.mark.parametrize("run", ["latest", "", ".x", "a/b", "..", "x" * 65, "a b"])
def test_bad_names_of_runs(run: str) -> None:
    with pytest.raises(ResultsError, match="cannot name a run"):
        check_run(run)


def test_write_run(tmp_path: Path) -> None:
    results = tmp_path / "results"
    first = write_run(results, "r1", {"summary.json": "{}\n", "raw/a.json": "[]\n"})
    assert first == results / "r1"
    assert (results / "latest").readlink() == Path("r1")
    assert free_run(results, "r1") == "r1-2"
    write_run(results, "r1-2", {"summary.json": "{}\n"})
    assert free_run(results, "r1") == "r1-3"
    assert (results / "latest").resolve() == results / "r1-2"
    assert (first / "raw/a.json").read_text() == "[]\n"
    assert sorted(path.name for path in results.iterdir()) == ["latest", "r1", "r1-2"]


def test_nothing_is_left_of_a_run_that_cannot_be_written(tmp_path: Path) -> None:
    write_run(tmp_path, "r1", {"a": ""})
    with pytest.raises(OSError, match="r2"):
        write_run(tmp_path, "r2", {"a": "", "a/b": ""})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "r1"]
    assert (tmp_path / "latest").readlink() == Path("r1")


def test_a_directory_called_latest_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    with pytest.raises(ResultsError, match="not a symbolic link of ours"):
        write_run(tmp_path, "r1", {"a": ""})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest"]


def test_json_text_refuses_nan() -> None:
    assert json.loads(json_text({"ü": None})) == {"ü": None}
    with pytest.raises(ValueError, match="Out of range"):
        json_text({"a": float("nan")})


def test_text_of_a_small_fleet_with_failures() -> None:
    lines = text_summary(summary_of(small_fleet(failures=True))).splitlines()
    assert lines[0] == (
        "Run 20260131T101500Z: 3 benchmarks on 3 nodes, 10,736 output tok/s, 10.48 requests/s, "
        "7 of 1,920 requests failed"
    )
    assert lines[1].split()[:3] == ["host", "instance", "tok/s"]
    assert [line.split()[0] for line in lines[2:5]] == ["mi300x-01", "mi300x-02", "mi300x-03"]
    assert "−22% slow" in lines[4]  # noqa: RUF001
    assert lines[5].startswith("SLOW    mi300x-03: output tok/s 22% below the median, TPOT p50")
    assert [line.split(":")[0] for line in lines[6:]] == [
        "FAILED  mi300x-03", "FAILED  mi300x-04", "FAILED  mi300x-05",
    ]  # fmt: skip


def test_text_of_a_large_fleet_is_short() -> None:
    lines = text_summary(summary_of(large_fleet(42, 6))).splitlines()
    assert len(lines) < 40
    assert lines[2].split()[:2] == ["gpu041", "llama8b-5"]
    assert "the 24 slowest of 246; all of them in benchmarks.csv" in lines


def test_text_of_offline_benchmarks_and_unknown_numbers() -> None:
    fleet = mixed_fleet()
    fleet["n1"]["__benchmark_serve"]["benchmarks"][0]["result"] = {"completed": 3}
    text = text_summary(summary_of(fleet))
    assert "n10   llama-0   throughput  10,880 total tok/s, – output tok/s" in text  # noqa: RUF001
    assert "17,300 ms p50, 17,348 ms p99 per batch" in text
    unknown = next(line for line in text.splitlines() if line.split()[:2] == ["n1", "llama-0"])
    assert unknown.split()[2:] == ["–"] * 6  # noqa: RUF001


def test_text_with_nothing_measured() -> None:
    text = text_summary(summary_of({"n1": {}}))
    assert text.splitlines()[0] == "Run 20260131T101500Z: 0 benchmarks on 0 nodes"
    assert text.splitlines()[1].startswith("FAILED  n1: benchmark: not measured")
