# SPDX-License-Identifier: Apache-2.0
"""To which generation each deployment goes back when a release is turned back, and what is held together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    Generation,
    GenerationMember,
    History,
    Hold,
    OpenRollout,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.fleet import Host
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.generations.revisions import (
    HostRevision,
    RevisionChange,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.generations.sources import (
    HELD,
    INVENTORY,
    DeploymentSource,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.node_state import (
    ObservedInstance,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.batches import Batch
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.groups import ChangeGroup
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.members import (
    InstanceResources,
    RolloutInstance,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.turning_back import (
    earlier_generations,
    holds_of,
)

from tests.worlds.plan_world import fleet, state

(EMPTY,) = fleet({"n1": state()}, []).hosts
assert EMPTY.state
HERE = InstanceResources(frozenset(), frozenset())


def record(number: int, *specs: str, name: str = "a") -> Generation:
    """A generation with an instance of each of these specs."""
    members = tuple(GenerationMember(f"{name}-{at}", spec, 8000 + at) for at, spec in enumerate(specs))
    return Generation(name, number, members=members)


def host(*runs: str, kept: tuple[Generation, ...] = (), at: str = "n1", name: str = "a") -> Host:
    """A host that keeps these generations of a deployment, and runs instances of these specs."""
    instances = tuple(
        ObservedInstance(f"{name}-{number}", name, "running", spec, None, None, ())
        for number, spec in enumerate(runs)
    )
    histories = (History(name, kept),) if kept else ()
    return replace(EMPTY, name=at, state=replace(EMPTY.state, instances=instances, generations=histories))


def revision(
    number: int | None,
    *hosts: str,
    name: str = "a",
    kind: str = INVENTORY,
    made: Generation | None = None,
    **source: Any,
) -> RevisionChange:
    """A change to a generation. hosts: where; made: what they record of it."""
    steps = {one: HostRevision(None, number, made) for one in hosts}
    return RevisionChange(
        name, DeploymentSource(kind, **source), number, None, made is not None, False, "", steps
    )


ONE, TWO, GONE = record(1, "x"), record(2, "y"), record(3)
TRIAL = OpenRollout(2, "a flag")
HOLD = Hold(1, "slower", failed=(2,))


@pytest.mark.parametrize(
    ("change", "hosts", "expected"),
    [
        (revision(1), [host()], 0),
        (revision(2), [host("x", kept=(ONE,))], 1),
        (revision(3), [host("y", kept=(ONE, TWO))], 2),
        # What some hosts run already is no way back.
        (revision(2), [host("y", kept=(ONE, TWO)), host("x", kept=(ONE,), at="n2")], 1),
        (revision(2), [host("y", kept=(ONE, TWO))], 1),
        # Where nothing runs, what ran last.
        (revision(3), [host(kept=(ONE, TWO))], 2),
        (revision(2), [host(kept=(ONE, TWO))], 1),
        # A deployment that was removed did not serve before.
        (revision(4), [host(kept=(ONE, TWO, GONE))], 0),
        (revision(4), [host(kept=(ONE, TWO, GONE)), host(kept=(ONE,), at="n2")], 3),
        (revision(4), [host(kept=(ONE, GONE)), host("x", kept=(ONE,), at="n2")], 3),
        (revision(4), [host(kept=(ONE, GONE, record(4))), host("x", kept=(ONE, record(4, "y")), at="n2")], 3),
        (revision(4), [host(kept=(ONE, TWO)), host("x", kept=(ONE,), at="n2")], 1),  # it may never have served
        # Its number is not known yet: all that runs did so before.
        (revision(None), [host("x", kept=(ONE,))], 1),
        (revision(None), [host(kept=(ONE,))], 0),
        # An earlier run knew it.
        (revision(2, trial=replace(TRIAL, before=0)), [host("x", kept=(ONE,))], 0),
        (revision(2, trial=TRIAL), [host("x", kept=(ONE,))], 1),
        # What was turned back to stays the way back, whatever runs.
        (revision(3, held=HOLD), [host("y", kept=(ONE, TWO))], 1),
        (revision(1, held=HOLD), [host("y", kept=(ONE, TWO))], 2),
    ],
)  # fmt: skip
def test_the_generation_before(change: RevisionChange, hosts: list[Host], expected: int) -> None:
    assert earlier_generations({"a": change}, hosts) == {"a": expected}


def test_a_host_that_keeps_no_generation_says_nothing_of_the_way_back() -> None:
    """Such as one whose records the operator has deleted, as a refused run says, but for the hold."""
    bare = host(at="n2")
    assert bare.state
    bare = replace(bare, state=replace(bare.state, generations=(History("a", held=HOLD),)))
    assert earlier_generations({"a": revision(2)}, [host(kept=(ONE,)), bare]) == {"a": 1}


def test_only_what_follows_the_inventory_goes_back() -> None:
    changes = {"a": revision(2, kind=HELD), "b": revision(1, name="b")}
    assert earlier_generations(changes, [host("x", kept=(ONE,))]) == {"b": 0}


def at(port: int, node: str = "", share: float = 1.0, name: str = "a") -> Generation:
    """A generation with one instance, and its place."""
    nodes = (node,) if node else ()
    member = GenerationMember(f"{name}-0", "x", port, (port,), nodes, share)
    return Generation(name, 1, members=(member,))


@pytest.mark.parametrize(
    ("mine", "other", "expected"),
    [
        (at(8000), at(8001), 1),
        (at(8000), at(8000), 0),
        (at(8000, "renderD128"), at(8001, "renderD129"), 1),
        (at(8000, "renderD128"), at(8001, "renderD128"), 0),
        (at(8000, "renderD128", 0.5), at(8001, "renderD128", 0.5), 1),
        (at(8000, "renderD128", 0.5), at(8001, "renderD128", 0.6), 0),
    ],
)
@pytest.mark.parametrize("kind", ["held", "turned back again", "on another host", "goes by itself"])
def test_what_is_still_to_be_removed_comes_back_where_nothing_has_its_place(
    mine: Generation, other: Generation, expected: int, kind: str
) -> None:
    """As the release that was to replace it was turned back, it runs until the next run."""
    there = replace(other, deployment="b", members=(other.members[0]._replace(name="b-0"),))
    hosts = [host("x", kept=(mine, record(2)))]
    beside = History("b", (there,))
    if kind == "on another host":
        hosts.append(host("x", kept=(there,), at="n2", name="b"))
        expected = 1
    else:
        state = hosts[0].state
        assert state
        hosts = [replace(hosts[0], state=replace(state, generations=(*state.generations, beside)))]
    changes = {"a": revision(3, "n1")}
    if kind == "held":
        changes["b"] = replace(revision(1, name="b", kind=HELD), generation=1)
    elif kind != "goes by itself":
        changes["b"] = revision(2, "n1", name="b", held=replace(HOLD, failed=(3,)))
    else:
        expected = 1
    assert earlier_generations(changes, hosts)["a"] == expected


def test_what_an_interrupted_release_says_of_it_holds_wherever_others_are() -> None:
    trial = replace(TRIAL, before=1, together={"a": 1, "b": 1})
    kept = (
        History("a", (at(8000), record(2)), trial=trial),
        History("b", (at(8000, name="b"),), trial=trial),
    )
    base = host("x", kept=(at(8000), record(2)))
    assert base.state
    there = replace(base, state=replace(base.state, generations=kept))
    changes = {name: revision(3, "n1", name=name, trial=trial) for name in ("a", "b")}
    assert earlier_generations(changes, [there]) == {"a": 1, "b": 1}


def member(name: str, was: str | None, now: str | None) -> RolloutInstance:
    """An instance that serves a model name before and after; None if it is not there."""
    return RolloutInstance(
        "n1", f"{name}-0", name, HERE if was is not None else None, HERE if now is not None else None,
        models=(now,) if now else (), old_models=(was,) if was else (),
    )  # fmt: skip


def batches(*groups: tuple[RolloutInstance, ...]) -> list[Batch]:
    """A batch of each group."""
    made = [ChangeGroup(group) for group in groups]
    return [Batch(number, group.deployment, (group,)) for number, group in enumerate(made, start=1)]


A, B, C = (member(name, name, name) for name in "abc")
NEW_A, OLD_B = member("a", None, "m"), member("b", "m", None)
EARLIER = {"a": 1, "b": 2, "c": 3}


def changes(*names: str, number: int = 4) -> dict[str, RevisionChange]:
    """All of these deployments get a new generation on n1."""
    return {name: revision(number, "n1", name=name, made=record(number, "new", name=name)) for name in names}


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([], {}),
        ([(A,)], {"a": {"a"}}),
        ([(A,), (B,)], {"a": {"a"}, "b": {"b"}}),
        # They exchange GPUs, directly or through others.
        ([(A, B)], {"a": {"a", "b"}}),
        ([(A, B), (B, C), (C,)], {"a": {"a", "b", "c"}, "b": {"a", "b", "c"}, "c": {"a", "b", "c"}}),
        # The name that it serves is left by another one.
        ([(NEW_A,), (OLD_B,)], {"a": {"a", "b"}}),
        ([(NEW_A,), (member("b", "other", None),)], {"a": {"a"}}),
        ([(NEW_A,), (OLD_B, C)], {"a": {"a", "b", "c"}, "c": {"b", "c"}}),
        ([(A,), (member("c", None, "m"),), (OLD_B,)], {"a": {"a"}, "c": {"b", "c"}}),
        # Names go from hand to hand: whoever gives one up stays as long as its taker does. Nobody waits for a giver.
        ([(member("a", "m", "n"),), (member("b", "o", "m"),)], {"a": {"a"}, "b": {"a", "b"}}),
        ([(member("a", "m", "n"),), (member("b", "o", "m"),), (member("c", "p", "o"),)],
         {"a": {"a"}, "b": {"a", "b"}, "c": {"a", "b", "c"}}),
        ([(member("a", "m", "n"),), (member("b", "n", "m"),)], {"a": {"a", "b"}, "b": {"a", "b"}}),
        ([(member("a", "m", "n"),), (NEW_M := member("b", None, "m"),)], {"a": {"a"}, "b": {"a", "b"}}),
        ([(member("a", "m", "n"), C), (NEW_M,)], {"a": {"a", "c"}, "b": {"a", "b", "c"}}),
        # It serves the name now and after its way back.
        ([(member("a", "m", "n"),), (member("b", "m", "m"),)], {"a": {"a"}, "b": {"b"}}),
        ([(C,), (member("a", "m", None),), (member("b", "m", "m"),)], {"c": {"c"}, "b": {"a", "b"}}),
        # What only goes is turned back with nobody.
        ([(OLD_B,)], {}),
    ],
)  # fmt: skip
def test_what_is_held_together(
    groups: list[tuple[RolloutInstance, ...]], expected: dict[str, set[str]]
) -> None:
    found = holds_of(batches(*groups), changes("a", "b", "c"), [host("x", kept=(ONE,))], EARLIER)
    assert found == {
        name: {one: Hold(EARLIER[one], "", "", (4,), tuple(sorted(names - {one}))) for one in names}
        for name, names in expected.items()
    }


@pytest.mark.parametrize("runs", [(), ("z",)])
@pytest.mark.parametrize("groups", [[(NEW_A,), (OLD_B,)], [(A, OLD_B)]], ids=["its name", "its GPUs"])
def test_what_was_removed_elsewhere_is_held_together(
    groups: list[tuple[RolloutInstance, ...]], runs: tuple[str, ...]
) -> None:
    """By an earlier commit, or by a release that was turned back, so that it runs again."""
    hosts = [host("x", kept=(ONE,)), host(*runs, kept=(record(3, name="b"),), at="n2", name="b")]
    found = holds_of(batches(*groups), changes("a", "b"), hosts, EARLIER)
    assert {name: set(held) for name, held in found.items()} == {"a": {"a", "b"}}


@pytest.mark.parametrize(("held", "both"), [(HOLD, True), (None, False)])
def test_what_runs_although_its_removal_is_recorded(held: Hold | None, both: bool) -> None:
    """It runs again, as a release was turned back; else a run died that was to remove it and held nothing."""
    leaves = revision(3, name="b", held=held)
    hosts = [
        host("x", kept=(ONE,)),
        host("z", kept=(record(1, "z", name="b"), record(3, name="b")), name="b"),
    ]
    found = holds_of(batches((A, OLD_B)), {**changes("a"), "b": leaves}, hosts, {"a": 1, "b": 1})
    assert {name: set(some) for name, some in found.items()} == {"a": {"a", "b"} if both else {"a"}}


BEGUN = replace(TRIAL, before=1, together={"b": 2, "of nobody": 1})


@pytest.mark.parametrize(
    ("other", "both"),
    [
        (BEGUN, True),
        (None, True),
        # One node alone may not say so, and a record of an earlier release of the toolkit does not.
        (replace(BEGUN, together={}), False),
        (replace(BEGUN, together={"b": 1}), False),
        (replace(BEGUN, together={**BEGUN.together, "c": 3}), True),
    ],
)
def test_what_an_interrupted_release_replaced_goes_back_with_it(
    other: OpenRollout | None, both: bool
) -> None:
    """Nothing of it is left, so no batch tells."""
    kept = {"n1": History("a", (ONE, TWO), trial=BEGUN), "n2": History("a", (ONE, TWO), trial=other)}
    hosts = [
        replace(EMPTY, name=name, state=replace(EMPTY.state, generations=(history,)))
        for name, history in kept.items()
        if EMPTY.state
    ]
    all_of_it = {"a": revision(2, "n1", trial=BEGUN), **changes("b", "c")}
    earlier = earlier_generations(all_of_it, hosts)
    assert earlier == {"a": 1, "b": 2 if both else 0, "c": 0}
    found = holds_of(batches((A,)), all_of_it, hosts, earlier)
    assert {name: set(held) for name, held in found.items()} == {"a": {"a", "b"} if both else {"a"}}


@pytest.mark.parametrize(("together", "all_of_it"), [({"b": 1}, True), ({}, False)])
def test_whichever_of_an_interrupted_release_fails_all_of_it_is_held(
    together: dict[str, int], all_of_it: bool
) -> None:
    """They exchanged their ports, and the run died when one of them had changed: the other one comes alone."""
    trial = replace(TRIAL, before=1, together=together)
    kept = (History("a", (ONE, TWO), trial=trial), History("b", (record(1, "z", name="b"),)))
    there = replace(EMPTY.state, generations=kept) if EMPTY.state else None
    begun = {"a": revision(2, "n1", trial=trial), **changes("b")}
    found = holds_of(batches((B,)), begun, [replace(EMPTY, state=there)], {"a": 1, "b": 1})
    assert {name: set(held) for name, held in found.items()} == {"b": {"a", "b"} if all_of_it else {"b"}}


def test_what_goes_back_with_it_need_not_have_a_generation_that_failed() -> None:
    there = (
        replace(EMPTY.state, generations=(History("a", (ONE, TWO), trial=BEGUN),)) if EMPTY.state else None
    )
    gone = {"a": revision(2, "n1", trial=BEGUN), "b": revision(None, name="b")}
    found = holds_of(batches((A,)), gone, [replace(EMPTY, state=there)], {"a": 1, "b": 2})
    assert {name: (hold.generation, hold.failed) for name, hold in found["a"].items()} == {
        "a": (1, (2,)),
        "b": (2, (0,)),
    }


def test_of_those_held_together_only_what_follows_the_inventory_is() -> None:
    found = holds_of(batches((A, B)), changes("a", "b"), [host("x", kept=(ONE,))], {"a": 1})
    assert {name: set(held) for name, held in found.items()} == {"a": {"a"}}


THERE = record(4, "new", name="b")


@pytest.mark.parametrize(
    "other",
    [
        revision(None, "n1", name="b"),  # it has no generation
        revision(4, "n1", name="b", kind=HELD),
        revision(4, "n1", "n2", name="b", made=THERE),  # n2 has it already: here it only joins
    ],
)
@pytest.mark.parametrize("groups", [[(A, B)], [(A, B), (B, C)], [(NEW_A,), (OLD_B, C)]])
def test_what_is_not_new_is_not_held_with_another_nor_binds_it_to_others(
    groups: list[tuple[RolloutInstance, ...]], other: RevisionChange
) -> None:
    """It serves elsewhere as it is, and what it serves there has to stay."""
    hosts = [host("x", kept=(ONE,)), host("new", kept=(THERE,), at="n2", name="b")]
    found = holds_of(batches(*groups), {**changes("a", "c"), "b": other}, hosts, EARLIER)
    assert {name: set(held) for name, held in found.items() if name == "a"} == {"a": {"a"}}


@pytest.mark.parametrize("groups", [[(A,)], [(A, B)], [(B, A)], [(NEW_A,), (OLD_B,)]])
@pytest.mark.parametrize(
    ("recorded", "whole"), [((), True), (("n1",), True), (("n1", "n2"), True), (("n1", "n3"), False)]
)
def test_nothing_is_held_where_an_engine_needs_a_host_that_takes_no_part(
    groups: list[tuple[RolloutInstance, ...]], recorded: tuple[str, ...], whole: bool
) -> None:
    """Half of an engine serves nobody: the new release stays, and so does what came in its place."""
    spans = ONE.members[0]._replace(hosts=recorded)
    stays = spans._replace(name="a-1", hosts=("n4", "n5"))  # no batch changes that one
    hosts = [host("x", kept=(replace(ONE, members=(spans, stays)),)), host(at="n2")]
    found = holds_of(batches(*groups), changes("a", "b"), hosts, EARLIER)
    assert bool(found) is whole


def tried(there: Host) -> Host:
    """A host that has recorded the rollout."""
    assert there.state
    histories = tuple(replace(one, trial=TRIAL) for one in there.state.generations)
    return replace(there, state=replace(there.state, generations=histories))


ALIKE = record(4, "x")  # runs the same as the first one
OWN = [host("x", kept=(ONE,))]


@pytest.mark.parametrize(
    ("change", "hosts", "held"),
    [
        (revision(4, "n1", made=record(4, "new")), OWN, True),
        (revision(4, "n1", made=ALIKE), OWN, False),
        (revision(4, "n1", made=record(4, "new"), kind=HELD), OWN, False),
        (revision(None, "n1", made=record(4, "new")), OWN, False),
        (revision(4, "n2", made=record(4, "new")), OWN, False),  # nothing changes here
        # Recorded before: it is new as long as it does not run everywhere, or nobody has judged it.
        (revision(2, "n1"), [host("x", kept=(ONE, TWO))], True),
        (revision(2, "n1"), [host("y", kept=(ONE, TWO))], False),
        (revision(2, "n1", trial=TRIAL), [tried(host("y", kept=(ONE, TWO)))], True),
        (revision(2, "n1"), [tried(host("y", kept=(ONE, TWO)))], False),  # the rollout that they recorded is another
        # A host that joins those on which it runs, in a run that was interrupted.
        (revision(2, "n1", "n2", trial=TRIAL),
         [host("y", kept=(TWO,)), tried(host(kept=(TWO,), at="n2"))], False),
        # Another run has brought it to a host; the others were away, or left out.
        (revision(2, "n1"), [host("y", kept=(ONE, TWO)), host("x", kept=(ONE,), at="n2")], False),
        (revision(2, "n1", trial=TRIAL),
         [tried(host("y", kept=(ONE, TWO))), host("x", kept=(ONE,), at="n2")], True),
        (revision(1, "n1"), [host("y", kept=(ONE, TWO))], False),  # that is put back
        # It was not here, or is to be here no more.
        (revision(2, "n1", made=TWO), [host()], True),
        (revision(2, "n1", made=record(2)), [host()], False),
        (revision(None, "n1"), OWN, False),
        (replace(revision(2), hosts={"n1": HostRevision(None, None)}), OWN, True),
        (replace(revision(2), hosts={"n1": HostRevision(None, None)}), [host()], False),
        # What runs is recorded nowhere, so there is no way back.
        (revision(4, "n1", made=record(4, "new")), [host("x")], False),
        (revision(4, "n1", made=record(4, "new")), [host("x", "z", kept=(ONE,))], False),
        (revision(4, "n1", made=record(4, "new")), [*OWN, host("z", at="n2", name="b")], True),
        (revision(4, "n1", made=record(4, "new")), [*OWN, replace(EMPTY, name="n2", state=None)], True),
    ],
)  # fmt: skip
def test_what_is_not_new_or_has_no_way_back_is_not_held(
    change: RevisionChange, hosts: list[Host], held: bool
) -> None:
    found = holds_of(batches((A,)), {"a": change}, hosts, {"a": 1})
    assert found == ({"a": {"a": Hold(1, "", "", (change.generation or 0,), ())}} if held else {})


def test_a_deployment_without_a_revision_is_not_held() -> None:
    assert holds_of(batches((A,)), {}, OWN, {"a": 1}) == {}
