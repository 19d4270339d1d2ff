# SPDX-License-Identifier: Apache-2.0
"""Command lines of the benchmark clients, in every release."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.catalog.bench_args import (
    BenchCommand,
    bench_args,
    bench_table,
    canonical_result,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.catalog.findings import errors

from tests.oracles.vllm_parser import check_argv
from tests.unit.catalogue import DATA, knowledge
from tests.unit.some import some

RELEASES = knowledge().line.releases
SPEC = ["--speculative-model", "x", "--num-speculative-tokens", "5"]
LENGTHS = ["--input-len", "128", "--output-len", "128"]
RANDOM = ["--dataset-name", "random", "--random-input-len", "128", "--random-output-len", "128"]
THROUGHPUT = [
    "--distributed-executor-backend", "mp", "--kv-cache-dtype", "fp8", "--dtype", "float16",
    "--gpu-memory-utilization", "0.9", "--trust-remote-code", "--model", "m", "--max-model-len", "8192",
    "--max-num-batched-tokens", "131072", "--max-seq-len-to-capture", "131072", *LENGTHS,
    "--tensor-parallel-size", "8", "--num-prompts", "1000", "--max-num-seqs", "2000",
]  # fmt: skip
SERVING = [
    "--model",
    "m",
    *RANDOM,
    "--num-prompts",
    "500",
    "--percentile-metrics",
    "ttft,tpot,itl,e2el",
    "--ignore-eos",
]
# The command lines behind the names in bench_parse_matrix.json: AMD's documents, and one probe per flag.
CASES = {
    "seed000_serving": ["--port", "8000", *SERVING, "--request-rate", "1"],
    "seed002_serving": ["--backend", "vllm", "--model", "m", "--max-concurrency", "256", *RANDOM],
    "seed003_bench": ["--host", "localhost", *SERVING, "--max-concurrency", "64", "--seed", "123"],
    "save": [
        "--model",
        "m",
        "--save-result",
        "--result-dir",
        "r",
        "--metadata",
        "a=b",
        "--goodput",
        "ttft:500",
        "tpot:50",
    ],
    "warmups": ["--model", "m", "--num-warmups", "4"],
    "ready": ["--model", "m", "--ready-check-timeout-sec", "600"],
    "temp": ["--model", "m", "--temperature", "0"],
    "endpoint-type": ["--model", "m", "--endpoint-type", "openai"],
    "backend": ["--model", "m", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"],
    "no-model": [],
    "range": ["--model", "m", "--random-range-ratio", "0.5"],
    "detailed": ["--model", "m", "--save-result", "--save-detailed"],
    "burst": ["--model", "m", "--burstiness", "0.5"],
    "seed000_latency": [
        "--model",
        "m",
        "--quantization",
        "fp8",
        "--batch-size",
        "1",
        *LENGTHS,
        "--num-iters",
        "5",
    ],
    "seed000_spec": [
        "--model",
        "m",
        "-tp",
        "8",
        "--batch-size",
        "1",
        "--use-v2-block-manager",
        *LENGTHS,
        *SPEC,
    ],
    "seed002_spec": ["--model", "m", "-tp", "8", "--batch-size", "1", *LENGTHS, *SPEC],
    "seed002_deepseek": [
        "--model",
        "m",
        "--max-model-len",
        "32768",
        "--block-size=1",
        "--batch-size",
        "8",
        *LENGTHS,
    ],
    "enforce_eager": ["--model", "m", "--enforce-eager"],
    "seed000_throughput": ["--num-scheduler-steps", "10", "--enable-chunked-prefill", "False", *THROUGHPUT],
    "seed002_throughput": ["--disable-detokenize", *THROUGHPUT],
    "seed001_dataset": ["--model", "m", "--dataset", "f.json"],
    "modern_random": ["--model", "m", *RANDOM],
    "modern_input_len": ["--model", "m", "--dataset-name", "random", *LENGTHS],
}
# benchmark_latency.py and benchmark_throughput.py of 0.6.3 and 0.6.3.post1 spelled out a part of the engine's flags
# themselves; from 0.6.4 on they take them all, which is what bench.json says of the script.
EXCEPTIONS = {
    ("benchmarks/benchmark_latency.py", "seed000_spec", "0.6.3.post1"),
    ("benchmarks/benchmark_throughput.py", "seed000_throughput", "0.6.3.post1"),
    ("benchmarks/benchmark_latency.py", "seed002_deepseek", "0.6.3.post1"),
}
MATRIX: dict[str, dict[str, str]] = json.loads((DATA / "bench_parse_matrix.json").read_text())


def test_every_case_is_known() -> None:
    assert {key.partition(" :: ")[2] for key in MATRIX} == set(CASES)


@pytest.mark.parametrize("key", MATRIX)
def test_every_verdict_of_the_real_parsers(key: str) -> None:
    """The benchmark command lines of 16 releases: accepted or refused as the release's own parser does it."""
    found = knowledge()
    command, _, case = key.partition(" :: ")
    for release, verdict in some(MATRIX[key].items()):
        table = bench_table(found.flags(release), found.bench, command)
        assert table is not None
        refused = errors(check_argv(table, CASES[case]))
        agrees = (verdict == "ok") == (not refused)
        said = f"{release}: {verdict} / {[item.text() for item in refused]}"
        assert agrees != ((command, case, release) in EXCEPTIONS), said


def command(version: str, kind: str, engine: dict[str, Any] | None = None, **arguments: Any) -> BenchCommand:
    found = knowledge()
    return bench_args(found.flags(version), found.bench, found.bench_book, kind, arguments, engine)


SERVE: dict[str, Any] = {
    "model": "m", "base_url": "http://127.0.0.1:8000", "api": "completions", "dataset": "random", "input_len": 1024,
    "output_len": 128, "num_prompts": 100, "request_rate": 2.0, "percentiles": [50, 99], "ignore_eos": True,
    "save_result": True, "result_directory": "/bench", "result_file": "x.json", "seed": 0,
}  # fmt: skip
LATENCY: dict[str, Any] = {
    "model": "m", "input_len": 128, "output_len": 128, "batch_size": 8, "iterations": 5, "warmup_iterations": 2,
    "output_json": "/bench/x.json",
}  # fmt: skip
OFFLINE: dict[str, Any] = {
    "model": "m", "dataset": "random", "input_len": 128, "output_len": 128, "num_prompts": 100,
    "output_json": "/bench/x.json",
}  # fmt: skip
ENGINE: dict[str, Any] = {"tensor_parallel_size": 8, "kv_cache_dtype": "fp8", "max_num_seqs": 256}


@pytest.mark.parametrize(
    ("kind", "arguments", "engine"),
    [("serve", SERVE, {}), ("latency", LATENCY, ENGINE), ("throughput", OFFLINE, ENGINE)],
)
def test_what_is_rendered_is_accepted(kind: str, arguments: dict[str, Any], engine: dict[str, Any]) -> None:
    found = knowledge()
    for release in some(RELEASES):
        made = command(release, kind, engine, **arguments)
        table = bench_table(found.flags(release), found.bench, made.table)
        assert table is not None
        rest = made.argv[3:] if made.argv[0] == "vllm" else made.argv[2:]
        assert made.findings == ()
        assert check_argv(table, rest) == (), f"{release}: {made.argv}"


@pytest.mark.parametrize(
    ("version", "kind", "arguments", "has", "lacks"),
    [
        ("0.7.3", "serve", {}, ["python3", "/app/vllm/benchmarks/benchmark_serving.py"], "--temperature"),
        ("0.9.0", "serve", {"api": "completions"}, ["--random-range-ratio", "1.0"], "--backend"),
        ("0.9.0", "serve", {"api": "completions"}, ["--endpoint-type", "openai-comp"], "--backend"),
        ("0.9.1", "serve", {"api": "completions"}, ["--random-range-ratio", "0"], "--backend"),
        (
            "0.9.2",
            "serve",
            {"api": "chat"},
            ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions"],
            "--x",
        ),
        ("0.15.0", "serve", {}, ["--temperature", "0"], "--endpoint-type"),
        ("0.15.0", "serve", {}, ["--percentile-metrics", "ttft,tpot,itl,e2el"], "--endpoint-type"),
        ("0.13.0", "throughput", {"input_len": 5}, ["--input-len", "5"], "--random-input-len"),
        ("0.14.0", "throughput", {"input_len": 5}, ["--random-input-len", "5"], "--input-len"),
        (
            "0.33.0",
            "throughput",
            {"dataset": "sharegpt", "dataset_path": "f"},
            ["--dataset-path", "f"],
            "--dataset",
        ),
        (
            "0.7.3",
            "throughput",
            {"dataset": "sharegpt", "dataset_path": "f"},
            ["--dataset", "f"],
            "--dataset-path",
        ),
    ],
)
def test_what_changed_between_releases(
    version: str, kind: str, arguments: dict[str, Any], has: list[str], lacks: str
) -> None:
    argv = list(command(version, kind, **arguments).argv)
    start = argv.index(has[0])
    assert argv[start : start + len(has)] == has
    assert lacks not in argv


@pytest.mark.parametrize(
    ("version", "kind", "arguments", "error", "said"),
    [
        ("0.9.0", "serve", {"length_spread": 0.5}, True, "it can from 0.9.1 on"),
        ("0.9.0", "serve", {"temperature": 0.7}, True, "it can from 0.9.1 on"),
        ("0.11.0", "serve", {"warmups": 3}, False, "it can from 0.11.1 on"),
        ("0.11.0", "serve", {"batch_size": 3}, True, "not an argument of a serve benchmark"),
        ("0.11.0", "serve", {"num_promts": 3}, True, "Did you mean num_prompts?"),
        ("0.11.0", "serve", {"num_prompts": "3"}, True, "must be int"),
    ],
)
def test_what_cannot_be_said(
    version: str, kind: str, arguments: dict[str, Any], error: bool, said: str
) -> None:
    findings = command(version, kind, **arguments).findings
    assert len(findings) == 1
    assert findings[0].is_error == error
    assert said in findings[0].text()


def test_an_unknown_kind() -> None:
    with pytest.raises(ValueError, match="Did you mean serve"):
        command("0.11.0", "server")


def test_results_of_all_releases_have_the_same_names() -> None:
    book = knowledge().bench_results
    old = canonical_result(book, "serve", {"request_goodput:": 1.5, "num_prompts": 10, "completed": 8})
    assert old == {"request_goodput": 1.5, "num_prompts": 10, "completed": 8, "failed": 2}
    assert canonical_result(book, "serve", {"failed": 1, "num_prompts": 10, "completed": 8})["failed"] == 1
