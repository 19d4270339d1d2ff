# SPDX-License-Identifier: Apache-2.0
"""A search for the load that keeps an SLO, on stand-ins that run a set number of requests at once."""

from __future__ import annotations

import csv
import json
import os
import signal
from typing import Any

import pytest

from .conftest import Lab
from .helpers import deployment, wait_for

pytestmark = pytest.mark.deep

SLOTS = 3
# An answer takes 10 tokens at 5 per second, and a request that waits does so for 2 s. A busy machine delays by less.
SPEED, TOKENS, LIMIT = 5, 10, 1000
SUITE = f"""\
schema: 1
suite: small-search
title: How many at once keep the limit
repeats: {{warmups: 0}}
percentiles: [50]
slos: [{{name: prompt, ttft_ms: {LIMIT}}}]
groups:
  - title: Searched
    kind: serve
    shapes: [{{input: 16, output: {TOKENS}}}]
    load: {{search: {{concurrency: 2, share: 0.9, most: 16}}}}
    num_prompts: {{count: 44}}
    args: {{ignore_eos: true, temperature: 0}}
"""
JOURNALS = ".*.unfinished/*.jsonl"


def test_a_killed_search_goes_on_and_finds_the_knee(lab: Lab) -> None:
    engine = {
        "engine_args": {"max_num_seqs": SLOTS},
        "env": {"STANDIN_TOKENS_PER_SECOND": str(SPEED)},
    }
    lab.write_vars(vllm_deployments=[deployment(**engine)])
    deployed = lab.play("site", "--skip-tags", "benchmark")
    assert deployed.rc == 0, deployed.out
    suite = lab.tmp / "search.yml"
    suite.write_text(SUITE, encoding="utf-8")
    # Relative directories are those of where ansible-playbook is started.
    results = lab.tmp / "results"
    command = (
        "benchmark",
        "-e",
        f"benchmark_suite={suite}",
        "-e",
        "at_once=true",
    )
    victim = lab.start(*command)
    try:
        wait_for("two probes", lambda: any(_probes(path) > 1 for path in results.glob(JOURNALS)))
    finally:
        os.killpg(victim.pid, signal.SIGKILL)
        victim.communicate()
    kept = {path.stem: _probes(path) for path in results.glob(JOURNALS)}
    (place,) = results.glob(".*.unfinished")
    name = place.name[1 : -len(".unfinished")]
    run = lab.play(*command)
    assert run.rc == 0, run.out
    text = " ".join(run.out.split())
    assert f"continues run {name}, begun" in text
    assert f"it has {sum(kept.values())} probes" in text
    assert f"of {name} kept from an interrupted call" in text
    assert not place.exists()

    summary: dict[str, Any] = json.loads((results / name / "summary.json").read_text(encoding="utf-8"))
    assert summary["failures"] == []
    searches = summary["slo_searches"]
    assert [item["host"] for item in searches] == lab.hosts
    for item in searches:
        assert (item["value"], item["low"] or SLOTS, item["high"]) == (SLOTS, SLOTS, SLOTS + 1), item
        assert item["request_throughput"]["value"] == pytest.approx(SLOTS * SPEED / TOKENS, rel=0.25)
        assert "at once misses it" in item["why"]
        rows = [row for row in summary["benchmarks"] if row["host"] == item["host"]]
        assert sorted(row["probe"] for row in rows) == list(range(1, item["probes"] + 1))
        assert item["probes"] >= kept.get(item["host"], 0)
        assert [row["cell"] for row in rows if row["at_slo"]] == [item["cell"]]
        assert lab.on(item["host"], f"ls /var/lib/instinct-fleet/bench/{name} 2>/dev/null", check=False) == ""
    with open(results / name / "slo.csv", encoding="utf-8") as stream:
        assert [row["value"] for row in csv.DictReader(stream)] == [str(SLOTS)] * len(lab.hosts)
    assert "output tok/s at SLO prompt (in16-out10, 2 of 2 instances)" in text
    assert "Throughput at the SLO" in (results / name / "report.html").read_text(encoding="utf-8")


def _probes(path: Any) -> int:
    return sum(bool(line) for line in path.read_text(encoding="utf-8").splitlines())
