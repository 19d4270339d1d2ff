# SPDX-License-Identifier: Apache-2.0
"""The page with what lies beside a run: curves, GPUs, the previous run, published results, accuracy, power."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.cells import Side
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.context_sections import (
    accuracy_section,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.load_sections import ROOFLINE
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.report import (
    render_report,
    report_view,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.run_context import (
    RunContext,
    read_run_context,
)

from tests.unit.report.test_report import Page
from tests.worlds.compared_runs import row, side, store
from tests.worlds.report_fleet import accuracy, page

ACCURACY = {"a-1": accuracy()}


@pytest.fixture(scope="module")
def ill() -> tuple[str, Page]:
    text = render_report(*page(16, 4))
    return text, Page(text)


def drawn(text: str, name: str) -> str:
    """The plot with a label, for a page."""
    return next(
        plot
        for plot in re.findall(r"<svg.*?</svg>", text, re.DOTALL)
        if name in plot and 'viewBox="0 0 1000' in plot
    )


def test_the_curve_has_titles_units_loads_and_limits(ill: tuple[str, Page]) -> None:
    plot = drawn(ill[0], "Throughput per GPU against interactivity")
    words = re.findall(r">([^<>]+)</text>", plot)
    assert "Interactivity, output tok/s per user (1000 / median TPOT in ms)" in words
    assert "Output tok/s per GPU" in words
    assert {"1,024 tokens in, 1,024 out", "8,192 tokens in, 1,024 out"} <= set(words)
    assert {"SLO server: TPOT 100 ms", "SLO interactive: TPOT 30 ms"} <= set(words)
    assert [words.count(load) for load in ("4", "16", "256")] == [2, 2, 2]
    assert "requests/s sent to each instance" in ill[1].text  # rates have a figure of their own


def test_the_table_of_loads_has_the_roofline(ill: tuple[str, Page]) -> None:
    summary, around = page(16, 4)
    view = report_view(summary, around)
    table = view["deployments"][0]["loads"]["table"]
    at = [head["label"] for head in table["heads"]].index("HBM")
    assert [head["group"] for head in table["heads"][at : at + 2]] == ["Roofline", "Roofline"]
    shares = {
        row["cells"][0]["text"]: [cell["text"] for cell in row["cells"][at : at + 2]] for row in table["rows"]
    }
    # 17.6 GB of weights on each of 4 GPUs in 8.5 ms of 5.3 TB/s; at 256 requests, and their KV cache, in 69 ms.
    assert shares["in1024-out1024-c4"] == ["40%", "1.2%"]
    assert shares["in1024-out1024-c256"] == ["8.9%", "9.2%"]
    assert view["deployments"][0]["loads"]["note"] == ROOFLINE
    assert ROOFLINE in ill[1].text
    assert re.search(r"HBM roofline, decoding [\d.]+% FLOP roofline [\d.]+%", ill[1].text)


def test_the_page_is_whole_and_loads_nothing(ill: tuple[str, Page]) -> None:
    text, found = ill
    assert len(found.ids) == len(set(found.ids))
    links = [value for key, value in found.attributes if key in ("src", "href") and not value.startswith("#")]
    beside = ["../20260127T101500Z/report.html", "../accuracy-20260131T090000Z/accuracy.txt"]
    assert links == ["benchmarks.csv", "summary.json", "runs.jsonl", "raw/", "plan.json", *beside]
    anchors = {value[1:] for key, value in found.attributes if key == "href" and value.startswith("#")}
    assert anchors <= set(found.ids)
    assert set(re.findall(r"var\((--[a-z0-9-]+)\)", text)) <= set(re.findall(r"(--[a-z0-9-]+):", text))
    for needed in ("prefers-color-scheme: dark", "@media print", "max-width: 640px"):
        assert needed in text


def test_first_screen_and_sections_agree(ill: tuple[str, Page]) -> None:
    text = ill[1].text
    for words in (
        "suite inferencex, 18 loads on 30 instances, 15 nodes with 120 MI300X",
        "Attention 1 failure, 4 bad GPUs, 18 loads worse than in the previous run",
        "Previous run 20260127T101500Z: 18 loads, 18 worse",
        "Accuracy sanity 98.3% of 300, gsm8k 93.7% of 1,319",
        "18 loads are worse than in the previous run",
        "host driver 6.12.12 6.14.14",
        "the same model, commit and image",
        "pass: 0.3 points worse",
        "Nearest published results",
        "gpu MI300X, not MI355X",
        "J per output token",
        "Every GPU by PCI address, in1024-out1024-c256",
        "0000:75:00.0",
    ):
        assert words in text, words


def test_a_healthy_run_has_nothing_to_attend_to() -> None:
    view = report_view(*page(2, 8, ill=False, previous=False))
    lines = {line["label"]: line["text"] for line in view["glance"]}
    assert lines["Attention"] == "nothing: no failures, 16 GPUs ok"
    assert view["previous"] is None
    assert lines["Repeats"].startswith("3 runs of each load; 95% intervals ±1.")


def test_a_latency_that_rises_is_a_speed_that_falls() -> None:
    view = report_view(*page(16, 4))
    worse = {cell["name"]: cell["change"][0] for cell in view["previous"]["cells"]}
    assert (worse["in1024-out1024-c4"], worse["in1024-out1024-r2"]) == ("−", "+")  # noqa: RUF001
    assert {cell["verdict"] for cell in view["previous"]["cells"]} == {"worse"}


DEPLOYMENT = page(2)[0]["deployments"]


@pytest.mark.parametrize(
    ("runs", "run", "same"),
    [
        (ACCURACY, "a-1", True),
        # A newer run of another image does not hide the one of this image.
        ({**ACCURACY, "a-2": {**accuracy("sha256:other"), "finished": "2026-02-01T00:00:00Z"}}, "a-1", True),
        ({"a-2": accuracy("sha256:other")}, "a-2", False),
        ({"a-3": {"schema": 1, "deployments": {}}, "a-4": {}}, None, None),
    ],
)
def test_accuracy_of_the_same_image(runs: dict[str, Any], run: str | None, same: bool | None) -> None:
    found = accuracy_section(DEPLOYMENT, runs)
    assert [(item["run"], item["same"]) for item in found] == ([(run, same)] if run else [])


def test_problems_of_accuracy_need_attention_only_for_this_image() -> None:
    summary, around = page(2, 8, ill=False, previous=False)
    for digest, expected in (
        (None, "1 accuracy problem"),
        ("sha256:other", "nothing: no failures, 16 GPUs ok"),
    ):
        content = accuracy(*([digest] if digest else []), problems=("sanity: FAIL",))
        view = report_view(summary, replace(around, accuracy={"a": content}))
        assert next(line["text"] for line in view["glance"] if line["label"] == "Attention") == expected


def test_the_previous_run_is_the_last_with_a_cell_of_this_one(tmp_path: Path) -> None:
    store(tmp_path, "older", side("x", [row(minute=0)]))
    store(
        tmp_path,
        "other-load",
        side("x", [row(minute=10, cell="c1", load={"kind": "concurrency", "value": 1})]),
    )
    store(tmp_path, "other-host", side("x", [row("n9", minute=20)]))
    store(tmp_path, "later", side("x", [row(minute=99)]))
    (tmp_path / "accuracy-1").mkdir()
    (tmp_path / "accuracy-1/accuracy.json").write_text(json.dumps({"deployments": {}}))
    own = side("now", [row(minute=60)])
    summary = {"run": "now", "hosts": own.hosts}
    found = read_run_context(tmp_path, summary, own.rows, False)
    assert isinstance(found.previous, Side)
    assert (found.previous.name, found.problem) == ("older", "")
    assert list(found.accuracy) == ["accuracy-1"]
    assert read_run_context(tmp_path / "none", summary, own.rows, False).previous is None


def test_a_damaged_earlier_run_is_said_and_the_report_appears(tmp_path: Path) -> None:
    store(tmp_path, "older", side("x", [row()]))
    (tmp_path / "older/runs.jsonl").write_text("{\n{}\n")
    own = side("now", [row(minute=60)])
    found = read_run_context(tmp_path, {"run": "now", "hosts": own.hosts}, own.rows, False)
    assert found.previous is None
    assert "runs.jsonl:1: cannot be read" in found.problem
    summary, _around = page(2, 8, ill=False)
    view = report_view(summary, RunContext(problem=found.problem))
    assert found.problem in view["notes"]
