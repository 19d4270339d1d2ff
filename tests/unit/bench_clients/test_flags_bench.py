# SPDX-License-Identifier: Apache-2.0
"""Command lines of the benchmark clients, in every release."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.benchmarks.bench_metrics import (
    METRICS,
    normalise,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.bench_clients.bench_args import (
    BenchCommand,
    bench_args,
    bench_table,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.findings import errors

from tests.helpers.some import some
from tests.oracles.vllm_parser import check_argv
from tests.worlds.bench_arguments import LATENCY, OFFLINE, SERVE, SERVED
from tests.worlds.catalogue import CATALOG, DATA, knowledge

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


def command(version: str, kind: str, served: list[str] | None = None, **arguments: Any) -> BenchCommand:
    found = knowledge()
    return bench_args(found.flags(version), found.bench, found.bench_book, kind, {}, arguments, served or ())


@pytest.mark.parametrize(
    ("kind", "arguments"), [("serve", SERVE), ("latency", LATENCY), ("throughput", OFFLINE)]
)
def test_what_is_rendered_is_accepted(kind: str, arguments: dict[str, Any]) -> None:
    found = knowledge()
    for release in some(RELEASES):
        made = command(release, kind, SERVED, **arguments)
        table = bench_table(found.flags(release), found.bench, made.table)
        assert table is not None
        rest = made.argv[3:] if made.argv[0] == "vllm" else made.argv[2:]
        assert made.findings == ()
        assert check_argv(table, rest) == (), f"{release}: {made.argv}"


@pytest.mark.parametrize(
    ("version", "kind", "arguments", "has", "lacks"),
    [
        (
            "0.7.3",
            "serve",
            {"temperature": 0},
            ["python3", "/app/vllm/benchmarks/benchmark_serving.py"],
            "--temperature",
        ),
        ("0.9.0", "serve", {"length_spread": 0}, ["--random-range-ratio", "1.0"], "--backend"),
        ("0.9.0", "serve", {"api": "completions"}, ["--endpoint-type", "openai-comp"], "--backend"),
        ("0.9.1", "serve", {"length_spread": 0}, ["--random-range-ratio", "0"], "--backend"),
        (
            "0.9.2",
            "serve",
            {"api": "chat"},
            ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions"],
            "--x",
        ),
        ("0.15.0", "serve", {"temperature": 0}, ["--temperature", "0"], "--endpoint-type"),
        ("0.6.3", "serve", {"served_model_name": "tiny"}, ["--model", "tiny"], "--served-model-name"),
        ("0.7.0", "serve", {"served_model_name": "tiny"}, ["--served-model-name", "tiny"], "--model"),
        # As the operator writes them, who has a newer or an older release in mind.
        ("0.13.0", "throughput", {"random_input_len": 5}, ["--input-len", "5"], "--random-input-len"),
        ("0.13.0", "serve", {"input_len": 5}, ["--random-input-len", "5"], "--input-len"),
        ("0.14.0", "serve", {"input-len": 5}, ["--input-len", "5"], "--random-input-len"),
        (
            "0.7.3",
            "throughput",
            {"dataset_name": "random", "num_prompts": 5},
            ["--num-prompts", "5"],
            "--dataset-name",
        ),
        ("0.11.0", "serve", {"percentile_metrics": ["ttft"]}, ["--percentile-metrics", "ttft"], "--x"),
        ("0.11.0", "serve", {"metric_percentiles": [50, 99]}, ["--metric-percentiles", "50,99"], "--x"),
        (
            "0.11.0",
            "serve",
            {"goodput": {"ttft": 500, "tpot": 50}},
            ["--goodput", "ttft:500", "tpot:50"],
            "--x",
        ),
        ("0.11.0", "serve", {"metadata": {"tp": 8}}, ["--metadata", "tp=8"], "--x"),
        ("0.11.0", "latency", {"tp": 4}, ["--tensor-parallel-size", "4"], "--tp"),
        ("0.11.0", "latency", {"no_enable_prefix_caching": True}, ["--no-enable-prefix-caching"], "--x"),
        ("0.13.0", "throughput", {"input_len": 5}, ["--input-len", "5"], "--random-input-len"),
        ("0.14.0", "throughput", {"random_input_len": 5}, ["--random-input-len", "5"], "--input-len"),
        (
            "0.33.0",
            "throughput",
            {"dataset_name": "sharegpt", "dataset_path": "f"},
            ["--dataset-path", "f"],
            "--dataset",
        ),
        (
            "0.7.3",
            "throughput",
            {"dataset_name": "sharegpt", "dataset_path": "f"},
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
        ("0.9.0", "serve", {"length_spread": 0.5}, True, "0.9.1 is the first release that can"),
        ("0.9.0", "serve", {"temperature": 0.7}, True, "0.9.1 is the first release that can"),
        ("0.11.0", "serve", {"warmups": 3}, False, "0.11.1 is the first release that can"),
        ("0.6.3", "serve", {"max_concurrency": 3}, False, "0.6.4 is the first release that can"),
        # What only another client of the same kind has, a script or `vllm bench`.
        (
            "0.7.3",
            "serve",
            {"dataset_name": "prefix_repetition"},
            True,
            "0.10.1 is the first release that can",
        ),
        ("0.8.0", "serve", {"dataset_name": "sharegpt"}, True, "0.9.1 is the first release that can"),
        ("0.7.3", "serve", {"prefix_repetition_prefix_len": 9}, True, "0.10.1 is the first release that can"),
        ("0.33.0", "serve", {"dataset_name": "sonnet"}, True, "an earlier release took it"),
        ("0.11.0", "serve", {"batch_size": 3}, True, "is not a flag of vLLM 0.11.0"),
        ("0.11.0", "serve", {"num_promts": 3}, True, "Did you mean num_prompts?"),
        ("0.11.0", "serve", {"num_prompts": "x"}, True, "not a whole number"),
        ("0.13.0", "throughput", {"input_len": "x"}, True, "not a whole number"),
        ("0.7.3", "throughput", {"dataset_name": "sonnet"}, True, "0.8.0 is the first release that can"),
        (
            "0.7.3",
            "throughput",
            {"dataset_name": "sonet"},
            True,
            "cannot be expressed with vLLM 0.7.3's client",
        ),
        ("0.11.0", "latency", {"iteration": 3}, True, "Did you mean iterations?"),
        ("0.13.0", "throughput", {"random_inputlen": 3}, True, "Did you mean random_input_len?"),
        ("0.99.0", "serve", {"flag_of_then": 3}, False, "is not a flag"),
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


def test_the_servers_words_go_behind_what_is_measured() -> None:
    """A client gets of its server's command line what concerns it, and the operator's word counts."""
    found = knowledge()
    table, data, book = found.flags("0.19.0"), found.bench, found.bench_book
    for kind, given, argv in (
        ("serve", {"tokenizer": "t"}, ["--tokenizer", "t", "--trust-remote-code", "--tokenizer-mode", "auto"]),
        (
            "latency",
            {"max_num_seqs": 8},
            ["--tensor-parallel-size", "8", "--kv-cache-dtype=fp8", "--max-num-seqs", "8", "--trust-remote-code",
             "--tokenizer-mode", "auto"],
        ),
    ):  # fmt: skip
        measured = {"model": "m", **({"tokenizer": "own"} if kind == "serve" else {})}
        made = bench_args(table, data, book, kind, measured, given, SERVED)
        assert list(made.argv) == ["vllm", "bench", kind, "--model", "m", *argv]


def test_what_a_newer_release_may_have_is_given_as_it_is_written() -> None:
    assert command("0.99.0", "serve", flag_of_then=3).argv[-2:] == ("--flag-of-then", "3")


@pytest.mark.parametrize("kind", ["serve", "latency", "throughput"])
def test_what_results_of_all_releases_say_is_understood(kind: str) -> None:
    """Every number that bench_results.yml lists and the report has is read, under whichever name."""
    required = {"serve": "completed", "latency": "avg_latency", "throughput": "elapsed_time"}[kind]
    for item in some(yaml.safe_load((CATALOG / "vllm/bench_results.yml").read_text())[kind]["keys"]):
        name = item.get("is", item["key"])
        if name in METRICS and name != "request_rate" and item["unit"] != "text":
            assert normalise(kind, {required: 4, item["key"]: 4})[name] == 4, item
