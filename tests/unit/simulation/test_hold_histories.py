# SPDX-License-Identifier: Apache-2.0
"""Random histories of a deployment: it is held exactly as long as the inventory defines what failed its verdict last.

Each run is of deploy.yml or upgrade.yml, with one of a few definitions, and ends well, dies, fails its verdict, or
lacks a host. HISTORIES sets how many histories are drawn.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.unit.simulation.test_random_edits import failures
from tests.worlds import mishaps
from tests.worlds.edited_fleet import Inventory, Planned, Site, carried_out, planned, settled
from tests.worlds.plan_world import deployment

HISTORIES = int(os.environ.get("HISTORIES", "15"))
RUNS = 6
FLEET = {"n1": "192.0.2.11", "n2": "192.0.2.12"}


def made(name: str = "ada", seqs: int = 0) -> tuple[dict[str, Any], ...]:
    more = {"engine_args": {"max_num_seqs": seqs}} if seqs else {}
    return (
        deployment(
            name=name,
            gpus=[0, 1],
            instances_per_host=2,
            port=8000,
            served_model_name="lab/tiny-llama",
            **more,
        ),
    )


DEFINITIONS = {
    "as it was": made(),
    "a flag": made(seqs=16),
    "another flag": made(seqs=32),
    "renamed": made("bob"),
    "renamed, and a flag": made("bob", 16),
}
ENDS = ("well", "well", "a failed verdict", "a failed verdict", "death", "a host down")


@dataclass
class Fleet:
    """What the hosts have, and what an operator would say of it. failed: the definition of the last failed verdict."""

    site: Site
    failed: str = ""
    serves: str = "as it was"
    hours: int = 0
    told: list[str] = field(default_factory=list)

    def times(self) -> tuple[str, str]:
        """The beginning and the end of the next run."""
        self.hours += 1
        return f"2026-12-01T{self.hours:02}:00:00Z", f"2026-12-01T{self.hours:02}:30:00Z"


@settings(max_examples=HISTORIES)
@given(st.data())
def test_a_definition_is_held_exactly_if_its_last_verdict_failed(data: Any) -> None:
    fleet = Fleet(settled(of(DEFINITIONS["as it was"])))
    for _ in range(RUNS):
        one_run(data.draw, fleet)


def of(deployments: tuple[dict[str, Any], ...]) -> Inventory:
    return Inventory(FLEET, {"n1": FLEET["n1"]}, deployments)


def one_run(draw: Any, fleet: Fleet) -> None:
    """Run a playbook once; then, if nothing disturbed it, once more, which has nothing to do."""
    wanted = draw(st.sampled_from(sorted(DEFINITIONS)))
    ends = draw(st.sampled_from(ENDS))
    operation = draw(st.sampled_from(("deploy", "upgrade")))
    again = operation == "upgrade" and draw(st.integers(0, 4)) == 0
    fleet.told.append(f"{operation} {wanted!r}{' again' if again else ''}, {ends}")
    inventory, times = of(DEFINITIONS[wanted]), fleet.times()
    seen = Site({**fleet.site.states, "n2": None}, fleet.site.seen) if ends == "a host down" else fleet.site
    try:
        done = planned(inventory, seen, operation, retry=again)
    except FleetError as error:  # such as after a run that died with too few in service
        if "rollout_min_available" not in str(error):
            raise
        event("refused")
        return
    assert not done.plan.excluded, (fleet.told, done.plan.excluded)
    held = fleet.failed == wanted and not again
    assert bool(done.plan.ignored) == held, (fleet.told, fleet.failed, done.plan.ignored)
    if not held:
        fleet.failed = ""
    if ends == "a failed verdict" and (there := [one for one in failures(done) if one[0]["holds"]]):
        event("a release is turned back")
        fleet.site = mishaps.turned_back(done, inventory, seen, draw(st.sampled_from(there)), times)
        fleet.failed = wanted
        return
    if ends == "death":
        moment = draw(st.sampled_from(mishaps.moments(done)))
        fleet.site = mishaps.died_at(moment, done, inventory, seen, times)
        return
    after = carried_out(done, inventory, seen, times[1])
    if ends == "a host down":
        fleet.site = Site({**after.states, "n2": fleet.site.states["n2"]}, after.seen)
        return
    fleet.site = after
    assert_nothing_left(planned(inventory, after, operation), after, held, fleet)


def assert_nothing_left(left: Planned, after: Site, held: bool, fleet: Fleet) -> None:
    """The next run does nothing, and says what is held if anything is; else no host holds anything."""
    assert left.plan.changes == 0, (
        fleet.told,
        [host.actions for host in (*left.plan.hosts, *left.plan.balancers) if host.actions],
    )
    assert bool(left.plan.ignored) == held, fleet.told
    holds = {
        (name, history["deployment"])
        for name, state in after.states.items()
        for history in state["generations"]
        if history["held"]
    }
    assert bool(holds) == held, (fleet.told, holds)
    groups = {name for entry in left.todo for name in entry["groups"]}
    assert groups == ({"fleet_held"} if held else set()), fleet.told
