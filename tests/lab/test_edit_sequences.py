# SPDX-License-Identifier: Apache-2.0
"""Random edits on the lab, ten in a row: nothing lost, whatever is edited and whenever the controller dies.

EDIT_SEQUENCES (10) are carried out, from the seed EDIT_SEED (the day by default); each prints its own seed and edits.
"""

from __future__ import annotations

import datetime
import os
import random

import pytest

from tests.worlds.edited_fleet import Inventory
from tests.worlds.edits import (
    EDITS,
    Seeded,
    add_balancer,
    compute_mode,
    edit,
    image,
    model,
    opened_at,
    rollout,
    virtual_address,
)

from .conftest import Lab, copy_inventory, reset_lab
from .edited import NEW_KEY, EditedLab, machines

ROW = 10
KILLED = 3
MOST_DRAWN = 40
# Both have tests of their own; modes have a command of their own, too.
ELSEWHERE = (compute_mode, virtual_address)
# Images and models are not the lab's; its load knows one address of a load balancer, and half of what serves may leave.
WITHOUT = (image, model, opened_at, rollout)
DRAWN = [change for change in EDITS if change not in (*ELSEWHERE, *WITHOUT)]
FIRST = os.environ.get("EDIT_SEED", datetime.date.today().isoformat())
SEEDS = [f"{FIRST}/{number}" for number in range(int(os.environ.get("EDIT_SEQUENCES", "10")))]
# A run is over after half a minute to two; it dies while it plans, in a batch, or between two of them.
DIES_AFTER = (6.0, 45.0)

pytestmark = [pytest.mark.deep, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("seed", SEEDS)
def test_ten_edits_in_a_row(lab_up: list[str], tmp_path_factory: pytest.TempPathFactory, seed: str) -> None:
    """An edit that is refused by name, or whose plan tells of a gap, is left out, and another one drawn."""
    source = random.Random(seed)
    draw = Seeded(source)
    reset_lab()
    fleet = first(copy_inventory(lab_up, tmp_path_factory.mktemp("edits")), draw)
    dying = set(source.sample(range(ROW), KILLED))
    key = fleet.inventory.key  # that hosts have, which learn of another one with load balancers only
    for number in range(ROW):
        for _ in range(MOST_DRAWN):
            # Without a load balancer nothing is asked.
            edits = DRAWN if fleet.inventory.balancers else [add_balancer]
            after, names = edit(draw, fleet.inventory, most=2, edits=edits)
            print(f"seed {seed}, edit {number + 1}: {', '.join(names)}", flush=True)
            word = NEW_KEY if after.key != key else ()
            refused = fleet.refused(after, *word)
            if not refused:
                break
            print(f"  refused: {refused}", flush=True)
        else:
            pytest.fail(f"{MOST_DRAWN} edits in a row were refused, the last one: {refused}")
        killed = (source.uniform(*DIES_AFTER),) if number in dying else ()
        fleet.edit(after, "deploy", *word, killed=killed)
        key = after.key if after.balancers else key


def first(lab: Lab, draw: Seeded) -> EditedLab:
    """One or two deployments on two nodes with a load balancer."""
    there = machines(lab.hosts)
    hosts = {name: addresses[0] for name, addresses in there.items()}
    deployments = [
        {"name": "ada", "gpus": [0, 1], "instances_per_host": 2, "port": 8000, "served_model_name": "chat"},
        {"name": "bob", "gpus": [2], "instances_per_host": 1, "port": 8020, "served_model_name": "chat-fast"},
    ]
    balancer = draw.one_of(sorted(hosts))
    chosen = tuple(deployments[: draw.number(1, 2)])
    return EditedLab.deployed(lab, Inventory(hosts, {balancer: hosts[balancer]}, chosen, machines=there))
