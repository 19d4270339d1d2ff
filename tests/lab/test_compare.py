# SPDX-License-Identifier: Apache-2.0
"""The loop of docs/compare.md, as it is written there: two releases take turns on a fleet that serves."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

import pytest

from tests import ROOT

from .conftest import BIN, Lab
from .endpoint import Endpoint
from .helpers import deployment

TURNS = 2  # of four instances each: eight pairs, and six are the least
RATE = 5  # requests per second
SPEED = 50  # tokens per second of each request: on two busy cores, waiting is steadier than working
LOAD: dict[str, Any] = {
    "dataset_name": "random", "random_input_len": 32, "random_output_len": 32, "num_prompts": 32,
    "max_concurrency": 8, "temperature": 0, "ignore_eos": True,
}  # fmt: skip


def want(lab: Lab, speed: int, seed: int = 0) -> None:
    """What the inventory wants: two instances on each node; releases of another seed are equally fast."""
    env = {"STANDIN_TOKENS_PER_SECOND": str(speed), "STANDIN_SEED": str(seed)}
    lab.write_vars(
        vllm_deployments=[deployment(instances_per_host=2, env=env, engine_args={"shutdown_timeout": 20})],
        benchmark_serve_args=LOAD,
        benchmark_repeat=1,
        rollout_serial=2,
        rollout_soak=0,
    )


def loop(trial: str) -> str:
    """The commands of the document, with the lab's number of turns and a trial's name."""
    blocks = re.findall(r"```console\n(.+?)```", (ROOT / "docs/compare.md").read_text("utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if "for turn in" in block)
    script, count = re.subn(
        r"^turns=6 old=1 trial=fp8$",
        f"turns={TURNS} old=1 trial={trial}",
        re.sub(r"^\$ ", "", block, flags=re.MULTILINE),
        flags=re.MULTILINE,
    )
    assert count == 1, script
    return script


def take_turns(lab: Lab, trial: str) -> tuple[int, str, dict[str, Any]]:
    """Run the document's commands; return the exit code of the last one, all output, and the comparison."""
    env, _record = lab.environment()
    done = subprocess.run(
        ["bash", "-c", loop(trial).replace("inventory/mine", str(lab.inventory))],
        cwd=ROOT, env={**env, "PATH": f"{BIN}:{os.environ['PATH']}"}, text=True, timeout=3000, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    found = sorted((lab.tmp / "results/comparisons").glob(f"{trial}-*.json"))
    assert found, done.stdout[-4000:]
    return done.returncode, done.stdout, json.loads(found[0].read_text())


@pytest.fixture(scope="module")
def endpoint(balanced_lab: Lab) -> Endpoint:
    """The old release, behind a load balancer: generation 1."""
    want(balanced_lab, SPEED)
    return Endpoint.deployed(balanced_lab)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("trial", "speed", "seed", "code", "verdicts", "change"),
    [
        ("slow", 40, 0, 2, {"worse"}, (-0.25, -0.12)),
        # Beside what the trial before it has left: a generation between the old one and this.
        ("equal", SPEED, 1, 0, {"same", "not clear"}, (-0.08, 0.08)),
    ],
)
def test_releases_that_took_turns(
    endpoint: Endpoint,
    trial: str,
    speed: int,
    seed: int,
    code: int,
    verdicts: set[str],
    change: tuple[float, float],
) -> None:
    lab = endpoint.lab
    want(lab, speed, seed)
    with endpoint.load(RATE) as load:
        rc, out, found = take_turns(lab, trial)
    print(load.assert_nothing_lost(at_least=100))
    print(out[out.rindex("compared:") :])
    (cell,) = found["cells"]
    assert (rc, cell["design"], cell["instances"]) == (code, "interleaved", 2 * len(lab.hosts)), out[-4000:]
    assert cell["runs"] == [TURNS * cell["instances"]] * 2
    assert cell["verdict"] in verdicts
    assert change[0] < cell["change"] < change[1]
    # What served in each turn is what the loop means.
    assert {item["name"] for item in found["differences"]} == {
        "STANDIN_SEED" if seed else "STANDIN_TOKENS_PER_SECOND"
    }
