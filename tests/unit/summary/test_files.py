# SPDX-License-Identifier: Apache-2.0
"""The files of a run: CSV, names, and that nobody sees half of them."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import random
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.benchmarks.bench_metrics import METRICS
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import Redactor
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.text import text_summary
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.run_names import (
    ResultsError,
    free_run,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.files import (
    csv_text,
    json_text,
    raw_names,
    run_files,
    write_run,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.summary import collect

from tests.worlds.bench_samples import (
    entry,
    large_fleet,
    mixed_fleet,
    serve_result,
    small_fleet,
    suite_entries,
    suite_fleet,
    summary_of,
    variables,
)


def test_csv_has_all_metrics_and_what_it_takes_to_measure_again() -> None:
    summary = summary_of(mixed_fleet())
    rows = list(csv.DictReader(io.StringIO(csv_text(summary))))
    assert len(rows) == len(summary["benchmarks"]) == 15
    assert set(METRICS) <= set(rows[0])
    first = rows[0]
    assert (first["cell"], first["runs"], first["cv"], first["interval"]) == ("in128-out2048-b8", "1", "", "")
    assert first["versions"].startswith("aiter=None driver=6.14.14")
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
    odd = entry("n1", model='a,"b"\nc', result=serve_result(random.Random(1), prompts=5000))
    odd["runs"][0]["result"] |= {"p99.9_ttft_ms": 1.5, "host": "from --metadata", "speculative": True}
    rows = list(csv.DictReader(io.StringIO(csv_text(summary_of({"n1": variables("n1", [odd])})))))
    assert rows[0]["model"] == 'a,"b"\nc'
    assert rows[0]["p99.9_ttft_ms"] == "1.5"
    assert rows[0]["host"] == "n1"
    assert rows[0]["vllm_host"] == "from --metadata"
    assert rows[0]["speculative"] == "true"


def test_raw_names_are_safe_and_each_once() -> None:
    one = {"host": "n1", "instance": "a-0", "kind": "serve", "cell": "in8-out8-c2", "block": 1}
    rows = [one, one, {**one, "block": 2}, {**one, "host": "../n:1", "instance": "", "cell": "a/b"}]
    assert raw_names(rows) == [
        "n1__a-0__serve__in8-out8-c2__1.json", "n1__a-0__serve__in8-out8-c2__1-2.json",
        "n1__a-0__serve__in8-out8-c2__2.json", "_n_1_____serve__a_b__1.json",
    ]  # fmt: skip


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
    with pytest.raises(ResultsError, match="not a symbolic link of this toolkit"):
        write_run(tmp_path, "r1", {"a": ""})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest"]


def test_json_text_refuses_nan() -> None:
    assert json.loads(json_text({"ü": None})) == {"ü": None}
    with pytest.raises(ValueError, match="Out of range"):
        json_text({"a": float("nan")})


def test_text_of_a_small_fleet_with_failures() -> None:
    lines = text_summary(summary_of(small_fleet(failures=True))).splitlines()
    assert lines[0] == (
        "Run 20260131T101500Z: 3 benchmarks on 3 nodes, vLLM 0.10.1, 10,736 output tok/s, 10.48 requests/s, "
        "7 of 1,920 requests failed"
    )
    assert lines[1].split()[:3] == ["host", "instance", "tok/s"]
    assert [line.split()[0] for line in lines[2:5]] == ["mi300x-01", "mi300x-02", "mi300x-03"]
    assert "−22%" in lines[4]  # noqa: RUF001
    assert lines[5] == (
        "SUSPECT mi300x-03 GPUs 0, 1, 2, 3, 4, 5, 6, 7: output tok/s 22% below the median, in one run only"
    )
    assert lines[6].endswith("test it with playbooks/burnin.yml --limit mi300x-03,load_balancer.")
    assert [line.split(":")[0] for line in lines[7:]] == [
        "FAILED  mi300x-03", "FAILED  mi300x-04", "FAILED  mi300x-05",
    ]  # fmt: skip


def test_text_of_a_large_fleet_is_short() -> None:
    lines = text_summary(summary_of(large_fleet(42, 6))).splitlines()
    assert len(lines) < 40
    assert lines[2].split()[:2] == ["gpu041", "llama8b-5"]
    assert "the 24 slowest of 246; all of them in benchmarks.csv" in lines


def test_text_of_offline_benchmarks_and_unknown_numbers() -> None:
    fleet = mixed_fleet()
    fleet["n1"]["__benchmark_serve"]["benchmarks"][0]["runs"][0]["result"] = {"completed": 3}
    text = text_summary(summary_of(fleet))
    offline = [line.split(maxsplit=6) for line in text.splitlines() if " throughput " in line]
    assert offline[-1][:4] == ["n10", "llama-0", "throughput", "in128-out2048-all"]
    assert offline[-1][6] == "10,880 total tok/s, – output tok/s"  # noqa: RUF001
    assert "17,306 ms mean, 17,300 ms p50 per batch" in text
    unknown = next(line for line in text.splitlines() if line.split()[:2] == ["n1", "llama-0"])
    assert unknown.split()[2:] == ["–"] * 3 + ["1"] + ["–"] * 5  # noqa: RUF001


def test_text_of_a_suite_has_a_table_for_each_cell() -> None:
    lines = text_summary(summary_of(suite_fleet())).splitlines()
    assert lines[0].startswith("Run 20260131T101500Z: 8 benchmarks on 2 nodes, vLLM 0.10.1, 7,790")
    assert "requests/s with in1024-out1024-c256, 0 of 5,120 requests failed" in lines[0]
    titles = [line for line in lines if line.startswith("in1024")]
    assert titles == [
        "in1024-out1024-c16: 1,024 tokens in, 1,024 out, at most 16 requests at once",
        "in1024-out1024-c64: 1,024 tokens in, 1,024 out, at most 64 requests at once",
        "in1024-out1024-c256: 1,024 tokens in, 1,024 out, at most 256 requests at once",
        "in1024-out1024-r4: 1,024 tokens in, 1,024 out, 4 requests/s offered",
    ]
    row = lines[lines.index(titles[0]) + 2].split()
    assert (row[0], row[1], row[5]) == ("n1", "llama-0", "3")
    assert row[3].startswith("±")
    assert row[4].endswith("%")


def test_text_of_a_large_suite_has_a_line_for_each_cell_and_rates_apart() -> None:
    fleet = {f"n{number}": variables(f"n{number}", suite_entries(f"n{number}")) for number in range(1, 9)}
    lines = text_summary(summary_of(fleet)).splitlines()
    assert len(lines) == 10
    assert [lines[1], lines[6]] == ["At a concurrency:", "At a request rate:"]
    assert [line.split()[:2] for line in lines[3:6]] == [[f"in1024-out1024-c{n}", "8"] for n in (16, 64, 256)]
    assert lines[8].split()[:2] == ["in1024-out1024-r4", "8"]


def test_text_says_which_percentiles_are_missing_and_whether_the_client_was_the_limit() -> None:
    few = entry("n1", result=serve_result(random.Random(1), prompts=80))
    few["runs"][0]["client_cpu_share"] = 0.95
    lines = text_summary(summary_of({"n1": variables("n1", [few])})).splitlines()
    assert lines[3:] == [
        "NOTE    The client, not the server, was the limit of in1024-out1024-c128.",
        "NOTE    in1024-out1024-c128: 80 requests are too few: p95 needs 90, p99 needs 459; they are null.",
    ]


def test_every_run_has_a_row_and_its_own_json() -> None:
    detail = {"ttfts": [0.1], "itls": [[0.02]]}
    entries = suite_entries("n1", repeats=2)
    coded = base64.b64encode(gzip.compress(json.dumps(detail).encode())).decode()
    entries[0]["runs"][1]["detail"] = coded
    fleet = {"n1": variables("n1", entries)}
    files = run_files(collect(["n1"], fleet, Redactor()))
    rows = [json.loads(line) for line in str(files["runs.jsonl"]).splitlines()]
    assert [(row["cell"], row["block"], row["seed"]) for row in rows[:2]] == [
        ("in1024-out1024-c16", 1, 41), ("in1024-out1024-c16", 2, 42),
    ]  # fmt: skip
    assert len(rows) == 8
    compressed = [name for name in files if name.endswith(".gz")]
    assert compressed == ["raw/n1__llama-0__serve__in1024-out1024-c16__2.json.gz"]
    whole = files[compressed[0]]
    assert isinstance(whole, bytes)
    plain = json.loads(str(files[compressed[0].removesuffix(".gz")]))
    assert json.loads(gzip.decompress(whole)) == {**plain, **detail}
    assert len([name for name in files if name.startswith("raw/")]) == 9


def test_text_with_nothing_measured() -> None:
    text = text_summary(summary_of({"n1": {}}))
    assert text.splitlines()[0] == "Run 20260131T101500Z: 0 benchmarks on 0 nodes"
    assert text.splitlines()[1].startswith("FAILED  n1: benchmark: not measured")
