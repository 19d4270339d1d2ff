# SPDX-License-Identifier: Apache-2.0
"""Rows of InferenceX: all of its keys, its units, and the label that it asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.exports import inferencex
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.exports.run_results import (
    RunResults,
    parse_run,
)

from tests.worlds.export_samples import old_results, suite_results

IDENTITY = [
    "hw",
    "conc",
    "image",
    "model",
    "infmax_model_prefix",
    "framework",
    "precision",
    "spec_decoding",
    "disagg",
    "isl",
    "osl",
    "is_multinode",
    "tp",
    "pp",
    "dcp_size",
    "pcp_size",
    "ep",
    "dp_attention",
    "recipe_fingerprint",
]
MEASURED = [
    *("tput_per_gpu", "output_tput_per_gpu", "input_tput_per_gpu"),
    *(f"{stat}_{name}" for stat in ("mean", "median", "std", "p50", "p90", "p95", "p99")
      for name in ("ttft", "tpot", "itl", "e2el", "intvty")),
]  # fmt: skip
POWER = [
    "power_valid",
    "power_metric_schema_version",
    "avg_power_w",
    "avg_total_gpu_power_w",
    "total_gpu_energy_j",
    "joules_per_successful_query",
    "joules_per_input_token",
    "joules_per_output_token",
    "joules_per_total_token",
]


def rows(results: RunResults) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(inferencex.export(results).files["unofficial_agg_bmk.json"])
    return found


def test_a_row_has_all_of_its_keys() -> None:
    first = rows(suite_results())[0]
    assert set(first) == {"unofficial", "label", *IDENTITY, *MEASURED, *POWER}


def test_identity_of_a_row() -> None:
    first = rows(old_results())[0]
    assert {key: first[key] for key in IDENTITY if key not in ("image", "recipe_fingerprint")} == {
        "hw": "mi300x",
        "conc": 128,
        "model": "amd/Llama-3.1-70B-Instruct-FP8-KV",
        "infmax_model_prefix": None,
        "framework": "vllm",
        "precision": "fp8",
        "spec_decoding": "none",
        "disagg": False,
        "isl": 1024,
        "osl": 1024,
        "is_multinode": False,
        "tp": 8,
        "pp": 1,
        "dcp_size": 1,
        "pcp_size": 1,
        "ep": 1,
        "dp_attention": "false",
    }


def test_seconds_and_interactivity() -> None:
    row = suite_results(p99_ttft_ms=1500.0, median_tpot_ms=25.0, p90_itl_ms=None).cells[0]
    made = inferencex.agg_row(suite_results(), row)
    assert (made["p99_ttft"], made["median_tpot"], made["median_intvty"]) == (1.5, 0.025, 40.0)
    assert "p90_itl" not in made


def test_rates_are_per_gpu() -> None:
    first = rows(suite_results())[0]
    assert (first["tput_per_gpu"], first["output_tput_per_gpu"], first["input_tput_per_gpu"]) == (
        800.0,
        400.0,
        400.0,
    )


def test_power_is_derived_from_the_energy_of_all_gpus() -> None:
    first = rows(suite_results(duration_s=100.0, completed=640))[0]
    assert first["total_gpu_energy_j"] == 2.0 * 655360
    assert first["avg_total_gpu_power_w"] == 2.0 * 655360 / 100
    assert first["avg_power_w"] == 2.0 * 655360 / 100 / 8
    assert (first["joules_per_total_token"], first["joules_per_successful_query"]) == (1.0, 2048.0)


@pytest.mark.parametrize(
    ("valid", "keys"), [(False, {"power_valid", "power_metric_schema_version"}), (None, set())]
)
def test_invalid_power_leaves_no_number(valid: bool | None, keys: set[str]) -> None:
    assert set(POWER) & set(rows(suite_results(power_valid=valid))[0]) == keys


def test_data_parallel_attention_is_counted_as_tensor_parallel() -> None:
    command = 'vllm serve m -dp 8 --enable-expert-parallel --speculative-config \'{"method": "mtp"}\''
    first = rows(suite_results(serve_command=command))[0]
    assert (first["tp"], first["ep"], first["dp_attention"], first["spec_decoding"]) == (8, 8, "true", "mtp")
    assert first["tput_per_gpu"] == 800.0


def test_an_engine_over_two_hosts() -> None:
    command = "vllm serve m --tensor-parallel-size 8 --pipeline-parallel-size 2"
    first = rows(suite_results(serve_command=command))[0]
    assert (first["is_multinode"], first["tput_per_gpu"]) == (True, 400.0)


def test_every_file_says_that_it_is_unofficial() -> None:
    made = inferencex.export(suite_results()).files
    assert all(path.startswith("unofficial_") for path in made)
    assert all(
        row["unofficial"] is True and row["label"].startswith("Unofficial") for row in rows(suite_results())
    )
    assert all("Unofficial" in line for line in made["unofficial_frontier.csv"].splitlines()[1:])


def test_the_fingerprint_is_of_the_recipe_not_of_the_place() -> None:
    def of(**more: Any) -> str:
        return inferencex.fingerprint(suite_results(**more).cells[0])

    here = of(serve_command="vllm serve m --port 8000 -tp 8", env={"HIP_VISIBLE_DEVICES": "0", "A": "1"})
    there = of(serve_command="vllm serve m --port 8001 -tp 8", env={"HIP_VISIBLE_DEVICES": "1", "A": "1"})
    other = of(serve_command="vllm serve m --port 8001 -tp 4", env={"HIP_VISIBLE_DEVICES": "1", "A": "1"})
    assert here == there != other


def test_frontier_of_interactivity_and_throughput() -> None:
    def point(interactivity: float, throughput: float, **more: Any) -> dict[str, Any]:
        curve = dict.fromkeys(("hw", "framework", "model", "precision", "spec_decoding", "isl", "osl"))
        return {**curve, "median_intvty": interactivity, "tput_per_gpu": throughput, **more}

    points = [
        point(10, 900),
        point(40, 500),
        point(30, 400),
        point(5, 800),
        point(40, 450),
        point(50, 1, hw="b"),
    ]
    found = [(item["median_intvty"], item["tput_per_gpu"]) for item in inferencex.frontier(points)
             if item["on_frontier"] == "true"]  # fmt: skip
    assert found == [(40, 500), (10, 900), (50, 1)]


def test_rows_that_it_does_not_have_are_said() -> None:
    said = inferencex.export(suite_results()).omitted
    assert said == ("n1/llama-0 in1024-out1024-r2: InferenceX has rows at a concurrency only.",)
    parts = {"host": "n1", "instance": "a-0", "kind": "serve", "max_concurrency": 4, "gpus": [0]}
    results = parse_run({"benchmarks": [parts], "hosts": {"n1": {"compute_partition": "CPX", "gpus": []}}})
    assert inferencex.export(results).omitted[0].endswith("and these are partitioned (CPX).")
    assert rows(results) == []
