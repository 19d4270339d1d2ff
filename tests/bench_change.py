# SPDX-License-Identifier: Apache-2.0
"""What it costs to plan a change of all instances, and to prove the plan: fleets with two load balancers."""

from __future__ import annotations

import time

from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.proof import (
    proof_and_refusals,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.request import OPTIONS

from tests.worlds.edited_fleet import Inventory, Planned, Site, edited, planned, settled
from tests.worlds.plan_world import deployment

BALANCERS = {"lb1": "10.1.0.1", "lb2": "10.1.0.2"}
PROVED = {name: option.get("default") for name, option in OPTIONS.items()} | {
    "operation": "upgrade",
    "apply": True,
    "offline": False,
}


def changed_fleet(hosts: int, instances: int) -> tuple[Inventory, Site]:
    """A fleet on which everything runs, and its inventory after an edit that changes every instance."""
    addresses = {f"n{number}": f"10.0.{number // 250}.{number % 250 + 1}" for number in range(hosts)}
    machines = {name: (address,) for name, address in (addresses | BALANCERS).items()}
    before, after = (
        (deployment(instances_per_host=instances, engine_args={"max_num_seqs": requests}),)
        for requests in (64, 65)
    )
    inventory = Inventory(addresses, BALANCERS, before, machines=machines)
    return edited(inventory, deployments=after), settled(inventory)


def upgrade(inventory: Inventory, site: Site) -> Planned:
    """Plan the upgrade."""
    return planned(inventory, site, "upgrade")


def prove(done: Planned) -> list[str]:
    """Prove the plan as fleet_plan does, and return the lines that say so."""
    lines, refused = proof_and_refusals(PROVED, done.plan, done.todo, done.rollout, None)
    assert lines
    assert not refused
    return lines


def planned_and_proved(hosts: int, instances: int) -> tuple[float, float]:
    """CPU seconds of planning the upgrade, and of proving it; the best of three, in turn."""
    inventory, site = changed_fleet(hosts, instances)

    def once() -> tuple[float, float]:
        start = time.process_time()
        done = upgrade(inventory, site)
        between = time.process_time()
        prove(done)
        return between - start, time.process_time() - between

    rounds = [once() for _ in range(3)]
    return min(row[0] for row in rounds), min(row[1] for row in rounds)
