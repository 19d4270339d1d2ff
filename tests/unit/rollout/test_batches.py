# SPDX-License-Identifier: Apache-2.0
"""What changes together, in which order, how many at a time; and what cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.batches import (
    Batch,
    CanaryProgress,
    Rollout,
    plan_rollout,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.groups import (
    ChangeGroup,
    change_groups,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.members import (
    InstanceResources,
    RolloutInstance,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.policy import (
    RolloutPolicy,
    parse_policy,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.schedule import lost_together

from tests.helpers.some import some

DEFAULTS = RolloutPolicy()


def place(index: int, port: int | None = None, share: float = 1.0) -> InstanceResources:
    return InstanceResources(
        frozenset((8000 + index if port is None else port,)), frozenset((f"renderD{128 + index}",)), share
    )


def member(host: str, index: int, **keys: Any) -> RolloutInstance:
    deployment = keys.pop("deployment", "llama")
    base = RolloutInstance(host, f"{deployment}-{index}", deployment, place(index), place(index))
    return replace(base, **keys)


def fleet(hosts: int, each: int, **keys: Any) -> list[RolloutInstance]:
    return [member(f"n{host}", index, **keys) for host in range(1, hosts + 1) for index in range(each)]


def shown(batches: tuple[Batch, ...]) -> list[list[str]]:
    return [[unit.name for unit in batch.groups] for batch in batches]


def sound(
    members: list[RolloutInstance],
    policy: RolloutPolicy = DEFAULTS,
    trials: dict[str, CanaryProgress] | None = None,
) -> Rollout:
    rollout, problems = plan_rollout(members, policy, trials)
    assert problems == ()
    return rollout


# ---- units -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "rank", "exists"),
    [
        ((member("n1", 0), member("n1", 1, new=None)), 0, True),
        ((member("n1", 0, old=None), member("n1", 1, new=None)), 1, True),
        ((member("n1", 0, old=None), member("n1", 1, old=None)), 1, False),
        ((member("n1", 0, new=None), member("n1", 1, new=None)), 2, True),
    ],
    ids=["changed", "in the place of another", "added", "only gone"],
)
def test_what_changes_is_before_what_is_added_and_what_only_goes_is_last(
    members: tuple[RolloutInstance, ...], rank: int, exists: bool
) -> None:
    group = ChangeGroup(members)
    assert (group.rank, group.exists) == (rank, exists)


TOGETHER = {
    "each for itself": (fleet(1, 3), ["n1 llama-0", "n1 llama-1", "n1 llama-2"]),
    "what does not change is in no unit": ([member("n1", 0), member("n1", 1, changes=False)], ["n1 llama-0"]),
    "two swap GPUs": (
        [member("n1", 0, new=place(1, 8000)), member("n1", 1, new=place(0, 8001)), member("n1", 2)],
        ["n1 llama-0 + llama-1", "n1 llama-2"],
    ),
    "a port of another one, which gives it first": (
        [member("n1", 0, new=place(0, 8001)), member("n1", 1, new=place(1, 8002))],
        ["n1 llama-0", "n1 llama-1"],
    ),
    "a GPU of another one, which gives it first": (
        [member("n1", 0, new=place(1, 8000)), member("n1", 1, new=place(2, 8001))],
        ["n1 llama-0", "n1 llama-1"],
    ),
    "a whole GPU that two others share": (
        [
            member("n1", 0, new=place(1, 8000)),
            *(member("n1", i, old=place(1, 8000 + i, 0.5), new=place(1 + i, 8000 + i)) for i in (1, 2)),
        ],
        ["n1 llama-0 + llama-1 + llama-2"],
    ),
    "a share of a GPU that another one has": (
        [member("n1", 0, new=place(1, 8000, 0.5)), member("n1", 1, new=place(2, 8001))],
        ["n1 llama-0 + llama-1"],
    ),
    "a port of one of another deployment": (
        [member("n1", 0, new=place(0, 8001)), member("n1", 1, deployment="qwen", new=place(1, 8002))],
        ["n1 llama-0 + qwen-1"],
    ),
    "three in a circle": (
        [member("n1", i, new=place(i, 8000 + (i + 1) % 3)) for i in range(3)],
        ["n1 llama-0 + llama-1 + llama-2"],
    ),
    "equal GPUs on two hosts are different ones": (
        [member("n1", 0), member("n2", 0)],
        ["n1 llama-0", "n2 llama-0"],
    ),
    "an engine over hosts": (
        [member("n1", 0, engine="e"), member("n2", 0, engine="e", headless=True)],
        ["n1 llama-0, n2 llama-0"],
    ),
    "what was one engine stops together": (
        [member("n1", 0, old_engine="e"), member("n2", 0, old_engine="e")],
        ["n1 llama-0, n2 llama-0"],
    ),
    "what comes waits for what goes from its GPU": (
        [member("n1", 0, new=None), member("n1", 0, deployment="qwen", old=None), member("n1", 1)],
        ["n1 llama-0 + qwen-0", "n1 llama-1"],
    ),
    "nobody knows what the old one has": (
        [member("n1", 0, old=None, resources_known=False), member("n1", 1), member("n2", 0)],
        ["n1 llama-0 + llama-1", "n2 llama-0"],
    ),
    "two of equal share stay on a GPU": (
        [member("n1", i, old=place(0, 8000 + i), new=place(0, 8000 + i, 0.5)) for i in range(2)],
        ["n1 llama-0", "n1 llama-1"],
    ),
    "two of unequal shares stay on a GPU": (
        [
            member("n1", i, old=place(0, 8000 + i, part), new=place(0, 8000 + i, part))
            for i, part in enumerate((0.6, 0.3))
        ],
        ["n1 llama-0", "n1 llama-1"],
    ),
    "one of two on a GPU gets more of it": (
        [
            member("n1", 0, old=place(0, 8000), new=place(0, 8000, 1.0)),
            member("n1", 1, old=place(0, 8001), new=None),
        ],
        ["n1 llama-0 + llama-1"],
    ),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_units(case: str) -> None:
    members, wanted = TOGETHER[case]
    assert [unit.name for unit in change_groups(members)] == wanted


def test_what_a_unit_takes_away() -> None:
    """Engines that serve: one over hosts counts once, and what is only added not at all."""
    for members, loses in (
        ([member("n1", 0)], {"llama": 1}),
        ([member("n1", 0, in_service=False)], {}),
        ([member("n1", 0, old=None)], {}),
        ([member("n1", 0, old=None, resources_known=False)], {"llama": 1}),
        ([member("n1", 0, old_engine="e"), member("n2", 0, old_engine="e")], {"llama": 1}),
        ([member("n1", 0, new=None), member("n1", 0, deployment="qwen", old=None)], {"llama": 1}),
        ([member("n1", 0, new=place(1, 8000)), member("n1", 1, new=place(0, 8001))], {"llama": 2}),
    ):
        (unit,) = change_groups(members)
        assert unit.engines_lost == loses


# ---- order and batches -------------------------------------------------------------------------------


def test_the_canary_is_alone_then_a_fifth_at_a_time_spread_over_hosts() -> None:
    batches = sound(fleet(2, 5)).batches
    assert shown(batches) == [
        ["n1 llama-0"],
        ["n2 llama-0", "n1 llama-1"],
        ["n2 llama-1", "n1 llama-2"],
        ["n2 llama-2", "n1 llama-3"],
        ["n2 llama-3", "n1 llama-4"],
        ["n2 llama-4"],
    ]
    assert [batch.number for batch in batches] == [1, 2, 3, 4, 5, 6]
    assert [batch.canary.id if batch.canary else "" for batch in batches] == [
        "n1/llama-0",
        "",
        "",
        "",
        "",
        "",
    ]


def test_the_canary_has_one_to_be_compared_with_where_there_is_one() -> None:
    members = [member("n1", 0), *fleet(2, 3)[3:]]
    first = sound(members).batches[0]
    assert (first.groups[0].name, first.reference.id if first.reference else "") == (
        "n2 llama-0",
        "n2/llama-1",
    )


def test_what_does_not_serve_is_no_reference() -> None:
    members = fleet(1, 6)
    members[1:3] = [replace(members[1], in_service=False), replace(members[2], headless=True)]
    members[3] = replace(members[3], changes=False, starts=True)
    first = sound(members).batches[0]
    assert (first.canary, first.reference) == (members[0], members[4])


def test_a_canary_waits_for_no_other_group() -> None:
    """On n2, one takes the port of the other; the instance on n1 is dead."""
    taker, giver = member("n2", 0, new=place(0, 8001)), member("n2", 1, new=place(1, 8002))
    batches = sound([member("n1", 0, in_service=False), taker, giver], RolloutPolicy(min_available=0)).batches
    assert batches[0].canary == giver


def test_a_canary_is_one_that_serves_though_another_of_its_group_does_not() -> None:
    """Ports move in a circle on n2; the instance on n1 is dead."""
    circle = [member("n2", index, new=place(index, 8001 - index), in_service=index > 0) for index in (0, 1)]
    batches = sound([member("n1", 0, in_service=False), *circle], RolloutPolicy(min_available=0)).batches
    assert shown(batches)[0] == ["n2 llama-0 + llama-1"]
    assert batches[0].canary == circle[1]


def test_no_reference_where_it_would_take_one_too_many() -> None:
    assert sound(fleet(1, 2)).batches[0].reference is None
    assert sound(fleet(1, 2), RolloutPolicy(min_available=0)).batches[0].reference is not None


def test_no_reference_where_it_would_take_one_too_many_of_one_of_its_names() -> None:
    """Of m seven are there and one may go besides the canary; of x one of two serves."""
    both = {"models": ("m", "x"), "old_models": ("m", "x")}
    members = [
        member("n1", 0, models=("m",), old_models=("m",)),
        member("n1", 1, changes=False, **both),
        member("n2", 0, changes=False, in_service=False, **both),
        *(member(f"n{at}", 0, changes=False, models=("m",), old_models=("m",)) for at in (3, 4, 5, 6)),
    ]
    (first,) = sound(members).batches
    assert (first.canary is not None, first.reference) == (True, None)
    members[2] = replace(members[2], in_service=True)
    (first,) = sound(members).batches
    assert first.reference == members[1]


def serving(deployment: str, index: int, was: str, now: str, **keys: Any) -> RolloutInstance:
    """An instance on n1 that answers to one name now, and to one afterwards."""
    return member("n1", index, deployment=deployment, old_models=(was,), models=(now,), **keys)


def test_a_reference_that_has_changed_counts_where_it_serves_now() -> None:
    """It changed with what exchanges ports with it; nobody serves its former name any more."""
    ada = serving("ada", 0, "ada", "ada", new=place(0, 8001))
    bob = serving("bob", 1, "old", "x", new=place(1, 8000))
    canary, beside = serving("bob", 2, "m", "m"), serving("bob", 3, "m", "m", changes=False)
    others = [serving("carol", index, "x", "x", changes=False) for index in (5, 6, 7)]
    batches = sound([ada, bob, canary, beside, *others]).batches
    assert shown(batches) == [["n1 ada-0 + bob-1"], ["n1 bob-2"]]
    assert batches[1].reference == bob


def test_a_reference_that_has_yet_to_change_counts_where_it_serves_still() -> None:
    """Of its future name none may go."""
    ada = serving("ada", 0, "ada", "ada")
    bob, canary = serving("bob", 1, "old", "x"), serving("bob", 2, "m", "m")
    others = [serving("carol", index, "x", "x", changes=False, in_service=index < 6) for index in (5, 6)]
    batches = sound([ada, canary, bob, *others]).batches
    assert shown(batches) == [["n1 ada-0"], ["n1 bob-2"], ["n1 bob-1"]]
    assert batches[1].reference == bob


def test_what_answers_no_requests_is_not_measured() -> None:
    """Only a worker of an engine changes, as the host of its head does not answer."""
    members = [member("n1", 0, engine="e", headless=True), member("n1", 1, changes=False)]
    (first,) = sound(members).batches
    assert (first.canary, first.reference) == (None, None)


def test_one_deployment_follows_the_other_each_with_its_canary() -> None:
    members = [*fleet(2, 1), *fleet(2, 1, deployment="qwen", old=place(7), new=place(7))]
    batches = sound(members).batches
    assert [(batch.deployment, bool(batch.canary)) for batch in batches] == [
        ("llama", True), ("llama", False), ("qwen", True), ("qwen", False),
    ]  # fmt: skip


def test_one_deployment_follows_the_other_also_where_its_groups_wait_for_one_another() -> None:
    """Ports of llama move up by one: its first instance waits for its second."""
    moving = [member("n1", index, new=place(index, 8001 + index)) for index in (0, 1)]
    batches = sound([*moving, *fleet(2, 1, deployment="qwen", old=place(7), new=place(7))]).batches
    assert [(batch.deployment, batch.groups[0].name) for batch in batches] == [
        ("llama", "n1 llama-1"), ("llama", "n1 llama-0"), ("qwen", "n1 qwen-0"), ("qwen", "n2 qwen-0"),
    ]  # fmt: skip


def test_what_is_added_comes_after_what_changes_and_what_only_goes_at_the_end() -> None:
    members = [member("n1", 3, old=None), member("n1", 0), member("n1", 1), member("n1", 2, new=None)]
    assert shown(sound(members).batches) == [["n1 llama-0"], ["n1 llama-1"], ["n1 llama-3"], ["n1 llama-2"]]


def test_what_comes_in_the_place_of_another_is_a_canary_and_comes_before_what_only_goes() -> None:
    members = [
        member("n1", 0, new=None),
        member("n1", 1, new=None),
        member("n1", 1, deployment="qwen", old=None, in_service=False),
        member("n2", 1, deployment="qwen", new=None),
    ]
    batches = sound(members, RolloutPolicy(min_available=0)).batches
    assert [(batch.deployment, shown((batch,))[0]) for batch in batches] == [
        ("qwen", ["n1 llama-1 + qwen-1"]), ("llama", ["n1 llama-0"]), ("qwen", ["n2 qwen-1"]),
    ]  # fmt: skip
    assert [batch.canary.id if batch.canary else "" for batch in batches] == ["n1/qwen-1", "", ""]


def test_who_gives_a_port_changes_before_who_takes_it() -> None:
    """Ports move up by one, so the last instance of each host is the first; none is in one batch with its giver."""
    members = [member(f"n{host}", i, new=place(i, 8001 + i)) for host in (1, 2) for i in range(4)]
    batches = sound(members).batches
    assert shown(batches)[0] == ["n1 llama-3"]
    assert batches[0].canary is not None
    numbers = {group.key: batch.number for batch in batches for group in batch.groups}
    for host in (1, 2):
        order = [numbers[f"n{host}/llama-{i}"] for i in range(4)]
        assert order == sorted(set(order), reverse=True)


def renamed(host: str, index: int, **keys: Any) -> list[RolloutInstance]:
    """An instance that gets another deployment's name, on its GPU and at its port."""
    old = member(host, index, new=None, old_models=("m",))
    return [old, member(host, index, deployment="chat", old=None, in_service=False, models=("m",), **keys)]


def test_a_deployment_that_is_renamed_keeps_the_minimum_of_its_model_name() -> None:
    members = [item for host in ("n1", "n2") for index in (0, 1) for item in renamed(host, index)]
    rollout = sound(members)
    assert [shown((batch,))[0] for batch in rollout.batches] == [
        ["n1 llama-0 + chat-0"], ["n2 llama-0 + chat-0"], ["n1 llama-1 + chat-1"], ["n2 llama-1 + chat-1"],
    ]  # fmt: skip
    assert {name: (room.total, room.min_available) for name, room in rollout.capacity.items()} == {
        "llama": (4, 2)
    }
    assert rollout.services == {"llama": ("llama",), "chat": ("llama",)}
    _, problems = plan_rollout(members, RolloutPolicy(min_available="100%"))
    assert "rollout_min_available requires 4 of 4 engines of llama in service" in problems[0].text()


def test_what_goes_waits_for_what_comes_elsewhere_under_its_name() -> None:
    """n1 stands before n2 in the inventory, and serves the model name until n2 does."""
    going = [member("n1", index, new=None, old_models=("m",)) for index in (0, 1)]
    coming = [
        member("n2", index, deployment="chat", old=None, in_service=False, models=("m",)) for index in (0, 1)
    ]
    assert shown(sound([*going, *coming]).batches) == [
        ["n2 chat-0"],
        ["n2 chat-1"],
        ["n1 llama-0", "n1 llama-1"],
    ]


def test_names_that_only_some_serve_are_services_of_their_own() -> None:
    """llama serves m and x, chat serves m: of x only the two of llama count."""
    members = [
        *(member("n1", i, models=("m", "x"), old_models=("m", "x")) for i in (0, 1)),
        *(member("n1", i, deployment="chat", models=("m",), old_models=("m",)) for i in (2, 3, 4)),
    ]
    rollout = sound(members)
    assert {name: (room.total, room.min_available) for name, room in rollout.capacity.items()} == {
        "chat and llama": (5, 3), "llama": (2, 1),
    }  # fmt: skip
    assert rollout.services == {"llama": ("chat and llama", "llama"), "chat": ("chat and llama",)}


def test_the_first_of_several_new_ones_is_a_canary_too() -> None:
    batches = sound(fleet(1, 3, old=None, in_service=False)).batches
    assert shown(batches) == [["n1 llama-0"], ["n1 llama-1"], ["n1 llama-2"]]
    assert batches[0].canary is not None


@pytest.mark.parametrize(
    ("serial", "sizes"),
    [((2,), [1, 2, 2]), ((1, 2), [1, 2, 2]), (("40%",), [1, 2, 2]), ((3, 1), [1, 1, 1, 1, 1])],
)
def test_sizes(serial: tuple[int | str, ...], sizes: list[int]) -> None:
    assert [len(batch.groups) for batch in sound(fleet(1, 5), RolloutPolicy(serial=serial)).batches] == sizes


def test_a_restart_has_no_canary() -> None:
    batches = sound(fleet(1, 4), RolloutPolicy(serial=(2,), canary=False)).batches
    assert [(len(batch.groups), batch.canary) for batch in batches] == [(2, None), (2, None)]


def test_a_unit_over_hosts_is_measured_where_it_answers() -> None:
    members = [member("n1", 0, engine="e", headless=True), member("n2", 0, engine="e")]
    canary = sound(members, RolloutPolicy(min_available=0)).batches[0].canary
    assert canary is not None
    assert canary.id == "n2/llama-0"


# ---- after a controller that died --------------------------------------------------------------------


def test_the_deployment_of_an_open_trial_comes_first() -> None:
    members = [*fleet(2, 1), *fleet(2, 1, deployment="qwen", old=place(7), new=place(7))]
    assert sound(members).batches[0].deployment == "llama"
    assert sound(members, trials={"qwen": CanaryProgress("n1/qwen-0")}).batches[0].deployment == "qwen"


def test_an_open_trial_of_an_engine_over_hosts_goes_on() -> None:
    engine = [member("n2", 0, engine="e"), member("n3", 0, engine="e", headless=True)]
    members = [member("n1", 0), *engine, member("n4", 0)]
    batch = sound(members, trials={"llama": CanaryProgress("n2/llama-0")}).batches[0]
    assert (batch.groups[0].members, batch.canary) == (tuple(engine), engine[0])


@pytest.mark.parametrize(
    ("trial", "first"),
    [
        (CanaryProgress("n2/llama-0"), ("n2/llama-0", True)),  # begun, not judged: it is judged first
        (CanaryProgress("n2/llama-0", judged=True), ("n1/llama-0", False)),  # no second canary
        (CanaryProgress(), ("n1/llama-0", True)),
    ],
)
def test_an_open_trial_goes_on(trial: CanaryProgress, first: tuple[str, bool]) -> None:
    batch = sound(fleet(2, 1), trials={"llama": trial}).batches[0]
    assert (batch.groups[0].members[0].id, batch.canary is not None) == first


def test_what_an_earlier_run_left_drained_changes_first() -> None:
    """It takes nothing out of service, and returns."""
    left = {"left": True, "in_service": False}
    members = [member(f"n{at}", 0, **(left if at in (2, 4) else {})) for at in (1, 2, 3, 4)]
    assert shown(sound(members).batches) == [
        ["n2 llama-0"], ["n4 llama-0"], ["n1 llama-0"], ["n3 llama-0"],
    ]  # fmt: skip


def test_what_is_left_of_an_engine_changes_before_what_serves() -> None:
    engine = [
        member("n3", 0, engine="e", left=True, in_service=False),
        member("n4", 0, engine="e", in_service=False),
    ]
    assert shown(sound([*fleet(2, 2), *engine]).batches)[0] == ["n3 llama-0, n4 llama-0"]


@pytest.mark.parametrize("whole", [0, 1])
def test_what_is_left_as_a_whole_changes_before_what_takes_another_out_of_service(whole: int) -> None:
    """A run died that had drained its canary, which exchanges its GPU with another deployment's, and a reference."""
    left = {"left": True, "in_service": False}
    members = [
        member("n1", 0, new=place(2, 8000), **left), member("n1", 1, new=place(3, 8001), **left),
        *(member("n1", 2 + at, deployment="other", new=place(at, 8002 + at), **(left if at == whole else {}))
          for at in (0, 1)),
    ]  # fmt: skip
    expected = [["n1 llama-0 + other-2"], ["n1 llama-1 + other-3"]]
    for policy in (DEFAULTS, RolloutPolicy(min_available=0)):
        assert shown(sound(members, policy).batches) == (expected if whole == 0 else expected[::-1])


def test_what_is_broken_changes_first_where_others_would_leave_too_few() -> None:
    """The edit may be what mends it."""
    broken = [member("n1", index, in_service=False) for index in (0, 1)]
    batches = sound([*broken, *fleet(1, 4)[2:]]).batches
    assert shown(batches)[0] == ["n1 llama-0"]
    assert batches[0].canary is not None


def test_what_leaves_fewer_engines_for_good_changes_last() -> None:
    """Two of them go back to an address that the load balancer does not reach; three serve, and one has to."""
    seen = {"balancers": frozenset({"n3"})}
    back = [member(host, 0, balancers_after=frozenset(), **seen) for host in ("n1", "n2")]
    stays = member("n3", 0, balancers_after=frozenset({"n3"}), **seen)
    batches = sound([*back, stays], RolloutPolicy(canary=False)).batches
    assert shown(batches) == [["n3 llama-0"], ["n1 llama-0"], ["n2 llama-0"]]


@pytest.mark.parametrize(
    ("bobs_before", "adas_after", "judged"),
    [
        ("two", "two", False),  # both give up a name that stays: its canary serves already
        ("gone", "three", True),  # nobody has to keep a name that ends
    ],
)
def test_who_gets_a_name_goes_before_who_gives_it_up(bobs_before: str, adas_after: str, judged: bool) -> None:
    """The other way round, too few would be left to go on, after a run that died in the middle."""
    gives = [
        member(host, 0, deployment="ada", old_models=("one",), models=(adas_after,)) for host in ("n1", "n2")
    ]
    canary = member("n1", 1, deployment="bob", old_models=("one",), models=("one",), changes=not judged)
    gets = [
        member(host, 2, deployment="bob", old_models=(bobs_before,), models=("one",)) for host in ("n1", "n2")
    ]
    trials = {
        "ada": CanaryProgress("n3/ada-0", judged=True),
        "bob": CanaryProgress("n1/bob-1", judged=judged),
    }
    first = sound([*gives, canary, *gets], trials=trials).batches[0]
    assert first.deployment == "bob"
    assert first.canary == (None if judged else canary)


def test_what_an_earlier_run_removed_is_the_canary_where_others_would_leave_too_few() -> None:
    """It died before it started them again, and nothing was measured of which it could be the canary."""
    swapped = {"new": place(1, 8000)}, {"new": place(0, 8001)}
    removed = [member("n1", index, old=None, in_service=False, **swapped[index]) for index in (0, 1)]
    there = [member("n2", index, **swapped[index]) for index in (0, 1)]
    batches = sound([*removed, *there], RolloutPolicy(min_available=1)).batches
    assert shown(batches) == [["n1 llama-0"], ["n2 llama-0 + llama-1"], ["n1 llama-1"]]
    assert batches[0].canary is not None


# ---- what is kept, and what cannot be ----------------------------------------------------------------

WRONG = {
    "serial takes too many": (
        fleet(2, 2),
        RolloutPolicy(serial=(3,)),
        "rollout_serial: [3] lets 3 groups change at a time, which leaves 1 of 4 engines of llama in service, but "
        "rollout_min_available requires 2. At most 2 fit: -e rollout_serial=2.",
    ),
    "a percentage takes too many": (
        fleet(2, 2),
        RolloutPolicy(serial=("75%",), min_available="50%"),
        "At most 2 fit",
    ),
    "serial takes what does not fit by itself": (
        [
            member("n1", 0),
            member("n1", 1, new=place(2, 8002)),
            member("n1", 2, new=place(1, 8001)),
            *(member("n1", index, changes=False) for index in (3, 4)),
        ],
        RolloutPolicy(serial=("100%",), min_available="75%", canary=False),
        "rollout_serial: [100%] lets 2 groups change at a time, which leaves 2 of 5 engines of llama in service, but "
        "rollout_min_available requires 4. At most 1 fit: -e rollout_serial=1.",
    ),
    "they must change together": (
        [member("n1", 0, new=place(1, 8000)), member("n1", 1, new=place(0, 8001)), *fleet(1, 3)[2:]],
        RolloutPolicy(),
        "rollout_min_available (host n1): n1 llama-0 + llama-1 must change together, because one takes over GPUs or "
        "ports of another; that leaves 1, but rollout_min_available requires 2 of 3 engines of llama in service. Keep "
        "their GPUs and ports, or accept less capacity: -e rollout_min_available=1.",
    ),
    "one of two deployments has no room": (
        [
            member("n1", 0, new=place(2, 8000)),
            *(member(f"n{number}", 0, changes=False) for number in (2, 3, 4)),
            member("n1", 2, deployment="qwen", new=place(0, 8002)),
            member("n2", 2, deployment="qwen", changes=False),
        ],
        RolloutPolicy(min_available=2),
        "changing n1 llama-0 + qwen-2 leaves 1, but rollout_min_available requires 2 of 2 engines of qwen in service",
    ),
    "nothing may go": (
        fleet(1, 2),
        RolloutPolicy(min_available="100%"),
        "Capacity does not allow even one change at a time",
    ),
    "nothing may go, one at a time": (
        fleet(1, 2),
        RolloutPolicy(serial=(1,), min_available="100%"),
        "Capacity does not allow even one change at a time",
    ),
    "asked to keep the only one": (
        fleet(1, 1),
        RolloutPolicy(min_available=1),
        "changing n1 llama-0 leaves 0",
    ),
    "too few serve already": (
        [*(member("n1", index, in_service=False, changes=False) for index in (0, 1)), *fleet(1, 4)[2:]],
        RolloutPolicy(),
        "only 2 of 4 engines of llama serve, but rollout_min_available requires 2 of 4 engines of llama in service",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused(case: str) -> None:
    members, policy, text = WRONG[case]
    _, problems = plan_rollout(members, policy)
    assert text in "\n".join(problem.text() for problem in problems)
    assert len(problems) == 1


def test_the_default_takes_no_more_than_may_go() -> None:
    """Six of ten serve, and five have to; what did not serve does so when it has changed."""
    members = [*fleet(1, 10)[:6], *(replace(item, in_service=False) for item in fleet(1, 10)[6:])]
    serving = 6
    for batch in some(sound(members).batches):
        changing = [item.in_service for unit in batch.groups for item in unit.members]
        assert serving - sum(changing) >= 5
        serving += changing.count(False)
    assert serving == 10


@pytest.mark.parametrize(
    ("members", "text"),
    [
        (fleet(1, 1), "is unavailable while its only engine is out of service"),
        (fleet(1, 2), ""),
        (fleet(1, 1, new=None), ""),  # it is removed
    ],
)
def test_a_gap_is_told(members: list[RolloutInstance], text: str) -> None:
    warnings = sound(members).warnings
    assert text in "".join(warnings)
    assert bool(warnings) == bool(text)


def test_instances_that_do_not_serve_cost_no_capacity() -> None:
    members = [member("n1", 0), *(member("n1", index, in_service=False) for index in (1, 2))]
    rollout, problems = plan_rollout(members[1:], RolloutPolicy(serial=(2,), min_available=0, canary=False))
    assert (shown(rollout.batches), problems) == ([["n1 llama-1", "n1 llama-2"]], ())
    assert rollout.warnings == ()


def test_terms_of_the_command_line() -> None:
    policy, problems = parse_policy(
        {"rollout_serial": '[1, "25%"]', "rollout_min_available": "75%", "rollout_soak": "5"}
    )
    assert (policy.serial, policy.min_available, policy.soak, problems) == ((1, "25%"), "75%", 5, ())
    assert parse_policy({})[0] == RolloutPolicy(soak=30)
    # As YAML in an inventory gives them, too.
    for serial in ([1, "25%"], (1, "25%"), ["1", " 25% "], "1, 25%", "[ 1,'25%' ]"):
        assert parse_policy({"rollout_serial": serial})[0].serial == (1, "25%"), serial
    for serial in (2, "2", [2], (2,)):
        assert parse_policy({"rollout_serial": serial})[0].serial == (2,), serial
    for serial in ([], [0], ["0%"], [1, None], [1, 0], "", "1,,2", [1.5], True):
        (problem,) = parse_policy({"rollout_serial": serial})[1]
        assert problem.path == ("rollout_serial",)
    _, problems = parse_policy(
        {"rollout_serial": "0", "rollout_min_available": "most", "rollout_soak": "long"}
    )
    assert [problem.path[0] for problem in problems] == [
        "rollout_serial",
        "rollout_min_available",
        "rollout_soak",
    ]


def test_a_group_that_takes_from_two_deployments_needs_room_in_both() -> None:
    """llama and qwen swap GPUs on ten of twenty hosts. Of twelve qwen eleven stay, so one such group at a time."""
    swapping = [f"n{number}" for number in range(1, 11)]
    members = [
        member(f"n{number}", 0, new=place(2, 8000) if number < 11 else place(0)) for number in range(1, 21)
    ]
    members += [member(host, 2, deployment="qwen", new=place(0, 8002)) for host in swapping]
    members += [member(f"n{number}", 2, deployment="qwen", changes=False) for number in (30, 31)]
    rollout = sound(members, RolloutPolicy(canary=False, min_available=11))
    for batch in rollout.batches:
        lost = lost_together(batch.groups)
        assert lost.get("qwen", 0) <= 1
        assert lost["llama"] <= 9
    assert max(len(batch.groups) for batch in rollout.batches) > 1
