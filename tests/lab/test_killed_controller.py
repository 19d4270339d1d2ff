# SPDX-License-Identifier: Apache-2.0
"""A controller that dies in the middle leaves nothing that the next run does not finish."""

from __future__ import annotations

import os
import signal

import pytest

from .conftest import Lab, copy_inventory, reset_lab
from .helpers import completion, deployment, node_state, wait_for

pytestmark = (
    pytest.mark.deep
)  # five minutes; in every run, test_rollout kills one in the middle of an upgrade
VARIABLES = {"vllm_deployments": [deployment(env={"STANDIN_STARTUP_SECONDS": "15"})]}

FETCHING = "docker ps --format '{{.Names}}' | grep -q ^instinct-fetch-"
STARTING = "docker ps --format '{{.Names}}' | grep -q ^instinct-llama-0"


@pytest.fixture(scope="module")
def undisturbed(lab_up: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The state of the nodes after a run that nothing disturbed."""
    reset_lab()
    lab = copy_inventory(lab_up, tmp_path_factory.mktemp("undisturbed"))
    lab.write_vars(**VARIABLES)
    run = lab.play("site", "--skip-tags", "benchmark")
    assert run.rc == 0, run.out
    return node_state(lab)


def test_what_is_compared_is_all_there(undisturbed: dict[str, str]) -> None:
    assert len(undisturbed) >= 2
    for state in undisturbed.values():
        assert "instances/llama-0/serve.sh" in state
        assert "generations" in state or "llama/1.json" in state
        assert "instinct-llama-0 running" in state
        assert "registry.lab:5000/lab/standin sha256:" in state


@pytest.mark.parametrize(
    ("moment", "condition"),
    [("fetch", FETCHING), ("deploy", STARTING)],
)
def test_the_next_run_finishes_the_job(
    undisturbed: dict[str, str], fresh_lab: Lab, moment: str, condition: str
) -> None:
    fresh_lab.write_vars(**VARIABLES)
    if moment == "fetch":
        fresh_lab.hub_faults(bytes_per_second=150_000)  # half a minute, so that its middle is found
    victim = fresh_lab.start("site", "--skip-tags", "benchmark")
    try:
        wait_for(
            f"a node in the middle of {moment}",
            lambda: any(
                fresh_lab.on(h, f"{condition} && echo yes", check=False).strip() == "yes"
                for h in fresh_lab.hosts
            ),
        )
    finally:
        os.killpg(victim.pid, signal.SIGKILL)
        victim.communicate()
        fresh_lab.hub_faults()

    run = fresh_lab.play("site", "--skip-tags", "benchmark")
    assert run.rc == 0, run.out
    # The run that finished the job waited for tokens, also of a server that the killed one had started.
    for host in fresh_lab.hosts:
        assert completion(fresh_lab, host, 8000)["usage"]["completion_tokens"] == 4
    assert node_state(fresh_lab) == undisturbed
    again = fresh_lab.play("site", "--skip-tags", "benchmark")
    assert again.changed() == []
