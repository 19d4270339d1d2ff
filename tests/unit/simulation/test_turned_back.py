# SPDX-License-Identifier: Apache-2.0
"""Releases that failed their verdict, by name: what is held, what serves, and what ends it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.text import explain_rollout

from tests.helpers.some import some
from tests.unit.simulation.test_random_edits import failures
from tests.worlds import mishaps
from tests.worlds.edited_fleet import Inventory, Planned, Site, carried_out, planned, settled
from tests.worlds.plan_world import deployment

FLEET = {"n1": "192.0.2.11", "n2": "192.0.2.12"}
LATER = ("2026-12-01T10:00:00Z", "2026-12-01T11:00:00Z")


def of(*deployments: dict[str, Any]) -> Inventory:
    return Inventory(FLEET, {"n1": FLEET["n1"]}, deployments)


def made(name: str, *gpus: int, port: int = 8000, **more: Any) -> dict[str, Any]:
    return deployment(
        name=name, gpus=list(gpus), instances_per_host=len(gpus), port=port, served_model_name=name, **more
    )


def named(name: str, *gpus: int, port: int = 8000) -> dict[str, Any]:
    """A deployment that serves the same name as those that it takes over from, or that take over from it."""
    return {**made(name, *gpus, port=port), "served_model_name": "lab/tiny-llama"}


FLAG = {"engine_args": {"max_num_seqs": 16}}
EDITS: dict[str, tuple[Inventory, Inventory, dict[str, int]]] = {
    "a flag": (of(made("ada", 0, 1)), of(made("ada", 0, 1, **FLAG)), {"ada": 1}),
    "a flag of one of two": (
        of(made("ada", 0, 1), made("bob", 2, 3, port=8100)),
        of(made("ada", 0, 1, **FLAG), made("bob", 2, 3, port=8100)),
        {"ada": 1},
    ),
    "renamed": (of(made("ada", 0, 1)), of(made("bob", 0, 1)), {"ada": 1, "bob": 0}),
    "renamed, and its clients notice nothing": (
        of(named("ada", 0, 1)),
        of(named("bob", 0, 1)),
        {"ada": 1, "bob": 0},
    ),
    "split": (
        of(named("ada", 0, 1)),
        of(named("ada", 0), named("bob", 1, port=8001)),
        {"ada": 1, "bob": 0},
    ),
    "joined": (
        of(made("ada", 0), made("bob", 1, port=8001)),
        of(made("ada", 0, 1)),
        {"ada": 1, "bob": 1},
    ),
    "GPUs exchanged": (
        of(made("ada", 0, 1), made("bob", 2, 3, port=8100)),
        of(made("ada", 2, 3), made("bob", 0, 1, port=8100)),
        {"ada": 1, "bob": 1},
    ),
}

AT_NIGHT = {"a flag of one of two", "renamed, and its clients notice nothing", "joined"}


def some_now(*edits: str, now: Collection[str] = EDITS.keys() - AT_NIGHT) -> list[Any]:
    """Edits, of which those that resemble another one run in make deep only. now: the others."""
    return [pytest.param(edit, marks=() if edit in now else pytest.mark.deep) for edit in edits]


def back(before: Inventory, after: Inventory, holds: dict[str, int]) -> tuple[Site, Planned]:
    """What the hosts have when the first batch with these holds failed its verdict; and the plan of that run."""
    site = settled(before)
    done = planned(after, site, "upgrade", min_available=1)
    there = [failed for failed in failures(done) if failed[0]["holds"] == holds]
    assert there, [(batch["text"], batch["holds"]) for batch, _phase in failures(done)]
    return mishaps.turned_back(done, after, site, there[0]), done


def names(site: Site) -> set[tuple[str, str]]:
    return {(host, item["name"]) for host, found in site.states.items() for item in found["instances"]}


def holding(site: Site) -> dict[str, int]:
    return {
        history["deployment"]: history["held"]["generation"]
        for found in site.states.values()
        for history in found["generations"]
        if history["held"]
    }


@pytest.mark.parametrize("operation", ["deploy", "upgrade"])
@pytest.mark.parametrize("edit", EDITS)
def test_what_served_serves_on_and_the_edit_is_held(edit: str, operation: str) -> None:
    before, after, holds = EDITS[edit]
    site, _done = back(before, after, holds)
    assert holding(site) == holds
    again = planned(after, site, operation)
    assert not again.simulate().violations
    site = carried_out(again, after, site, LATER[0])
    assert names(site) == names(settled(before))
    left = planned(after, site, operation)
    assert (left.plan.changes, left.rollout.batches if left.rollout else ()) == (0, ())
    assert sorted(line.partition(" ")[0] for line in left.plan.ignored) == sorted(holds)
    assert all("fleet_held" in entry["groups"] for entry in left.todo)
    assert left.todo
    assert holding(site) == holds


@pytest.mark.parametrize("operation", ["deploy", "upgrade"])
@pytest.mark.parametrize("edit", some_now(*EDITS))
@pytest.mark.parametrize("way", ["put back", "retry", "another definition"])
def test_what_ends_it(edit: str, operation: str, way: str) -> None:
    before, after, holds = EDITS[edit]
    if way == "retry":
        operation = "upgrade"
    site, _done = back(before, after, holds)
    other = of(*({**one, "engine_args": {"max_num_seqs": 8}} for one in after.deployments))
    wanted = {"put back": before, "retry": after, "another definition": other}[way]
    done = planned(wanted, site, operation, retry=way == "retry", min_available=1)
    assert done.plan.ignored == []
    site = carried_out(done, wanted, site, LATER[1])
    assert (holding(site), names(site)) == ({}, names(settled(wanted)))
    left = planned(wanted, site, operation)
    assert (left.plan.changes, left.plan.ignored, left.todo) == (0, [], [])


def test_what_served_before_is_not_held_when_it_is_put_back_after_an_interruption() -> None:
    before, after, _holds = EDITS["a flag"]
    site = settled(before)
    done = planned(after, site, "upgrade", min_available=1)
    moment = next(item for item in mishaps.moments(done) if "phase watch" in item.step)
    died = mishaps.died_at(moment, done, after, site)
    there = planned(before, died, "upgrade", min_available=1)
    assert there.rollout
    assert there.rollout.batches
    assert [batch["holds"] for batch in there.rollout.batches] == [{}] * len(there.rollout.batches)


def test_what_a_rollback_left_undone_is_held_at_what_runs() -> None:
    """A rollback holds the generation that it goes to; a deploy that goes on to it fails, and goes back from there."""
    before, after, holds = EDITS["a flag"]
    site = settled(before)
    done = planned(after, site, "upgrade")
    site = mishaps.died_at(mishaps.moments(done)[0], done, after, site)
    for found in site.states.values():
        for history in found["generations"]:
            history.update(trial=None, held={"generation": 2, "why": "rolled back", "since": LATER[0]})
    again = planned(after, site, "upgrade")
    failed = next(failed for failed in failures(again) if failed[0]["holds"])
    assert failed[0]["holds"] == holds
    site = mishaps.turned_back(again, after, site, failed, LATER)
    assert holding(site) == holds
    assert planned(after, site, "upgrade").plan.excluded == ()


@pytest.mark.parametrize("edit", some_now(*EDITS, now={"GPUs exchanged"}))
def test_a_release_that_was_interrupted_is_turned_back_as_a_whole(edit: str) -> None:
    """Also when what it replaces is gone already, and only the last batch is left."""
    before, after, holds = EDITS[edit]
    site = settled(before)
    done = planned(after, site, "upgrade", min_available=1)
    found = [
        (moment.step, batch["holds"])
        for moment in mishaps.moments(done)[1:-1]
        for batch, _phase in failures(
            planned(after, mishaps.died_at(moment, done, after, site), "upgrade", min_available=1)
        )
        if batch["holds"]
    ]
    assert [item for item in some(found) if item[1] != holds] == []


def test_a_host_that_joins_after_an_interruption_fails_alone() -> None:
    """What serves elsewhere is the same definition, so that none is turned back."""
    first = of(named("ada", 0, 1))
    wanted = replace(first, hosts={**FLEET, "n3": "192.0.2.13"})
    done = planned(wanted, settled(first), "upgrade")
    found = [
        (moment.step, batch["holds"])
        for moment in mishaps.moments(done)[:-1]
        for batch, _phase in failures(
            planned(wanted, mishaps.died_at(moment, done, wanted, settled(first)), "upgrade")
        )
    ]
    assert [item for item in some(found) if item[1]] == []


AWAY = {
    "its release changes": (named("dan", 0, 1), {**named("dan", 0, 1), **FLAG}, {"ada": 2, "dan": 1}, []),
    "another one gets its port": (
        made("bob", 2, port=8100),
        made("bob", 2, port=8001),
        {"ada": 2, "bob": 1},
        ["n3"],
    ),
}


@pytest.mark.parametrize("case", AWAY)
def test_a_host_that_was_away_keeps_what_has_left_meanwhile(case: str) -> None:
    """It comes back with a deployment that was renamed, and the release that removes it there fails."""
    old, new, holds, left_out = AWAY[case]
    rest = [] if old["name"] == "dan" else [named("dan", 0)]
    more = {**FLEET, "n3": "192.0.2.13"}
    first = replace(of(named("ada", 0, 1), *([old] if rest else [])), hosts=more)
    renamed, wanted = of(old, *rest), replace(of(new, *rest), hosts=more)
    site = carried_out(planned(renamed, settled(first)), renamed, settled(first))
    done = planned(wanted, site, "upgrade", min_available=1)
    there = some(failed for failed in failures(done) if "n3/ada-1" in str(failed[0]["units"]))
    assert all(batch["holds"] == holds for batch, _phase in there)
    turned = mishaps.turned_back(done, wanted, site, there[0])
    again = planned(wanted, turned, "upgrade", min_available=1)
    assert [host for host, _why in again.plan.excluded] == left_out
    assert again.simulate().violations == ()
    assert names(carried_out(again, wanted, turned)) == names(site)
    ended = planned(of_seqs(wanted, 8), carried_out(again, wanted, turned), "upgrade", min_available=1)
    assert (ended.plan.excluded, ended.plan.ignored) == ((), [])


def test_a_host_that_comes_back_and_fails_changes_nothing_elsewhere() -> None:
    """It was away when the others got the release, and the host from which the deployment was taken does not get it."""
    more = {**FLEET, "n3": "192.0.2.13"}
    first = replace(of(named("ada", 0, 1)), hosts=more)
    released = of({**named("ada", 0, 1), **FLAG, "hosts": ["n2"]})
    site = carried_out(planned(released, settled(first)), released, settled(first))
    wanted = replace(of({**named("ada", 0, 1), **FLAG, "hosts": ["n2", "n3"]}), hosts=more)
    for inventory, holds in ((wanted, {}), (of_seqs(wanted, 8), {"ada": 2})):
        done = planned(inventory, site, "upgrade", min_available=1)
        for failed in some(failures(done)):
            assert failed[0]["holds"] == holds
            back_again = mishaps.turned_back(done, inventory, site, failed)
            again = planned(inventory, back_again, "upgrade", min_available=1)
            assert (again.plan.excluded, again.simulate().violations) == ((), ())
            there = carried_out(again, inventory, back_again)
            assert names(there) == names(site)


@pytest.mark.parametrize(
    "edit", some_now("renamed", "renamed, and its clients notice nothing", "split", "joined")
)
def test_what_was_turned_back_is_turned_back_again(edit: str) -> None:
    """The next definition fails, too: what the first one would have replaced has to stay once more."""
    before, after, holds = EDITS[edit]
    site, _done = back(before, after, holds)
    site = carried_out(planned(after, site, min_available=1), after, site, LATER[0])
    other = of_seqs(after, 8)
    done = planned(other, site, "upgrade", min_available=1)
    there = some(failed for failed in failures(done) if failed[0]["holds"])
    assert all(batch["holds"] == holds for batch, _phase in there)
    for failed in there:
        twice = mishaps.turned_back(done, other, site, failed, (None, LATER[1]))
        again = planned(other, twice, "upgrade", min_available=1)
        assert names(carried_out(again, other, twice)) == names(settled(before))


def of_seqs(inventory: Inventory, count: int) -> Inventory:
    """The inventory with another flag."""
    changed = ({**one, "engine_args": {"max_num_seqs": count}} for one in inventory.deployments)
    return replace(inventory, deployments=tuple(changed))


def with_failed(site: Site, inventory: Inventory, at: int = 0) -> Site:
    """What the hosts have when this batch (of those with holds) of an upgrade failed its verdict."""
    done = planned(inventory, site, "upgrade", min_available=1)
    there = [one for one in failures(done) if one[0]["holds"]]
    assert not done.plan.excluded
    return mishaps.turned_back(done, inventory, site, there[at])


def flagged(made: dict[str, Any], count: int) -> dict[str, Any]:
    return {**made, "engine_args": {"max_num_seqs": count}}


def test_what_is_still_to_be_removed_does_not_come_back_in_the_place_of_what_follows() -> None:
    """Bob, turned back, runs until ada is back in its place; meanwhile another edit of ada fails, then one of bob."""
    ada, bob = named("ada", 0, 1), named("bob", 0, 1)
    site = with_failed(settled(of(ada)), of(bob), at=-1)
    assert holding(site) == {"ada": 1, "bob": 0}
    site = with_failed(site, of(flagged(ada, 16)))
    assert holding(site) == {"ada": 1}
    assert ("n1", "bob-0") in names(site)
    wanted = of(flagged(bob, 32))
    site = with_failed(site, wanted)
    assert holding(site) == {"ada": 1, "bob": 0}
    again = planned(wanted, site, "deploy", min_available=1)
    assert (again.plan.excluded, again.simulate().violations) == ((), ())
    assert names(carried_out(again, wanted, site)) == names(settled(of(ada)))


def test_what_is_still_to_be_removed_comes_back_where_nothing_has_its_place() -> None:
    """The inventory is without bob when ada fails, so bob is not removed; then bob is wanted again, and fails."""
    ada, bob = made("ada", 0, 1), made("bob", 2, 3, port=8100)
    site = with_failed(settled(of(ada, bob)), of(flagged(ada, 16)))
    assert holding(site) == {"ada": 1}
    assert ("n1", "bob-0") in names(site)
    wanted = of(ada, flagged(bob, 16))
    site = with_failed(site, wanted)
    assert holding(site) == {"bob": 1}
    again = planned(wanted, site, "deploy", min_available=1)
    assert names(carried_out(again, wanted, site)) == names(settled(of(ada, bob)))


def test_half_of_an_engine_whose_other_host_has_left_is_no_way_back() -> None:
    span = {"nodes": 2, "tensor_parallel_size": 1, "pipeline_parallel_size": 2, "hosts": ["n1", "n2"]}
    here = {"n2": FLEET["n2"]}
    site = settled(replace(of({**named("ada", 0), **span}), balancers=here))
    done = planned(replace(of(named("ada", 0)), hosts=here, balancers=here), site, "upgrade")
    assert done.rollout
    assert [(batch["holds"], batch["lost"]) for batch in done.rollout.batches] == [({}, ["n2/ada-0"])]
    text = "\n".join(explain_rollout(done.rollout, {"drain": 1, "stop": 1, "start": 1}))
    assert "what it replaces cannot be measured" in text
    assert "one way  n2/ada-0: what ran before is not recorded, or its engine needs a host" in text


# ---- model names that change hands -------------------------------------------------------------------

SWAP = (
    of(
        {**made("ada", 0), "served_model_name": "chat"},
        {**made("bob", 1, port=8100), "served_model_name": "code"},
    ),
    of(
        {**made("ada", 1), "served_model_name": "code"},
        {**made("bob", 0, port=8100), "served_model_name": "chat"},
    ),
)


def swap_turned_back(*others: dict[str, Any]) -> tuple[Inventory, Site]:
    """Two deployments exchanged names and GPUs in the run that brought the load balancer, and it failed.

    others: further deployments, which do not change.
    """
    first, wanted = (replace(one, deployments=(*one.deployments, *others)) for one in SWAP)
    site = settled(replace(first, balancers={}))
    done = planned(wanted, site, min_available=0)
    failed = next(failed for failed in failures(done) if failed[0]["holds"] == {"ada": 1, "bob": 1})
    site = mishaps.turned_back(done, wanted, site, failed)
    site.seen.clear()  # it was not installed yet
    return wanted, site


@pytest.mark.parametrize("others", [(), ({**made("eve", 2, port=8200), "served_model_name": "chat"},)])
def test_what_was_turned_back_serves_a_name_that_the_inventory_gives_away(
    others: tuple[dict[str, Any], ...],
) -> None:
    again = planned(*swap_turned_back(*others))
    assert again.plan.excluded == ()
    assert len(again.plan.ignored) == 2


@pytest.mark.parametrize(
    "change",
    [{"held": None}, {"held": {"generation": 1, "why": "slower", "since": LATER[0], "together": ["eve"]}}],
)
@pytest.mark.parametrize("deployment_name", ["ada", "bob"])
def test_one_node_alone_says_so_in_vain(deployment_name: str, change: dict[str, Any]) -> None:
    """The others' records have to agree: a node may not take a name by what it says of itself."""
    wanted, site = swap_turned_back()
    for history in site.states["n2"]["generations"]:
        history.update(change if history["deployment"] == deployment_name else {})
    again = planned(wanted, site)
    assert again.plan.excluded
    assert all("which the inventory gives to another deployment" in why for _host, why in again.plan.excluded)


@pytest.mark.parametrize("hosts", [["n1"], ["n2"], ["n1", "n2"]])
def test_a_name_that_was_given_up_goes_back_to_nothing(hosts: list[str]) -> None:
    """A deployment gets the name of a former one, whose GPUs another has now, and fails its verdict."""
    first = of({**made("ada", 0), "hosts": ["n1"]})
    renamed = {**made("bob", 0), "hosts": ["n1"]}
    site = settled(first)
    site = carried_out(planned(of(renamed), site), of(renamed), site)
    after = of(renamed, {**made("ada", 1, port=8100), "hosts": hosts})
    done = planned(after, site, "upgrade")
    failed = next(failed for failed in failures(done) if failed[0]["deployment"] == "ada")
    assert failed[0]["holds"] == {"ada": 0}
    there = mishaps.turned_back(done, after, site, failed)
    again = planned(after, there, "upgrade")
    assert again.plan.excluded == ()
    assert planned(after, carried_out(again, after, there), "upgrade").plan.changes == 0


@pytest.mark.parametrize("renamed", [{"n1": "a"}, {"n2": "b"}, {"n1": "b", "n2": "a"}])
def test_an_engine_over_hosts_that_have_other_names_goes_back(renamed: dict[str, str]) -> None:
    """Its generations know its hosts by their former names."""
    span = {"nodes": 2, "tensor_parallel_size": 1, "pipeline_parallel_size": 2}

    def wide(*hosts: str) -> tuple[dict[str, Any], ...]:
        return tuple(
            {**named(name, gpu, port=port), **span, "hosts": list(hosts)}
            for name, gpu, port in (("ada", 0, 8000), ("bob", 1, 8100))
        )

    before = replace(of(*wide("n1", "n2")), balancers={"lb1": "192.0.2.101"})
    names = {name: renamed.get(name, name) for name in FLEET}
    hosts = {names[name]: address for name, address in FLEET.items()}
    after = replace(before, hosts=hosts, deployments=wide(*names.values()))
    site = settled(before).renamed(renamed)
    site = carried_out(planned(after, site), after, site)
    again = planned(after, site, "rollback", deployment="ada")
    assert (again.plan.excluded, again.simulate().violations) == ((), ())
    assert again.rollout
    assert again.rollout.batches
    rolled_back = carried_out(again, after, site)
    assert planned(after, rolled_back, "upgrade").plan.changes == 0
