# SPDX-License-Identifier: Apache-2.0
"""llm-d's benchmark report: the structure that its schema wants, for whatever a row knows."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.exports import llm_d
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.exports.run_results import (
    RunResults,
    parse_run,
)

from tests import ROOT
from tests.worlds.bench_samples import large_fleet, mixed_fleet, small_fleet, summary_of
from tests.worlds.export_samples import old_results, suite_results

SCHEMA = json.loads((ROOT / "tests/data/exports/llm_d_report.schema.json").read_text("utf-8"))
LITTLE = {"host": "n1", "instance": "a-0", "kind": "serve", "completed": 3}


def reports(results: RunResults) -> list[dict[str, Any]]:
    return [json.loads(text) for text in llm_d.export(results).files.values()]


def errors(report: dict[str, Any]) -> list[str]:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(report)]


@pytest.mark.parametrize(
    "results",
    [
        pytest.param(old_results(), id="old"),
        pytest.param(suite_results(), id="suite"),
        pytest.param(suite_results(output_throughput=None, mean_ttft_ms=None, started=None), id="unknown"),
        pytest.param(suite_results(shape=None, command=None, serve_command=None, env=None), id="no commands"),
        pytest.param(parse_run(summary_of(mixed_fleet())), id="mixed"),
        pytest.param(parse_run(summary_of(small_fleet(failures=True))), id="failures"),
        pytest.param(parse_run(summary_of(large_fleet(4, 2))), id="eight"),
        pytest.param(parse_run({"benchmarks": [LITTLE]}), id="little"),
    ],
)
def test_it_has_the_structure(results: RunResults) -> None:
    found = reports(results)
    assert found
    assert [errors(report) for report in found] == [[]] * len(found)


@pytest.mark.parametrize(
    "change",
    [
        lambda report: report["results"].update(other=1),
        lambda report: report["run"].pop("uid"),
        lambda report: report["scenario"]["load"]["standardized"].update(concurrency=0),
        lambda report: report["results"]["request_performance"]["aggregate"]["latency"][
            "time_to_first_token"
        ].pop("mean"),
        lambda report: report["results"]["request_performance"]["aggregate"]["throughput"][
            "request_rate"
        ].update(units="s"),
    ],
)
def test_the_schema_can_refuse(change: Any) -> None:
    report = reports(suite_results())[0]
    change(report)
    assert errors(report)


def test_units_and_load() -> None:
    first = reports(suite_results())[0]
    aggregate = first["results"]["request_performance"]["aggregate"]
    assert aggregate["latency"]["time_to_first_token"]["units"] == "ms"
    assert aggregate["latency"]["time_to_first_token"]["p50"] == pytest.approx(407.1, abs=0.1)
    assert aggregate["latency"]["time_per_output_token"]["units"] == "ms/token"
    assert aggregate["throughput"]["output_token_rate"] == {"units": "tokens/s", "mean": 3199.0}
    assert aggregate["requests"]["input_length"] == {"units": "count", "mean": 1024.0}
    load = first["scenario"]["load"]["standardized"]
    assert (load["concurrency"], load.get("rate_qps"), load["source"]) == (128, None, "random")
    assert load["output_seq_len"] == {"distribution": "fixed", "value": 1024}
    assert first["run"]["time"] == {
        "start": "2026-01-31T10:15:02Z",
        "end": "2026-01-31T10:18:13Z",
        "duration": "PT191.5S",
    }
    engine = first["scenario"]["stack"][0]["standardized"]
    assert engine["accelerator"] == {
        "model": "MI300X",
        "count": 8,
        "parallelism": {"tp": 8, "pp": 1, "dp": 1},
    }
    assert engine["tool_version"] == "0.11.1"


def test_a_rate_is_no_concurrency() -> None:
    rates = [item["scenario"]["load"]["standardized"] for item in reports(suite_results())][-3:]
    assert [(load.get("rate_qps"), load.get("concurrency")) for load in rates] == [(2.0, None)] * 3


def test_each_run_is_a_report_of_its_own_and_of_the_same_experiment() -> None:
    found = reports(suite_results())
    assert len(found) == len({item["run"]["uid"] for item in found}) == 9
    assert {item["run"]["eid"] for item in found} == {"20260131T101500Z"}
    assert [item["run"]["uid"] for item in reports(suite_results())] == [item["run"]["uid"] for item in found]


def test_the_latency_of_a_batch_is_none_of_a_request() -> None:
    made = llm_d.export(old_results())
    assert [path.split("__")[2] for path in made.files] == ["in1024-out1024-c128", "in2048-out2048"]
    assert made.omitted == ("n1/llama-0 in2048-out128-b8: llm-d's report has no latency of a batch.",)
