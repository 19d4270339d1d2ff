# SPDX-License-Identifier: Apache-2.0
"""What a deploy changes before its first batch, and what has to serve before a batch begins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    DEPLOY,
    RESTART,
    ROLLBACK,
    UPGRADE,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.generations.revisions import (
    RevisionChange,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.generations.sources import (
    HELD,
    INVENTORY,
    DeploymentSource,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.batches import Batch
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.capacity import Capacity
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.deploy import (
    awaited_hosts,
    operation_of,
    serving_changes,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.groups import ChangeGroup
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.members import (
    InstanceResources,
    RolloutInstance,
)

HERE = InstanceResources(frozenset({8000}), frozenset({"renderD128"}))
SERVES = RolloutInstance("n1", "a-0", "a", HERE, HERE, models=("m",), old_models=("m",))
COMES = replace(SERVES, old=None, old_models=(), in_service=False)
GOES = replace(SERVES, new=None, models=())
AT_ONCE: dict[str, Any] = {"partitioned": (), "at_once": True}
HOST_CHANGES: dict[str, Any] = {"partitioned": ("n1",)}
IN_BATCHES: dict[str, Any] = {"partitioned": ()}
FIRST, LATER = {"changes": False, "starts": True}, {"changes": True, "starts": False}


@pytest.mark.parametrize(
    ("member", "terms", "expected"),
    [
        (SERVES, IN_BATCHES, LATER),
        (COMES, IN_BATCHES, FIRST),
        (GOES, IN_BATCHES, LATER),
        (replace(SERVES, changes=False), IN_BATCHES, {"changes": False, "starts": False}),
        (replace(COMES, drained=True), IN_BATCHES, {"changes": False, "starts": False}),
        (SERVES, AT_ONCE, FIRST),
        (GOES, AT_ONCE, {"changes": False, "in_service": False}),
        # The partition itself drains it, and starts it again.
        (SERVES, HOST_CHANGES, {"changes": False, "starts": False}),
        (COMES, HOST_CHANGES, FIRST),
        (replace(SERVES, in_service=False), HOST_CHANGES, FIRST),
        (SERVES, {"partitioned": ("n2",)}, LATER),
    ],
)
def test_what_changes_before_the_first_batch(
    member: RolloutInstance, terms: dict[str, Any], expected: dict[str, bool]
) -> None:
    assert serving_changes([member], **terms) == (replace(member, **expected),)


def test_what_waits_for_what_serves_is_in_a_batch() -> None:
    """It takes a port that the other one has until it changes."""
    gives = replace(SERVES, new=InstanceResources(frozenset({8001}), HERE.gpus))
    takes = replace(COMES, name="a-1", new=InstanceResources(frozenset({8000}), frozenset({"renderD129"})))
    assert serving_changes([gives, takes], ()) == (gives, takes)


def test_what_an_earlier_run_left_drained_changes_in_a_batch() -> None:
    """It may be the canary, or has to wait for its verdict."""
    left = replace(SERVES, in_service=False, left=True)
    assert serving_changes([left], ()) == (left,)
    assert serving_changes([left], (), at_once=True) == (replace(left, **FIRST),)


@pytest.mark.parametrize(
    ("goes", "left"),
    [
        (("m",), None),  # as many serve the name as before
        (("m", "n"), ("n",)),
        (("n",), ("n",)),
        ((), ()),  # nobody reached it through a load balancer, or the other one otherwise
    ],
)
def test_what_goes_first_does_not_count_beside_what_comes_in_its_place(
    goes: tuple[str, ...], left: tuple[str, ...] | None
) -> None:
    gone = replace(GOES, name="b-0", deployment="b", old_models=goes, in_service=False)
    comes, *others = serving_changes([COMES, gone], ())
    assert comes == replace(COMES, **FIRST)
    assert others == [] if left is None else others == [replace(gone, changes=False, old_models=left)]


def test_what_goes_first_counts_where_the_operator_keeps_what_comes_out_of_service() -> None:
    gone = replace(GOES, name="b-0", deployment="b", in_service=False)
    _comes, other = serving_changes([replace(COMES, drained=True), gone], ())
    assert other == replace(gone, changes=False)


@pytest.mark.parametrize(
    ("operation", "kind", "found"),
    [
        (DEPLOY, INVENTORY, UPGRADE),
        (UPGRADE, INVENTORY, UPGRADE),
        (DEPLOY, HELD, ROLLBACK),
        (DEPLOY, None, UPGRADE),
        (RESTART, INVENTORY, RESTART),
        (ROLLBACK, HELD, ROLLBACK),
    ],
)
def test_what_a_run_does_with_a_deployment(operation: str, kind: str | None, found: str) -> None:
    source = DeploymentSource(kind) if kind else None
    revision = RevisionChange("a", source, 2, 1, True, False, "") if source else None
    assert operation_of(operation, revision) == found


STARTS = replace(COMES, host="n2", changes=False, starts=True)
OTHER = replace(STARTS, host="n3", name="b-0", deployment="b", models=("other",))


@pytest.mark.parametrize(
    ("capacity", "awaited"),
    [
        (Capacity(3, 3, 1, 1), []),  # one serves beside it, and one has to
        (Capacity(3, 3, 2, 1), ["n2"]),
        (Capacity(2, 2, 1, 1), ["n2"]),
        (Capacity(2, 2, 0, 1), ["n2"]),  # somebody has to answer, if anybody can
        (Capacity(2, 2, 2), []),  # nothing of it starts
    ],
)
def test_what_has_to_serve_before_a_batch(capacity: Capacity, awaited: list[str]) -> None:
    batch = Batch(1, "a", (ChangeGroup((SERVES,), {"a": 1}),))
    room = {"a": capacity, "b": Capacity(1, 1, 1, 1)}
    assert awaited_hosts(batch, [SERVES, STARTS, OTHER], room) == awaited
