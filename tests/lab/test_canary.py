# SPDX-License-Identifier: Apache-2.0
"""A bad release is stopped at the first instance, and an equal one is not."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

from .conftest import Lab, container, copy_inventory, reset_lab
from .helpers import SHORT_RUNS, completion, deployment

ANSWERS = "/srv/sanity.jsonl"
"""The right answers to the sanity set, on each node and in its containers."""


def standins(**env: str) -> dict[str, Any]:
    """Two instances of the stand-in on each node, which know the answers."""
    return deployment(
        instances_per_host=2,
        env={"STANDIN_ANSWERS": ANSWERS, **env},
        runtime={**deployment()["runtime"], "extra_mounts": [f"{ANSWERS}:{ANSWERS}:ro"]},
    )


@dataclass
class Place:
    """The tests' inventory and results, and the specs of the instances that each test begins with."""

    lab: Lab
    specs: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def place(lab_up: list[str], tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(copy_inventory(lab_up, tmp_path_factory.mktemp("canary")))


@pytest.fixture
def canary(place: Place) -> Lab:
    """The stand-ins, made anew when something else is there."""
    lab = place.lab
    lab.write_vars(vllm_deployments=[standins()])
    if not place.specs or specs(lab) != place.specs:
        reset_lab()
        for host in lab.hosts:
            file = ROOT / "catalog/accuracy/sanity.jsonl"
            subprocess.run(["docker", "cp", "-q", str(file), f"{container(host)}:{ANSWERS}"], check=True)
        run = lab.play("site", "--skip-tags", "benchmark")
        assert run.rc == 0, run.out[-3000:]
        place.specs = specs(lab)
        assert len(place.specs) == 2 * len(lab.hosts)
    return lab


def containers(lab: Lab) -> dict[str, tuple[str, str]]:
    """Container id and spec of every running instance, by host/instance."""
    text = "docker ps --no-trunc --format '{{.Names}} {{.ID}} {{.Label \"instinct-fleet.spec\"}}'"
    return {
        f"{host}/{name}": (number, spec)
        for host in lab.hosts
        for name, number, spec in (line.split() for line in lab.on(host, text).splitlines())
    }


def specs(lab: Lab) -> dict[str, str]:
    """Spec of every running instance."""
    return {key: spec for key, (_, spec) in containers(lab).items()}


def reports(lab: Lab) -> list[dict[str, Any]]:
    """canary.json of all canaries so far, in their order."""
    return [json.loads(path.read_text()) for path in sorted(Path(lab.tmp, "results").glob("*/canary.json"))]


def compare(lab: Lab, tries: int, reference: bool, **rules: int) -> list[dict[str, Any]]:
    """Compare an instance with itself; what was found. rules: variables of the judgement."""
    before = len(reports(lab))
    variables = {
        "tries": tries, "reference": reference, "canary_args": SHORT_RUNS, "canary_results_dir": f"{lab.tmp}/results",
        **rules,
    }  # fmt: skip
    run = lab.play("../tests/lab/plays/canary", "-e", json.dumps(variables))
    found = reports(lab)[before:]
    for item in found:
        lines = [
            (c["metric"], round(c["change"], 3), round(c["low"], 3), round(c["high"], 3))
            for c in item["comparisons"]
        ]
        print(item["verdict"], len(item["after"]), lines)
    assert run.rc == 0, run.out[-3000:]
    return found


MORE = pytest.mark.deep


@MORE
@pytest.mark.parametrize(("tries", "reference"), [(20, False), (20, True)])
def test_an_equal_engine_is_never_stopped(canary: Lab, tries: int, reference: bool) -> None:
    found = compare(canary, tries, reference)
    assert [item["verdict"] for item in found] == ["ok"] * tries
    assert all(item["before"]["own"]["output_throughput"] for item in found)
    assert all(item["accuracy"]["tasks"]["sanity"]["n"] == 300 for item in found)


# The new release's environment, the verdict, and what the run and the report say.
BAD = {
    # Half the speed, which is slower also on a machine that is busier for one release than for the other.
    "slow": ({"STANDIN_TOKENS_PER_SECOND": "50"}, "slower", "less output throughput (interval"),
    "less_accurate": ({"STANDIN_WRONG_RATE": "0.08"}, "less accurate", "points worse (interval of the loss"),
    "perturbed": (
        {"STANDIN_NLL_SHIFT": "0.05"},
        "less accurate",
        "NLL +0.0500 nat per token, more than another",
    ),
    "garbage": ({"STANDIN_GARBAGE": "1"}, "garbage", "12 of 12 answers are degenerate"),
    "dies_at_first_request": ({"STANDIN_FAIL": "first_request"}, "broken", "died_at_first_request"),
    "never_starts": ({"STANDIN_FAIL": "oom"}, "broken", "HIP out of memory"),
    "dies_under_load": ({"STANDIN_CRASH_AFTER": "400"}, "broken", "it could not be measured"),
}


@pytest.mark.parametrize(
    "name",
    [
        "slow",
        *(
            pytest.param(name, marks=MORE)
            for name in (
                "dies_at_first_request",
                "less_accurate",
                "perturbed",
                "garbage",
                "never_starts",
                "dies_under_load",
            )
        ),
    ],
)
def test_a_bad_release_is_stopped_at_the_first_instance(canary: Lab, name: str) -> None:
    env, kind, words = BAD[name]
    lab, before, seen = canary, containers(canary), len(reports(canary))
    lab.write_vars(vllm_deployments=[standins(**env)])
    variables = {"canary_args": SHORT_RUNS, "canary_results_dir": f"{lab.tmp}/results", "rollout_soak": 0}
    begun = time.monotonic()
    run = lab.play("upgrade", "-e", json.dumps(variables))
    print(f"{name}: {time.monotonic() - begun:.0f} s")
    assert run.rc != 0, run.out[-3000:]
    (found,) = reports(lab)[seen:]
    assert (found["verdict"], words in found["summary"]) == (kind, True), found["summary"]
    assert words in run.out
    assert found["change"]

    after = containers(lab)
    touched = [key for key in before if after.get(key) != before[key]]
    assert len(touched) == 1, touched
    assert touched[0] == f"{found['host']}/instinct-{found['new']['name']}"
    assert specs(lab) == {key: spec for key, (_, spec) in before.items()}
    assert completion(lab, found["host"], 8000)["usage"]["completion_tokens"] == 4


@pytest.mark.deep
def test_real_vllm_is_compared_with_itself(lab_up: list[str], tmp_path: Path) -> None:
    reset_lab()
    lab = copy_inventory(lab_up, tmp_path)  # its own deployment is the real vLLM
    run = lab.play("site", "--skip-tags", "benchmark", "--limit", "lab-n1")
    assert run.rc == 0, run.out[-3000:]
    # What it computes with are the cores of the tests beside it: its speed is theirs, too. What counts is that the
    # figures and the texts of the real one are understood.
    (found,) = compare(lab, 1, reference=False, canary_tolerance=60, canary_latency_tolerance=200)
    assert found["verdict"] == "ok"
    assert found["agreement"]["with_itself"] == 1
    assert [len(runs) for runs in found["before"]["own"].values()] == [5] * 4
