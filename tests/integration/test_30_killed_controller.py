# SPDX-License-Identifier: Apache-2.0
"""A controller that dies in the middle leaves nothing that the next run does not finish."""

from __future__ import annotations

import os
import signal

import pytest

from .conftest import Lab
from .helpers import completion, deployment, node_state, wait_for

VARIABLES = {"vllm_deployments": [deployment(env={"STANDIN_STARTUP_SECONDS": "15"})]}

# Upgrades that are killed are in test_87, and in every run.
pytestmark = pytest.mark.deep

FETCHING = "docker ps --format '{{.Names}}' | grep -q ^instinct-fetch-"
STARTING = "docker ps --format '{{.Names}}' | grep -q ^instinct-llama-0"


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, str]:
    """The state of the nodes after a run that nothing disturbed; filled by the first test."""
    return {}


def test_a_run_that_nothing_disturbs(fresh_lab: Lab, undisturbed: dict[str, str]) -> None:
    fresh_lab.write_vars(**VARIABLES)
    run = fresh_lab.play("site", "--skip-tags", "benchmark")
    assert run.rc == 0, run.out
    undisturbed.update(node_state(fresh_lab))


@pytest.mark.parametrize(("moment", "condition"), [("fetch", FETCHING), ("deploy", STARTING)])
def test_the_next_run_finishes_the_job(
    fresh_lab: Lab, undisturbed: dict[str, str], moment: str, condition: str
) -> None:
    fresh_lab.write_vars(**VARIABLES)
    if moment == "fetch":
        fresh_lab.hub_faults(bytes_per_second=600_000)
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
