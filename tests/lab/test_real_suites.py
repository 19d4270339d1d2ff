# SPDX-License-Identifier: Apache-2.0
"""The shipped suites on the real vLLM, on two nodes at once; and that the fleet measures what its client does by hand.

`quick` is measured as it is shipped. The others are for GPUs, and would take days: they keep their groups, data sets,
arguments and names, and get smaller numbers.
"""

from __future__ import annotations

import json
import random
import shlex
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.benchmarks.intervals import (
    half_width,
    median_interval,
)

from lab.config import VLLM_VERSION
from tests import ROOT

from .conftest import Lab, copy_inventory, reset_lab
from .helpers import MODEL, completion, deployment

pytestmark = pytest.mark.deep  # three quarters of an hour

IMAGE = f"registry.lab:5000/lab/vllm:cpu_vllm_{VLLM_VERSION}"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
CONTAINER = "instinct-llama-0"
WORDS = (
    "the",
    "model",
    "serves",
    "each",
    "token",
    "of",
    "a",
    "prompt",
    "in",
    "time",
    "and",
    "counts",
    "them",
)
LEAST_PAIRS, MOST_PAIRS = 5, 12
"""Runs by the fleet and by hand: until the interval of the ratio's median is ±2 %."""
LENGTHS, COUNTS, MOST = 32, 50, 8
"""By what tokens and requests of a shipped suite are divided, and how many requests are in flight at most."""


def shrunk(lab: Lab, name: str) -> str:
    """The path of a shipped suite with smaller numbers: one run of each cell, and the least and the greatest load."""
    suite = yaml.safe_load((ROOT / f"catalog/suites/{name}.yml").read_text(encoding="utf-8"))
    suite["repeats"] = {"warmups": 0, "blocks": 1, "most": 1}
    suite["percentiles"] = [50]
    for group in suite["groups"]:
        for shape in group.get("shapes", ()):
            shape.update({key: max(1, value // LENGTHS) for key, value in shape.items()})
        kind, values = next(iter(group["load"].items()))
        if kind == "concurrency":
            small = [value for value in values if value <= MOST] or [MOST]
            group["load"] = {kind: sorted({small[0], small[-1]})}
        elif kind == "batch":  # each starts an engine, which takes a minute
            group["load"] = {kind: [MOST]}
        if "count" in group.get("num_prompts", ()):
            group["num_prompts"]["count"] //= COUNTS
        group.get("num_prompts", {}).pop("least", None)
        if group["kind"] == "latency":
            group["args"].update(warmup_iterations=1, iterations=2)
    path = lab.tmp / f"{name}.yml"
    path.write_text(yaml.safe_dump(suite), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def serving(lab_up: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """An engine on each node, without a draft."""
    reset_lab()
    lab = copy_inventory(lab_up, tmp_path_factory.mktemp("suites"))
    wanted(lab)
    run = lab.play("deploy")
    assert run.rc == 0, run.out[-3000:]
    yield lab
    reset_lab()


@pytest.fixture(scope="module")
def chats(serving: Lab) -> Path:
    """Conversations in the form of ShareGPT, made of words, in which answers repeat phrases of their prompts."""
    dice, words = random.Random(13), WORDS
    talks = []
    for number in range(200):
        texts = [" ".join(dice.choices(words, k=dice.randint(8, 60))) for _ in range(2)]
        turns = [{"from": who, "value": text} for who, text in zip(("human", "gpt"), texts, strict=True)]
        talks.append({"id": str(number), "conversations": turns})
    path = serving.tmp / "chats of ours.json"
    path.write_text(json.dumps(talks), encoding="utf-8")
    return path


def wanted(lab: Lab, **engine_args: Any) -> None:
    """What the inventory wants."""
    args = {"max_model_len": 2048, "max_num_seqs": 16, "enforce_eager": True, "shutdown_timeout": 30}
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    lab.write_vars(
        vllm_deployments=[deployment(image=IMAGE, engine_args={**args, **engine_args}, env=env)], canary=False
    )


def measured(lab: Lab, suite: str, *options: str, **given: Any) -> list[dict[str, Any]]:
    """The rows of a suite, measured on all nodes at once; AssertionError when anything of it failed."""
    arguments = json.dumps({"benchmark_suite": suite, "benchmark_suite_args": given})
    run = lab.play("benchmark", "-e", "at_once=true", "-e", arguments, *options, timeout=3000)
    assert run.rc == 0, run.out[-4000:]
    summary = json.loads((lab.tmp / "results/latest/summary.json").read_text(encoding="utf-8"))
    assert summary["failures"] == []
    rows: list[dict[str, Any]] = summary["benchmarks"]
    for row in rows:
        assert row["host"] in lab.hosts
        print(row["host"], row["cell"], row["output_throughput"] or row["mean_batch_latency_ms"], flush=True)
    assert {(row["host"], row["cell"]) for row in rows} == {
        (host, row["cell"]) for host in lab.hosts for row in rows
    }
    return rows


def total(rows: list[dict[str, Any]]) -> float:
    """The fleet's output tokens per second, of one cell."""
    return sum(row["output_throughput"] for row in rows)


def by_hand(lab: Lab, command: str, seed: int) -> float:
    """The sum of output tokens per second of the same client with the same words, by `docker exec` on all nodes."""
    words = shlex.split(command)
    place = words.index("--result-dir") + 1
    words[place] = "/tmp/by-hand"
    shown = shlex.join([*words, "--seed", str(seed)])
    inside = f"set -a; . /instinct/env; {shown} > /tmp/by-hand.log 2>&1 || tail -30 /tmp/by-hand.log >&2"
    read = f"docker exec {CONTAINER} cat /tmp/by-hand/result.json"

    def client(host: str) -> float:
        lab.on(host, f"docker exec {CONTAINER} bash -c {shlex.quote(inside)}")
        found = json.loads(lab.on(host, read))
        assert found["failed"] == 0
        return float(found["output_throughput"])

    with ThreadPoolExecutor() as pool:
        return sum(pool.map(client, lab.hosts))


def compared(lab: Lab, suite: str, cell: str, **given: Any) -> list[float]:
    """The fleet's sum of a cell divided by that by hand, once per pair, in turns: what drifts changes both alike."""
    found: list[float] = []
    while len(found) < MOST_PAIRS and not (len(found) >= LEAST_PAIRS and (half_width(found) or 1) <= 0.02):
        # Other prompts in each run, or the prefix cache has them.
        seed = 1000 * (len(found) + 1)
        rows = measured(lab, suite, seed=seed, blocks=1, warmups=0, **given)
        fleet = total([row for row in rows if row["cell"] == cell])
        hand = by_hand(lab, rows[0]["command"], seed + 500)
        found.append(fleet / hand)
        print(f"fleet {fleet:.1f}, by hand {hand:.1f} tok/s, ratio {found[-1]:.4f}", flush=True)
    print(f"ratio: median {statistics.median(found):.4f}, interval {median_interval(found)}", flush=True)
    return found


def test_the_fleets_sum_is_that_of_its_clients_by_hand(serving: Lab) -> None:
    measured(serving, "quick", blocks=1, warmups=0)  # the first requests of an engine are slow
    assert statistics.median(compared(serving, "quick", "in512-out128-c16")) >= 0.98


def test_quick_as_it_is_shipped(serving: Lab) -> None:
    rows = measured(serving, "quick")
    assert {(row["suite"], row["cell"]) for row in rows} == {("quick", "in512-out128-c16")}
    for row in rows:
        assert 3 <= row["runs"] <= 5
        assert row["completed"] == 96
        assert row["interval"]
        assert row["versions"]["vllm"].startswith(VLLM_VERSION)


def test_serving(serving: Lab) -> None:
    rows = measured(serving, shrunk(serving, "serving"))
    assert {row["cell"] for row in rows} == {
        "in32-out32-c1", "in32-out32-c8", "in256-out32-c8", "in4-out4-c8", "in128-out16-r1",
    }  # fmt: skip
    assert all(row["failed"] == 0 and row["p50_ttft_ms"] > 0 for row in rows)


def test_a_data_set_reaches_the_clients(serving: Lab, chats: Path) -> None:
    rows = measured(serving, shrunk(serving, "sharegpt"), dataset_path=str(chats))
    assert {row["cell"] for row in rows} == {f"sharegpt-{load}" for load in ("r1", "r4", "r16", "all")}
    assert {row["total_input_tokens"] > 100 for row in rows} == {True}
    copies = "cd /var/lib/instinct-fleet/dataset && stat -c '%a %U %n' */* && sha256sum < */*"
    (copy,) = {serving.on(host, copies) for host in serving.hosts}
    mode, checksum = copy.splitlines()
    assert mode == f"644 root {checksum[:12]}/{chats.name}"
    assert f"--dataset-path '/dataset/{checksum[:12]}/{chats.name}'" in rows[0]["command"]
    assert serving.play("prune", "-e", "apply=true").rc == 0
    assert {serving.on(host, "ls /var/lib/instinct-fleet/dataset") for host in serving.hosts} == {""}


def test_what_is_no_data_set_is_said_before_anything_is_measured(serving: Lab, chats: Path) -> None:
    wrong = chats.with_name("wrong.json")
    wrong.write_text('[{"conversations": [{"value": "a"}, {"text": "b"}]}]', encoding="utf-8")
    for path, said in (
        ("/no/chats.json", "/no/chats.json cannot be read on the control node"),
        (
            str(wrong),
            f'{wrong} does not have the form of the data set sharegpt: entry 1, turn 2: it has no text "value"',
        ),
    ):
        arguments = json.dumps(
            {"benchmark_suite": "sharegpt", "benchmark_suite_args": {"dataset_path": path}}
        )
        run = serving.play("benchmark", "-e", arguments)
        assert run.rc == 2
        assert said in " ".join(run.out.split())
        assert {"vllm_bench", "balancer_server"}.isdisjoint(run.modules())


@pytest.mark.parametrize(("name", "kind"), [("seed-latency", "latency"), ("seed-throughput", "throughput")])
def test_the_offline_suites(serving: Lab, name: str, kind: str) -> None:
    rows = measured(serving, shrunk(serving, name), "--tags", kind)
    assert len(rows) == len(serving.hosts) * 4
    for row in rows:
        assert (row["suite"], row["kind"], row["model"]) == (name, kind, MODEL)
        assert row["total_token_throughput"] or row["mean_batch_latency_ms"]
    for host in serving.hosts:  # they serve again
        assert completion(serving, host, 8000)["usage"]["completion_tokens"] == 4


# Last: it leaves another engine behind.
def test_without_and_with_speculation(serving: Lab, chats: Path) -> None:
    suite = shrunk(serving, "speculation")
    found = {}
    for variant, args in (("without", {}), ("with", {"speculative_config": NGRAM})):
        wanted(serving, **args)
        run = serving.play("deploy")
        assert run.rc == 0, run.out[-3000:]
        rows = measured(serving, suite, dataset_path=str(chats))
        assert {row["cell"] for row in rows} == {f"{variant}-sharegpt-c{load}" for load in (1, 8)}
        found[variant] = rows
    assert all(row["acceptance_length"] is None for row in found["without"])
    assert all(row["acceptance_length"] >= 1 for row in found["with"])
