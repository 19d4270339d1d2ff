# SPDX-License-Identifier: Apache-2.0
"""From what the nodes' searches returned to every place where the throughput at an SLO is shown."""

from __future__ import annotations

import csv
import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import Redactor
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.report import (
    render_report,
    report_view,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.text import text_summary
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.files import (
    csv_text,
    run_files,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.slo_searches import slo_csv
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.summary import collect
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.tables import EN_DASH

from tests import ROOT
from tests.worlds.bench_samples import node_state, summary_of
from tests.worlds.queueing import Queue
from tests.worlds.searched_engines import Node, search, suite_file


def at_once(of: Queue, load: dict[str, Any], requests: int, _seed: int) -> dict[str, Any]:
    """Beyond 11 at once, a request fails."""
    found = of.at_once(load["value"], requests)
    if load["value"] > 11:
        found |= {"failed": 1, "completed": requests - 1, "errors": ["reset", *found["errors"][1:]]}
    return found


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Two instances of two GPUs each: one with a limit of 6 at once, one that fails beyond 11."""
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    node = Node(llama_0=partial(at_once, Queue(slots=6)), llama_1=partial(at_once, Queue(slots=64)))
    slos = "[{name: chat, ttft_ms: 500}, {name: strict, ttft_ms: 100}]"
    answer = search(node, suite_file(tmp_path, "{concurrency: 4}", slos, "{count: 500}"))
    return {"n1": {"node_state_result": {"node_state": node_state("n1")}, "__benchmark_serve": answer}}


def test_the_summary_has_each_search_and_its_probes(fleet: dict[str, Any]) -> None:
    summary = json.loads(json.dumps(summary_of(fleet), allow_nan=False))
    schema = json.loads((ROOT / "catalog/schemas/summary.schema.json").read_text())
    assert [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(summary)] == []
    found = {(item["instance"], item["slo"]["name"]): item for item in summary["slo_searches"]}
    assert [item["value"] for item in found.values()] == [6, None, 11, None]
    chat = found["llama-0", "chat"]
    assert (chat["host"], chat["low"], chat["high"], chat["share"]) == ("n1", 6, 7, 0.99)
    capacity = Queue(slots=6).capacity
    assert chat["output_throughput"]["value"] == pytest.approx(16 * capacity, rel=0.02)
    assert chat["output_throughput_per_gpu"]["value"] == pytest.approx(8 * capacity, rel=0.02)
    assert found["llama-1", "chat"]["why"] == "12 at once misses it: 1 of 500 requests failed"
    assert found["llama-1", "strict"]["why"].startswith(
        "the lowest load to try, 1 at once, misses the SLO: 0 of"
    )
    assert summary["failures"] == []  # what fails at a load that is too high is what was looked for
    cells = {row["cell"]: row for row in summary["benchmarks"] if row["instance"] == "llama-0"}
    row = cells["in16-out16-c6"]
    assert row["at_slo"] == {"chat": [chat["request_throughput"]["low"], chat["request_throughput"]["high"]]}
    assert row["slo_attainment"] == {"chat": 1.0, "strict": 0.0}
    assert cells["in16-out16-c8"]["slo_attainment"]["chat"] < 0.99
    assert row["probe"] == 3
    assert {verdict["verdict"] for verdict in summary["gpu_verdicts"]} == {None}  # a search compares nothing


def test_every_file_shows_it(fleet: dict[str, Any]) -> None:
    summary = summary_of(fleet)
    (line, *_others) = [row for row in csv.DictReader(io.StringIO(slo_csv(summary))) if row["slo"] == "chat"]
    assert (line["host"], line["instance"], line["value"], line["low"], line["high"]) == (
        "n1",
        "llama-0",
        "6",
        "6",
        "7",
    )
    assert (line["ttft_ms"], line["tpot_ms"], line["load"]) == ("500", "", "concurrency")
    assert float(line["output_throughput_per_gpu"]) == pytest.approx(8 * Queue(slots=6).capacity, rel=0.02)
    at = [row for row in csv.DictReader(io.StringIO(csv_text(summary))) if row["at_slo"]]
    assert [(row["instance"], row["cell"]) for row in at] == [
        ("llama-0", "in16-out16-c6"), ("llama-1", "in16-out16-c11"),
    ]  # fmt: skip
    lines = str(run_files(collect(["n1"], fleet, Redactor()))["runs.jsonl"]).splitlines()
    rows = [json.loads(text) for text in lines]
    assert sum(bool(row["at_slo"]) for row in rows) == 2
    assert all(row["probe"] for row in rows)


def test_the_terminal_and_the_page_say_the_load_its_interval_and_why(fleet: dict[str, Any]) -> None:
    summary = summary_of(fleet)
    text = text_summary(summary)
    print(text)
    assert "output tok/s at SLO chat (in16-out16, 2 of 2 instances)" in text
    assert "at SLO strict (in16-out16, 0 of 2 instances)" in text
    (row,) = [line.split() for line in text.splitlines() if line.startswith("n1") and " 6 at once" in line]
    assert row[:8] == ["n1", "llama-0", "in16-out16", "chat", "6", "at", "once", f"6{EN_DASH}7"]
    assert (
        "ENDED   n1 llama-1, chat (99% within TTFT 500 ms): 12 at once misses it: 1 of 500 requests failed."
        in text
    )
    view = report_view(summary)
    assert [card["label"] for card in view["cards"]][:3] == [
        "Output tok/s at SLO chat", "Requests/s at SLO chat", "Output tok/s at SLO strict",
    ]  # fmt: skip
    assert view["deployments"] == []
    page = render_report(summary)
    assert "Throughput at the SLO" in page
    assert "<summary>Probes: " in page
