# SPDX-License-Identifier: Apache-2.0
"""Searches for the load that keeps an SLO, through the action plugin: the probes of a node, and what is found."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.requests import (
    unpack_lists,
)

from tests.worlds.queueing import Queue
from tests.worlds.searched_engines import Engine, Node, search, suite_file

QUEUE = Queue(slots=256)
KNEE = 52.9  # of QUEUE: the rate at which 1 % of the requests wait for more than 1.7 s in half of such runs


@pytest.fixture(autouse=True)
def no_action_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})


def queue(of: Queue, load: dict[str, Any], requests: int, seed: int) -> dict[str, Any]:
    """An engine whose requests wait for a slot."""
    if load["kind"] == "rate":
        return of.at_rate(load["value"], requests, seed)
    return of.at_once(load["value"], requests)


def engine(of: Queue = QUEUE) -> Engine:
    return partial(queue, of)


@pytest.mark.parametrize("searches", [3, pytest.param(20, marks=pytest.mark.deep)])
def test_the_load_of_a_known_knee_is_found_within_5_percent_in_ten_probes(
    searches: int, tmp_path: Path
) -> None:
    """Acceptance, over the whole way of a run but for the node: at least 95 % of searches."""
    found = []
    for seed in range(searches):
        node = Node(llama_0=engine())
        answer = search(node, suite_file(tmp_path), overrides={"seed": 1000 * seed})
        (result,) = answer["searches"]
        assert len(node.calls) == result["probes"] <= 10
        assert not answer.get("failed")
        found.append(result)
    loads = [result["value"] for result in found]
    off = [abs(load / KNEE - 1) for load in loads]
    covered = statistics.fmean((result["low"] or 0) <= KNEE <= (result["high"] or 1e9) for result in found)
    near = statistics.fmean(item <= 0.05 for item in off)
    print(f"{min(loads)} to {max(loads)}, within 5 %: {near:.1%}, covered {covered:.0%}")
    assert near >= 0.95
    assert covered >= 0.9


def test_instances_search_side_by_side_and_end_apart(tmp_path: Path) -> None:
    node = Node(llama_0=engine(Queue(slots=6)), llama_1=engine(Queue(slots=20)))
    suite = suite_file(tmp_path, "{concurrency: 4}", "[{name: chat, ttft_ms: 500}]", "{count: 300}")
    answer = search(node, suite)
    first, second = answer["searches"]
    assert (first["instance"], first["value"], first["low"], first["high"]) == ("llama-0", 6, 6, 7)
    assert abs(second["value"] / 20 - 1) < 0.05
    assert [len(jobs) for jobs in node.calls] == [2] * first["probes"] + [1] * (
        second["probes"] - first["probes"]
    )
    # One warm-up in all, a seed of its own for each run, and enough requests for the percentile.
    jobs = [jobs["llama-1"] for jobs in node.calls]
    assert [job["warmups"] for job in jobs] == [1] + [0] * (len(jobs) - 1)
    assert (
        len({job["seed"] + warmup for job in jobs for warmup in range(job["warmups"] + 1)}) == len(jobs) + 1
    )
    assert [entry["probe"] for entry in answer["benchmarks"] if entry["instance"] == "llama-1"] == list(
        range(1, second["probes"] + 1)
    )
    at = {entry["cell"]: entry["at_slo"] for entry in answer["benchmarks"] if entry["at_slo"]}
    assert list(at) == ["in16-out16-c6", second["cell"]]
    # Nearly all of what would be kept in memory are the gaps between tokens.
    details = [unpack_lists(entry["runs"][0]["detail"]) or {} for entry in answer["benchmarks"]]
    assert {"ttfts", "latencies", "output_lens"} <= set.intersection(*map(set, details))
    assert "itls" not in set.union(*map(set, details))
    throughput = first["request_throughput"]
    assert throughput["low"] <= throughput["value"] <= throughput["high"]
    assert throughput["value"] == pytest.approx(Queue(slots=6).capacity, rel=0.05)
    assert at["in16-out16-c6"] == {"chat": [throughput["low"], throughput["high"]]}
    assert first["output_throughput_per_gpu"]["value"] == pytest.approx(throughput["value"] * 16 / 2)


def test_a_probe_has_enough_requests_for_its_percentile(tmp_path: Path) -> None:
    node = Node(llama_0=engine(Queue(slots=6)))
    search(node, suite_file(tmp_path, "{rate: 1, probes: 3}", prompts="{seconds: 10}"))
    assert {jobs["llama-0"]["cells"][0]["num_prompts"] for jobs in node.calls} == {459}


def test_one_probe_counts_for_all_limits(tmp_path: Path) -> None:
    node = Node(llama_0=engine())
    slos = "[{name: loose, ttft_ms: 60000}, {name: tight, ttft_ms: 301}]"
    answer = search(node, suite_file(tmp_path, slos=slos))
    loose, tight = answer["searches"]
    assert loose["value"] > tight["value"]
    cells = [entry["cell"] for entry in answer["benchmarks"]]
    assert len(cells) == len(set(cells)) == len(node.calls) < 20


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("{concurrency: 16, least: 8}", "the lowest load to try, 8 at once, misses the SLO: "),
        ("{concurrency: 1, most: 4}", "the highest load to try, 4 at once, keeps the SLO"),
    ],
)
def test_without_a_knee_it_says_so(given: str, why: str, tmp_path: Path) -> None:
    node = Node(llama_0=engine(Queue(slots=6)))
    suite = suite_file(tmp_path, given, "[{name: chat, ttft_ms: 500}]", "{count: 300}")
    answer = search(node, suite)
    (result,) = answer["searches"]
    assert result["why"].startswith(why)
    assert (result["value"] is None) == ("misses" in why)
    assert not answer.get("failed")


def failing(load: dict[str, Any], requests: int, seed: int) -> dict[str, Any]:
    """Beyond 8 at once, one request fails."""
    del seed
    found = Queue(slots=64).at_once(load["value"], requests)
    if load["value"] > 8:
        found |= {"failed": 1, "completed": requests - 1, "errors": ["reset", *found["errors"][1:]]}
    return found


def test_failed_requests_are_too_high_a_load_and_no_failure(tmp_path: Path) -> None:
    suite = suite_file(tmp_path, "{concurrency: 4}", "[{name: chat, ttft_ms: 500}]", "{count: 500}")
    answer = search(Node(llama_0=failing), suite)
    (result,) = answer["searches"]
    assert (result["value"], result["high"]) == (8, 9)
    assert result["why"] == "9 at once misses it: 1 of 500 requests failed"
    assert not answer.get("failed")
    assert [entry["error"] for entry in answer["benchmarks"]] == [None] * result["probes"]


def dying(load: dict[str, Any], requests: int, seed: int) -> dict[str, Any]:
    return {} if load["value"] > 8 else Queue(slots=64).at_once(load["value"], requests)


def test_an_engine_that_dies_fails_alone(tmp_path: Path) -> None:
    suite = suite_file(tmp_path, "{concurrency: 4}", "[{name: chat, ttft_ms: 500}]", "{count: 500}")
    answer = search(Node(llama_0=dying, llama_1=engine(Queue(slots=6))), suite)
    assert answer["failed"]
    assert answer["msg"] == "1 of 2 searches failed. llama-0: in16-out16-c16: the engine is gone"
    dead, alive = answer["searches"]
    assert (dead["value"], alive["value"]) == (None, 6)
    assert dead["why"] == "the search ended early: in16-out16-c16: the engine is gone"
    assert [entry["error"] for entry in answer["benchmarks"] if entry["error"]] == ["the engine is gone"]


class KilledError(Exception):
    """The controller is gone."""


def test_a_killed_search_goes_on_where_it_was(tmp_path: Path) -> None:
    suite = suite_file(tmp_path, "{concurrency: 4}", "[{name: chat, ttft_ms: 500}]", "{count: 500}")
    kept = {"run": "r1", "results_dir": str(tmp_path / "results")}
    whole = Node(llama_0=engine(Queue(slots=11)))
    expected = search(whole, suite)["searches"]

    def until_killed(load: dict[str, Any], requests: int, seed: int) -> dict[str, Any]:
        if len(first.calls) > 3:
            raise KilledError
        return queue(Queue(slots=11), load, requests, seed)

    first, second = Node(llama_0=until_killed), Node(llama_0=engine(Queue(slots=11)))
    with pytest.raises(KilledError):
        search(first, suite, **kept)
    journal = tmp_path / "results/.r1.unfinished/n1.jsonl"
    assert journal.stat().st_mode & 0o777 == 0o600
    with journal.open("a") as stream:
        stream.write('{"work": "cut off')
    answer = search(second, suite, **kept)
    assert answer["searches"] == expected
    assert answer["warnings"] == ["llama-0: 3 probes of r1 kept from an interrupted call"]
    assert len(second.calls) == len(whole.calls) - 3
    # What is searched now is something else.
    other = Node(llama_0=engine(Queue(slots=11)))
    suite = suite_file(tmp_path, "{concurrency: 5}", "[{name: chat, ttft_ms: 500}]", "{count: 500}")
    assert search(other, suite, **kept)["warnings"] == []


def test_a_call_that_fails_itself_keeps_what_was_found(tmp_path: Path) -> None:
    node = Node(llama_0=engine(Queue(slots=11)))
    usual = node.module

    def refused(module_args: dict[str, Any], **others: Any) -> dict[str, Any]:
        if len(node.calls) == 2:
            return {"failed": True, "changed": False, "msg": "Docker does not answer"}
        return usual(module_args, **others)

    node.module = refused  # type: ignore[method-assign]
    answer = search(node, suite_file(tmp_path))
    assert (answer["failed"], answer["msg"], len(answer["benchmarks"])) == (True, "Docker does not answer", 2)
    assert answer["searches"][0]["why"] == "the search ended early: it was interrupted"


def test_check_mode_asks_for_the_first_probes_only(tmp_path: Path) -> None:
    node = Node(llama_0=engine())
    search(node, suite_file(tmp_path), check=True)
    assert [list(jobs) for jobs in node.calls] == [["llama-0"]]
