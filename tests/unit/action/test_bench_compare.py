# SPDX-License-Identifier: Apache-2.0
"""compare.yml in a real ansible-playbook, on recorded runs: table, JSON, and an exit code for what is worse."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ROOT
from tests.helpers.playbooks import Playbooks
from tests.worlds.compared_runs import interleaved, row, side, store

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An inventory whose hosts are nowhere, and runs: old and new in turns, and later one of AMD's cells."""
    (tmp_path / "hosts.yml").write_text("instinct:\n  hosts:\n    n1: {ansible_host: 192.0.2.1}\n    n2:\n")
    results = tmp_path / "results"
    for name, change in (("slow", -0.08), ("equal", 0.0)):
        new, old = interleaved(random.Random(3), change, 0.005, 0.02)
        for part, rows in ((f"{name}-new", new.rows), (f"{name}-old", old.rows)):
            image = "vllm/vllm-openai-rocm:v0.15.0" if part.endswith("new") else "old"
            for number in range(5):
                own = [{**item, "image": image} for item in rows if item["run"].endswith(f"-{number}")]
                store(results, f"{part}-{number}", side("x", own))
    amd = row(
        minute=9000, deployment="amd", model="amd/Llama-3.1-70B-Instruct-FP8-KV", kind="latency",
        cell="in128-out2048-b1", shape={"input": 128, "output": 2048}, load={"kind": "batch", "value": 1},
        mean_batch_latency_ms=17_000.0,
    )  # fmt: skip
    store(results, "amd", side("x", [amd]))
    store(
        results,
        "other",
        side("x", [row(cell="in1024-out1024-c64", load={"kind": "concurrency", "value": 64})]),
    )
    (results / "latest").symlink_to("amd")
    return tmp_path


@pytest.fixture
def run(place: Path, playbooks: Playbooks) -> Run:
    """Run compare.yml; its exit code and what it printed."""

    def run(*args: str) -> tuple[int, str]:
        given = [
            word
            for argument in (f"benchmark_results_dir={place}/results", *args)
            for word in ("-e", argument)
        ]
        done = playbooks.run(
            "-i", str(place / "hosts.yml"), *given, str(ROOT / "playbooks/compare.yml"), cwd=place
        )
        return done.returncode, done.stdout + done.stderr

    return run


SLOW = ("a=slow-new-0,slow-new-1,slow-new-2,slow-new-3,slow-new-4", "b=slow-old-*")
NAMES = (
    "+".join(f"slow-new-{number}" for number in range(5)),
    "+".join(f"slow-old-{number}" for number in range(5)),
)


def test_what_is_worse_ends_the_run_with_an_error(place: Path, run: Run) -> None:
    code, text = run(*SLOW)
    assert code == 2
    assert f"a: {NAMES[0]}, against b: {NAMES[1]}. 1 cell compared: 1 worse." in " ".join(text.split())
    assert "Measured interleaved, 2 instances, 10 and 10 runs." in text
    assert "image name: a vllm/vllm-openai-rocm:v0.15.0, b old" in text
    assert "1 cell worse: llama in1024-out1024-c128. With -e allow_worse=true" in text
    table = text[text.index("a: slow-new") : text.index("TASK [Compare")].splitlines()
    assert max(map(len, table[:-2])) <= 100
    (path,) = (place / "results/comparisons").glob("*.json")
    data = json.loads(path.read_text())
    assert (data["worse"], data["cells"][0]["verdict"], data["cells"][0]["runs"]) == (1, "worse", [10, 10])
    assert data["cells"][0]["interval"][0] < -0.08 < data["cells"][0]["interval"][1] < -0.02
    assert {item["name"] for item in data["differences"]} == {"name"}


def test_runs_without_a_common_cell_are_an_error(place: Path, run: Run) -> None:
    code, text = run("a=amd", "b=slow-old-0", "allow_worse=true")
    words = " ".join(text.split())
    assert code == 2
    assert (
        "a and b have no cell in common, so nothing was compared: a (amd) measured amd in128-out2048-b1; b "
        "(slow-old-0) measured llama in1024-out1024-c128. Name runs that measured the same work of the same "
        "deployment: -e a=RUN -e b=RUN."
    ) in words
    assert not (place / "results/comparisons").exists()
    code, text = run("a=other", "b=slow-old-0")
    assert code == 2
    assert "The nearest differ in load: concurrency 64 and concurrency 128." in " ".join(text.split())


def test_a_pattern_means_all_runs_that_match(run: Run) -> None:
    code, text = run("a=slow-new-*", "b=slow-old-*")
    assert code == 2
    assert f"a: {NAMES[0]}, against b: {NAMES[1]}. 1 cell compared: 1 worse." in " ".join(text.split())


def test_the_run_may_only_report(run: Run) -> None:
    code, text = run(*SLOW, "allow_worse=true")
    assert code == 0
    assert "WORSE" in text


def test_equal_runs_are_the_same(run: Run) -> None:
    code, text = run("a=equal-new-*", "b=equal-old-*")
    assert (code, "1 same" in text) == (0, True)


def test_published_results_beside_a_run(place: Path, run: Run) -> None:
    code, text = run("b=published")  # the last run
    assert code == 0
    assert "of latency_seconds" in text
    assert "differs in vllm 0.14.0, not" in text
    data = json.loads((place / "results/comparisons/amd-published.json").read_text())
    assert len(data["published"]) > 5
    assert all(item["same_work"] and item["ratios"] and item["differs"] for item in data["published"])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("a=amd", "b=previous"), "no run before amd measured one of its deployments on its hosts."),
        *(
            pytest.param(*case, marks=pytest.mark.deep)
            for case in (
                (("a=slow-new-9",), "has no run slow-new-9. Did you mean slow-new-"),
                (("a=fast-*",), "has no run fast-*."),
                (("a=slow-*", "b=slow-old-*"), "a and b both have slow-old-0, slow-old-1, slow-old-2"),
                (("a=amd", "b=latest"), "a and b both have amd."),
                (("compare_tolerance=0",), "compare_tolerance is 0, which is not a usable percentage."),
                (("compare_tolerance=x",), "-e compare_tolerance=x: must be a number."),
                (("alow_worse=true",), "Did you mean allow_worse?"),
            )
        ),
    ],
)
def test_mistakes(place: Path, args: tuple[str, ...], said: str, run: Run) -> None:
    code, text = run(*args)
    assert code != 0
    assert said in " ".join(text.split())
    assert not (place / "results/comparisons").exists()


def test_the_run_before_is_found(run: Run) -> None:
    code, text = run("a=slow-old-0")
    assert code == 0, text
    assert "against b: slow-new-0. 1 cell compared: 1 not clear." in text
    assert "llama in1024-out1024-c128: needs 4 runs of each" in text
