# SPDX-License-Identifier: Apache-2.0
"""Answers are scored and compared without a lost request; a replica with wrong weights is found, with the real vLLM."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.config import VLLM_VERSION
from tests import ROOT

from .conftest import Lab, Run, copy_inventory, reset_lab
from .endpoint import HOST, Endpoint
from .helpers import completion, deployment, wait_for

RUNBOOK = (ROOT / "docs/runbooks/accuracy.md").read_text(encoding="utf-8")
OPTIONS = re.findall(r"`… (-e accuracy_tasks=nll|-e accuracy_serial=20%|-e accuracy_live=true)`", RUNBOOK)
IMAGE = f"registry.lab:5000/lab/vllm:cpu_vllm_{VLLM_VERSION}"
RATE = 20  # requests per second

# Swaps the halves of a tensor, so that its values stay what they are, but are in other places.
PERTURB = """
import glob, json, os, struct
for path in glob.glob('/var/lib/instinct-fleet/hf/hub/models--lab--tiny-llama/snapshots/*/*.safetensors'):
    with open(os.path.realpath(path), 'r+b') as file:
        size, = struct.unpack('<Q', file.read(8))
        tensor = json.loads(file.read(size)).get('model.layers.1.mlp.down_proj.weight')
        if tensor:
            start, end = (8 + size + offset for offset in tensor['data_offsets'])
            file.seek(start)
            half = (end - start) // 2
            one, other = file.read(half), file.read(half)
            file.seek(start)
            file.write(other + one)
            print('perturbed')
"""


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
def endpoint(lab_up: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Two stand-in instances on each node, behind a load balancer."""
    reset_lab()
    lab = copy_inventory(lab_up, tmp_path_factory.mktemp("accuracy"))
    (lab.inventory / "balancer.yml").write_text(f"load_balancer:\n  hosts:\n    {HOST}:\n")
    lab.write_vars(vllm_deployments=[deployment(instances_per_host=2, engine_args={"shutdown_timeout": 5})])
    run = lab.play("site", "--skip-tags", "benchmark")
    assert run.rc == 0, run.out[-3000:]
    made = Endpoint(lab)
    made.trust()
    yield made
    reset_lab()


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
    assert "live: the instances served meanwhile" in run.out


def test_an_unknown_task_is_refused_before_an_instance_is_drained(endpoint: Endpoint) -> None:
    run = endpoint.lab.play("accuracy", "-e", "accuracy_tasks=sanety")
    assert run.rc != 0
    assert "unknown task sanety. sanety: Did you mean sanity?" in " ".join(run.out.split())
    assert not {"balancer_server", "vllm_accuracy"} & set(run.modules())


@pytest.fixture(scope="module")
def real(lab_up: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """An engine of the real vLLM on each node."""
    reset_lab()
    lab = copy_inventory(lab_up, tmp_path_factory.mktemp("real"))
    args = {"max_model_len": 1024, "max_num_seqs": 16, "enforce_eager": True}
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    lab.write_vars(vllm_deployments=[deployment(image=IMAGE, engine_args=args, env=env)])
    run = lab.play("deploy")
    assert run.rc == 0, run.out[-3000:]
    yield lab
    reset_lab()


@pytest.mark.deep  # 760 MB of packages
def test_lm_eval_scores_the_shipped_items_of_the_real_vllm(real: Lab) -> None:
    """Set LM_EVAL_PACKAGES to a directory that `pip download` filled as the runbook says: nodes have no network."""
    packages = os.environ.get("LM_EVAL_PACKAGES")
    if not packages:
        pytest.skip("LM_EVAL_PACKAGES names no directory of downloaded packages")
    variables = {"accuracy_tasks": [f"{ROOT}/catalog/accuracy"], "accuracy_lm_eval_packages": packages}
    for verdict in (None, "pass"):
        run = real.play(
            "accuracy", "-e", f"accuracy_results_dir={real.tmp}/lm-eval", "-e", json.dumps(variables)
        )
        assert run.rc == 0, run.out[-3000:]
        path = max(
            Path(real.tmp, "lm-eval").glob("*/accuracy.json"), key=lambda path: path.stat().st_mtime_ns
        )
        found = json.loads(path.read_text())["deployments"]["llama"]["tasks"]["instinct_sanity"]
        assert (found["n"], found["failed"]) == (300, [])
        assert (found["against"] or {}).get("verdict") == verdict
    left = real.on(real.hosts[0], "ls /var/lib/instinct-fleet/lm-eval/work")
    assert left == "", "a cache that would answer for the next release"


@pytest.mark.deep  # two real engines on two cores
def test_a_perturbed_tensor_of_the_real_vllm_is_found(real: Lab) -> None:
    lab = real
    healthy, odd = lab.hosts[:2]

    first = play(lab)
    assert first.rc == 0, first.out[-3000:]
    found = report(lab)["deployments"]["llama"]
    assert (
        found["tasks"]["sanity"]["n"] == 300
    )  # of an untrained model: nearly none is right, and none failed
    assert [replica["verdict"] for replica in found["replicas"]] == ["ok", "ok"]
    print("healthy:", found["replicas"], flush=True)

    assert "perturbed" in lab.on(odd, f"python3 -c \"$(cat <<'EOF'\n{PERTURB}\nEOF\n)\"")
    lab.on(odd, "docker restart instinct-llama-0")

    def serves() -> bool:
        try:
            return bool(completion(lab, odd, 8000)["usage"]["completion_tokens"])
        except (AssertionError, ValueError, KeyError):
            return False

    wait_for("the restarted engine", serves)
    second = play(lab, "-e accuracy_tasks=nll")
    assert second.rc == 2, second.out[-3000:]
    found = report(lab)["deployments"]["llama"]
    print("perturbed:", found["replicas"], flush=True)
    assert {replica["replica"]: replica["verdict"] for replica in found["replicas"]} == {
        f"{healthy}/llama-0": "ok",
        f"{odd}/llama-0": "outlier",
    }
    seconds = [
        r["result"]["instances"][0]["seconds"] for r in second.records if r["module"] == "vllm_accuracy"
    ]
    print(f"found in {sum(seconds):.0f} s of asking", flush=True)
