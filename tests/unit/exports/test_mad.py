# SPDX-License-Identifier: Apache-2.0
"""AMD's own files: its names, its columns, and values in the units that the columns name."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.exports import mad
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.exports.run_results import (
    RunResults,
    parse_run,
)

from tests.worlds.bench_samples import large_fleet, small_fleet, summary_of
from tests.worlds.export_samples import offline_entry, old_results, suite_results

REPORTS = "n1__llama-0/reports_float16/summary/Llama-3.1-70B-Instruct"


def table(results: RunResults, path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(mad.export(results).files[path])))


def test_files_of_an_instance_have_amds_names() -> None:
    assert list(mad.export(old_results()).files) == [
        "n1__llama-0/perf_Llama-3.1-70B-Instruct.csv",
        f"{REPORTS}_latency_report.csv",
        f"{REPORTS}_throughput_report.csv",
        "perf.csv",
    ]


# What AMD's vllm_benchmark_report.py and parse_csv.py wrote for the same results of vLLM, run by hand.
RECORDED = {
    f"{REPORTS}_latency_report.csv": (
        "model,latency (ms),latency_per_tkn (ms),tp,batch_size,input_len,output_len,dtype\n"
        "Llama-3.1-70B-Instruct,17306.0,135.203125,8,8,2048,128,float16\n"
    ),
    f"{REPORTS}_throughput_report.csv": (
        "model,throughput_tot (tok/sec),throughput_gen (tok/sec),tp,requests,input_len,output_len,dtype\n"
        "Llama-3.1-70B-Instruct,10880,10240,8,1500,2048,2048,float16\n"
    ),
    "n1__llama-0/perf_Llama-3.1-70B-Instruct.csv": (
        "model,performance,metric\n"
        "Llama-3.1-70B-Instruct_8_8_2048_128_float16,17306.0,ms\n"
        "Llama-3.1-70B-Instruct_8_1500_2048_2048_float16,10880,tok/sec\n"
    ),
}


@pytest.mark.parametrize("path", RECORDED)
def test_reports_equal_what_amds_scripts_wrote(path: str) -> None:
    assert mad.export(old_results()).files[path] == RECORDED[path]


def test_header_of_madengine() -> None:
    header = (
        "model,n_gpus,nnodes,gpus_per_node,training_precision,pipeline,args,tags,docker_file,base_docker,docker_sha,"
        "docker_image,git_commit,machine_name,deployment_type,launcher,gpu_architecture,performance,metric,"
        "relative_change,status,build_duration,test_duration,dataname,data_provider_type,data_size,"
        "data_download_duration,build_number,additional_docker_run_options"
    )
    assert len(header.split(",")) == 29
    assert mad.export(old_results()).files["perf.csv"].splitlines()[0] == header


def test_perf_of_madengine_names_every_metric_with_its_unit() -> None:
    lines = table(old_results(), "perf.csv")
    found = {line["model"]: (float(line["performance"]), line["metric"]) for line in lines}
    serve = "Llama-3.1-70B-Instruct-FP8-KV_8_in1024-out1024-c128_float8"
    assert found["Llama-3.1-70B-Instruct_8_8_2048_128_float16"] == (pytest.approx(17306.0), "ms")
    assert found["Llama-3.1-70B-Instruct_8_1500_2048_2048_float16"] == (10880.0, "tok/sec")
    assert found[f"{serve}_output_throughput"][1] == "tok/sec"
    assert found[f"{serve}_p50_ttft"] == (pytest.approx(407.1, abs=0.1), "ms")
    first = lines[0]
    assert (first["n_gpus"], first["nnodes"], first["gpus_per_node"]) == ("8", "1", "8")
    assert (first["gpu_architecture"], first["status"], first["machine_name"]) == ("gfx942", "SUCCESS", "n1")
    assert (first["training_precision"], first["test_duration"], first["docker_file"]) == (
        "fp16",
        "191.5",
        "",
    )


def test_failures_are_lines_without_a_number() -> None:
    lines = table(parse_run(summary_of(small_fleet(failures=True))), "perf.csv")
    failed = [line for line in lines if line["status"] == "FAILURE"]
    assert [line["machine_name"] for line in failed] == ["mi300x-03", "mi300x-04", "mi300x-05"]
    assert {line["performance"] for line in failed} == {""}


def test_every_instance_has_its_own_reports() -> None:
    fleet: dict[str, Any] = {}
    for host in ("n1", "n2"):
        fleet[host] = {"__benchmark_offline": {"benchmarks": [offline_entry("latency", started=1.0)]}}
    assert [path for path in mad.export(parse_run(summary_of(fleet))).files if "reports_" in path] == [
        f"{host}__llama-0/reports_float16/summary/Llama-3.1-70B-Instruct_latency_report.csv"
        for host in ("n1", "n2")
    ]


def test_unknown_is_an_empty_cell() -> None:
    results = parse_run(
        {"benchmarks": [{"host": "n1", "instance": "a-0", "kind": "latency", "model": "org/m"}]}
    )
    path = "n1__a-0/reports_auto/summary/m_latency_report.csv"
    assert mad.export(results).files[path].splitlines()[1] == "m,,,,,,,auto"


def test_what_it_cannot_express_is_said() -> None:
    said = mad.export(suite_results()).omitted
    assert said == (
        "n1/llama-0 in1024-out1024-c128, n1/llama-0 in1024-out1024-c16, n1/llama-0 in1024-out1024-r2: "
        "AMD's report has no serving benchmark; it is in perf.csv alone.",
    )
    assert "and 501 more" in mad.export(parse_run(summary_of(large_fleet()))).omitted[0]
