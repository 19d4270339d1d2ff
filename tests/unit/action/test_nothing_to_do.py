# SPDX-License-Identifier: Apache-2.0
"""A run with nothing to do on 32 hosts costs one call of a module on each, and moves no byte.

The playbooks, the roles and the planner are the real ones; what works on hosts only notes that it was called.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.action.test_call_limit import ELSEWHERE
from tests.unit.action.test_sick_host import NO_BALANCER, Fakes, fakes, play
from tests.worlds.generations_world import llama, run
from tests.worlds.plan_world import state

__all__ = ["fakes"]  # the fixture
HOSTS = tuple(f"n{number}" for number in range(1, 33))
# Everything that moves content between hosts, or keeps it, turned on.
KEEPS: dict[str, Any] = {
    "fetch_from": "peers",
    "distribution_limit": 10**8,
    "distribution_rates": {"uplink": 1000, "interface": 10000, "disk": 500},
    "vllm_serve_bundle_limit": 8 * 2**30,
    "vllm_serve_keep_generations": 7,
}


def calls(
    fakes: Fakes, place: Path, playbook: str, states: Any, *args: str
) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """What is called on hosts, by host, and the plan."""
    place.mkdir()
    variables = {**KEEPS, "plan_file": str(place / "plan.json")}
    done = play(fakes, place, playbook, states, llama(16), *args, **variables)
    assert done.rc == 0, done.out[-3000:]
    on_hosts = {
        host: [name for name in names if f"instinct.fleet.{name}" not in ELSEWHERE]
        for host, names in done.calls.items()
    }
    return on_hosts, json.loads((place / "plan.json").read_text(encoding="utf-8"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("playbook", [pytest.param("deploy", marks=pytest.mark.deep), "site"])
def test_one_call_on_each_of_32_hosts_and_no_byte(fakes: Fakes, tmp_path: Path, playbook: str) -> None:
    fresh = {name: state(hostname=name, libtorrent=True) for name in HOSTS}
    served = {name: {**found, "balancer": NO_BALANCER} for name, found in run(fresh, llama(16)).items()}
    found, plan = calls(fakes, tmp_path / "nothing", playbook, served, "--skip-tags", "benchmark")
    assert found == {name: ["node_state"] for name in HOSTS}
    assert not plan.get("transfers")
    # The same harness sees a transfer where there is one.
    served["n32"] = {**fresh["n32"], "balancer": NO_BALANCER}
    found, plan = calls(fakes, tmp_path / "one", playbook, served, "--skip-tags", "benchmark")
    assert [item["kind"] for item in plan["transfers"]] == ["model"]  # engines give no image on
    (seed,) = {item["seed"] for item in plan["transfers"]}
    assert "blob_fetch" in found[seed]
    assert {name for name, names in found.items() if names != ["node_state"]} == {seed, "n32"}
