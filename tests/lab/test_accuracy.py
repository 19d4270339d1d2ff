# SPDX-License-Identifier: Apache-2.0
"""Answers are scored and compared without a lost request. test_real_accuracy does it with the real vLLM."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

from .conftest import Lab, Run
from .endpoint import Endpoint
from .helpers import deployment

pytestmark = pytest.mark.deep
RUNBOOK = (ROOT / "docs/runbooks/accuracy.md").read_text(encoding="utf-8")
OPTIONS = re.findall(r"`… (-e accuracy_tasks=nll|-e accuracy_serial=20%|-e accuracy_live=true)`", RUNBOOK)
RATE = 20  # requests per second


def report(lab: Lab) -> dict[str, Any]:
    """The newest run's accuracy.json."""
    path = max(Path(lab.tmp, "results").glob("*/accuracy.json"), key=lambda path: path.stat().st_mtime_ns)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def play(lab: Lab, *options: str) -> Run:
    """Run accuracy.yml with options of the runbook."""
    assert "playbooks/accuracy.yml" in RUNBOOK
    for option in options:
        assert option in OPTIONS, f"not in the runbook: {option}"
    words = [word for option in options for word in shlex.split(option)]
    return lab.play("accuracy", "-e", f"accuracy_results_dir={lab.tmp}/results", *words)


@pytest.fixture(scope="module")
def endpoint(balanced_lab: Lab) -> Endpoint:
    """Two stand-in instances on each node, behind a load balancer."""
    balanced_lab.write_vars(
        vllm_deployments=[deployment(instances_per_host=2, engine_args={"shutdown_timeout": 5})]
    )
    return Endpoint.deployed(balanced_lab)


def test_users_lose_nothing_while_answers_are_scored(endpoint: Endpoint) -> None:
    """The items are shared by all replicas, each is drained before it is asked, and the second run is equal."""
    lab = endpoint.lab
    with endpoint.load(RATE) as load:
        load.wait_for(2 * RATE)
        first = play(lab)
        assert first.rc == 0, first.out[-3000:]
        found = report(lab)["deployments"]["llama"]
        assert found["against"] is None
        assert found["tasks"]["sanity"]["n"] == 300
        assert [replica["verdict"] for replica in found["replicas"]] == ["ok"] * 4
        second = play(lab, "-e accuracy_serial=20%")
        assert second.rc == 0, second.out[-3000:]
        load.wait_for(2 * RATE)
        assert load.problems() == {}
    against = report(lab)["deployments"]["llama"]["tasks"]["sanity"]["against"]
    assert (against["verdict"], against["lost"], against["gained"]) == ("pass", 0, 0)
    drained = [r for r in second.records if r["module"] == "balancer_server"]
    assert len(drained) >= 2 * len(lab.hosts)
    assert set(endpoint.stat("weight").values()) != {0}


def test_live_asks_without_draining(endpoint: Endpoint) -> None:
    run = play(endpoint.lab, "-e accuracy_live=true", "-e accuracy_tasks=nll")
    assert run.rc == 0, run.out[-3000:]
    assert "balancer_server" not in run.modules()
    found = report(endpoint.lab)
    assert found["live"] is True
    assert found["deployments"]["llama"]["tasks"] == {}
    assert "live: the instances served at the same time" in run.out


def test_an_unknown_task_is_refused_before_an_instance_is_drained(endpoint: Endpoint) -> None:
    run = endpoint.lab.play("accuracy", "-e", "accuracy_tasks=sanety")
    assert run.rc != 0
    assert "unknown task sanety. sanety: Did you mean sanity?" in " ".join(run.out.split())
    assert not {"balancer_server", "vllm_accuracy"} & set(run.modules())
