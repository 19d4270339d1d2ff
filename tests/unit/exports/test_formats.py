# SPDX-License-Identifier: Apache-2.0
"""All formats: no secret leaves, nothing unknown becomes a number, and what the smaller formats hold."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.exports.formats import (
    FORMATS,
    check_formats,
    export_run,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.exports.run_results import (
    RunResults,
    parse_run,
)

from tests import ROOT
from tests.worlds.bench_samples import mixed_fleet, summary_of
from tests.worlds.export_samples import KEY, SECRET, old_results, suite_results

LEAKS: dict[str, Any] = {
    "serve_command": f"vllm serve m --tensor-parallel-size 8 --api-key {KEY} --hf-token={SECRET}",
    "command": f"vllm bench serve --header X-Gateway={KEY} Authorization={KEY} --num-prompts 640 --dataset-name random",
    "env": {"HF_TOKEN": SECRET, "GATEWAY_PASSWORD": KEY, "PROXY": f"http://user:{KEY}@proxy", "A": "1"},
    "other": {"note": f"token {SECRET}"},
}


def made(name: str, results: RunResults) -> dict[str, str]:
    return dict(FORMATS[name](results).files)


@pytest.mark.parametrize("name", FORMATS)
def test_no_secret_is_in_any_file(name: str) -> None:
    text = "\n".join(made(name, suite_results(**LEAKS)).values())
    assert text
    assert KEY not in text
    assert SECRET not in text


def test_headers_are_no_arguments_of_the_dashboard() -> None:
    records = json.loads(made("pytorch-hud", suite_results(**LEAKS))["pytorch_benchmark.json"])
    arguments = records[0]["benchmark"]["extra_info"]["args"]
    assert arguments == {"num_prompts": "640", "dataset_name": "random", "tensor_parallel_size": 8}


@pytest.mark.parametrize("name", FORMATS)
def test_unknown_is_never_zero_and_never_an_error(name: str) -> None:
    known = {"host": "n", "instance": "a", "kind": "serve", "cell": "c"}
    files = made(
        name,
        parse_run({"benchmarks": [known, {**known, "kind": "latency"}, {**known, "kind": "throughput"}]}),
    )
    for path, text in files.items():
        assert not re.search(r"(?<![0-9.])0(\.0)?(?![0-9.])", _numbers_of_results(text)), path


def _numbers_of_results(text: str) -> str:
    """Return a file without the 0 of a first run, of GPUs whose number llm-d requires, and of versions and hashes."""
    text = re.sub(r'"(run_number|count)": 0', "", text)
    return re.sub(r'"(uid|cfg_id|version|schema_version|recipe_fingerprint)": "[^"]*"', "", text)


@pytest.mark.parametrize("name", FORMATS)
def test_text_of_users_stays_in_its_place(name: str) -> None:
    odd = 'a,"b"|<c>\n../d'
    files = made(name, suite_results(instance=odd, model=odd, host="../../etc"))
    assert files
    assert not [path for path in files if ".." in path.split("/") or "\n" in path or path.startswith("/")]
    for path, text in files.items():
        if path.endswith(".json"):
            json.loads(text)
        elif path.endswith(".md"):
            assert "<c>" not in text
        else:
            widths = {len(line) for line in csv.reader(io.StringIO(text))}
            assert len(widths) == 1


def test_dashboard_records() -> None:
    records = json.loads(made("pytorch-hud", suite_results())["pytorch_benchmark.json"])
    assert {tuple(item) for item in records} == {("benchmark", "model", "metric")}
    rates = [item["metric"] for item in records if item["metric"]["name"] == "output_throughput"]
    assert [item["benchmark_values"] for item in rates] == [[3199, 3200, 3201], [399, 400, 401], [49, 50, 51]]
    assert "request_goodput" not in {item["metric"]["name"] for item in records}
    old = json.loads(made("pytorch-hud", old_results())["pytorch_benchmark.json"])
    offline = {item["metric"]["name"]: item["metric"]["benchmark_values"] for item in old}
    assert offline["latency"] == [pytest.approx(17.306)]  # seconds, as vLLM writes it
    assert (offline["requests_per_second"], offline["tokens_per_second"]) == ([5.0], [10880.0])


def test_github_action_has_a_file_for_each_direction() -> None:
    files = made("github-action-benchmark", old_results())
    bigger, smaller = (json.loads(files[f"{name}_is_better.json"]) for name in ("bigger", "smaller"))
    assert all({"name", "unit", "value", "extra"} == set(item) for item in [*bigger, *smaller])
    assert ("n1/llama-0 latency in2048-out128-b8 mean_batch_latency_ms", "ms", 17306.0) in [
        (item["name"], item["unit"], round(item["value"], 6)) for item in smaller
    ]
    assert [item["unit"] for item in bigger] == ["output tok/s", "total tok/s", "total tok/s"]


def test_github_action_shows_the_interval_of_repeats() -> None:
    files = made("github-action-benchmark", suite_results())
    ranges = [item.get("range") for item in json.loads(files["bigger_is_better.json"])]
    assert ranges == [
        "3200 to 1 (95 % of the median)",
        None,
        "400 to 1 (95 % of the median)",
        None,
        None,
        None,
    ]


def test_csv_has_every_cell_and_every_run() -> None:
    files = made("csv", suite_results())
    cells, runs = (list(csv.DictReader(io.StringIO(files[f"{name}.csv"]))) for name in ("cells", "runs"))
    assert (len(cells), len(runs)) == (3, 9)
    assert (runs[0]["run_name"], runs[0]["block"], runs[0]["load.kind"], runs[0]["load.value"]) == (
        *("20260131T101500Z", "1", "concurrency", "128"),
    )
    assert (runs[0]["goodput.chat"], runs[0]["client_bound"], runs[0]["ecc"], runs[0]["live"]) == (
        *("3.5", "", "", "false"),
    )


def test_markdown_keeps_loads_apart() -> None:
    text = made("markdown", suite_results())["benchmarks.md"]
    titles = re.findall("^## (.*)$", text, re.MULTILINE)
    assert titles == ["Serving at a concurrency", "Serving at a request rate"]
    assert "| n1/llama-0 | in1024-out1024-c128 | 3 | 3,200.0 |" in text
    text = made("markdown", suite_results(hbm_share=0.314, flop_share=0.0123))["benchmarks.md"]
    assert "| HBM % | FLOP % | Failed | CV |" in text
    assert "| 31.4 | 1.2 | 0 | 0.4 % |" in text


def test_a_sweep_has_vllms_layout_and_keys() -> None:
    files = made("vllm-sweep", suite_results())
    cell = "20260131T101500Z/SERVE--host=n1-instance=llama-0-BENCH--label=in1024-out1024-c128"
    assert [path for path in files if "c128" in path] == [
        *(f"{cell}/run={number}.json" for number in range(3)),
        f"{cell}/summary.json",
    ]
    runs = json.loads(files[f"{cell}/summary.json"])
    assert [run["run_number"] for run in runs] == [0, 1, 2]
    assert runs[1] == json.loads(files[f"{cell}/run=1.json"])
    first = runs[0]
    assert (first["max_concurrency"], first["output_throughput"], first["tensor_parallel_size"]) == (
        128,
        3199,
        8,
    )
    assert (first["model_id"], first["duration"]) == (
        "meta-llama/Llama-3.1-70B-Instruct",
        pytest.approx(167.8, abs=1),
    )
    rate = json.loads(files[f"{cell.replace('c128', 'r2')}/summary.json"])[0]
    assert rate["max_concurrency"] is None  # plot_pareto then takes the measured peak, not the rate
    assert len(list(csv.DictReader(io.StringIO(files["20260131T101500Z/summary.csv"])))) == 9


def test_a_run_without_throughput_would_stop_the_plot() -> None:
    result = FORMATS["vllm-sweep"](suite_results(output_throughput=None))
    assert dict(result.files) == {}
    assert result.omitted[0].endswith("no answer, so no throughput to plot.")


def test_every_format_has_its_own_directory() -> None:
    files = export_run(parse_run(summary_of(mixed_fleet())), FORMATS).files
    assert {path.split("/")[0] for path in files} == set(FORMATS)


def test_an_unknown_format_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(FleetError, match=r"'inferenceX2' is not an export format. Did you mean inferencex\?"):
        check_formats(["mad", "inferenceX2"])
    with pytest.raises(FleetError, match=r"no format is named\. Valid: csv, "):
        check_formats([""])
    assert check_formats(["mad", " csv", "mad"]) == ("mad", "csv")


def test_the_variable_names_every_format() -> None:
    specs = yaml.safe_load((ROOT / "roles/fleet/meta/argument_specs.yml").read_text("utf-8"))
    described = specs["argument_specs"]["export"]["options"]["format"]["description"]
    assert re.findall(r"C\(([^)]*)\)", described) == list(FORMATS)


def test_the_page_describes_every_format() -> None:
    page = (ROOT / "docs/exports.md").read_text("utf-8")
    assert [name for name in FORMATS if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("summary", [{}, {"benchmarks": {}}, [], None])
def test_what_is_no_result_is_an_error(summary: Any) -> None:
    with pytest.raises(FleetError, match=r"summary\.json has no list of benchmarks"):
        parse_run(summary)


def test_half_a_line_of_runs_is_an_error() -> None:
    with pytest.raises(FleetError, match=r"runs\.jsonl: line 2 is not a JSON object"):
        parse_run({"benchmarks": []}, '{"host": "n1"}\n{"host": \n')
