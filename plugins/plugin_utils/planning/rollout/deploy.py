# SPDX-License-Identifier: Apache-2.0
"""Split a deploy: what serves changes in batches; what only starts does so before them, all at once. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ....module_utils.service.generations import DEPLOY, ROLLBACK, UPGRADE
from ..changes.actions import PARTITION_KINDS
from ..generations.revisions import RevisionChange
from ..generations.sources import INVENTORY
from ..plan.host_plan import FleetPlan
from .batches import Batch
from .capacity import Capacity, names_of, services
from .groups import ChangeGroup, change_groups
from .members import RolloutInstance
from .schedule import lost_together


def operation_of(operation: str, revision: RevisionChange | None) -> str:
    """Return what a run does with a deployment: upgrade it to the inventory, or return it to a held generation."""
    if operation not in (DEPLOY, UPGRADE):
        return operation
    return UPGRADE if revision is None or revision.source.kind == INVENTORY else ROLLBACK


def serving_changes(
    members: Sequence[RolloutInstance], partitioned: Collection[str], at_once: bool = False
) -> tuple[RolloutInstance, ...]:
    """Return the members, of which only those that change in batches still change: their groups serve clients.

    partitioned: hosts whose GPUs change in the same run, which drains and starts their instances by itself. at_once:
    nothing changes in batches. What goes before the first batch counts as out of service, except under names that its
    replacement serves from then on.
    """
    groups = change_groups(members)
    possible = [group for group in groups if not at_once and set(partitioned).isdisjoint(group.hosts)]
    batched = {item.id for group in _in_batches(possible) for item in group.members}
    members_of = {item.id: group.members for group in groups for item in group.members}

    def starts(item: RolloutInstance) -> bool:
        return item.new is not None and not (item.drained or (item.host in partitioned and item.in_service))

    found = []
    for item in members:
        if item.id in batched or not item.changes:
            found.append(item)
        elif item.new is not None:
            found.append(replace(item, changes=False, starts=starts(item)))
        else:
            replaced = {
                name
                for one in members_of[item.id]
                if starts(one)
                for name in names_of(one.deployment, one.models)
            }
            left = [name for name in names_of(item.deployment, item.old_models) if name not in replaced]
            if left:
                models = tuple(model for _unused, model in left if model)
                found.append(replace(item, changes=False, in_service=False, old_models=models))
    return tuple(found)


def _in_batches(groups: Sequence[ChangeGroup]) -> list[ChangeGroup]:
    """Return the groups that serve clients, or did until an earlier run drained them, and those that wait for one.

    Groups that were left drained change after the canary's verdict, like the others, and may be the canary.
    """
    found = {
        group.key: group for group in groups if group.engines_lost or any(item.left for item in group.members)
    }
    waiting = [group for group in groups if group.key not in found]
    while more := [group for group in waiting if not group.after.isdisjoint(found)]:
        found.update({group.key: group for group in more})
        waiting = [group for group in waiting if group.key not in found]
    return list(found.values())


def awaited_hosts(
    batch: Batch, members: Iterable[RolloutInstance], capacity: Mapping[str, Capacity]
) -> list[str]:
    """Return the hosts whose instances must have started before a batch, as too few would serve without them."""
    short = {
        name
        for name, lost in lost_together(batch.groups).items()
        if capacity[name].starting
        and capacity[name].serving - capacity[name].starting - lost < max(1, capacity[name].min_available)
    }
    everyone = tuple(members)
    engines = {
        engine for service in services(everyone) if service.label in short for engine in service.engines
    }
    return list(
        dict.fromkeys(item.host for item in everyone if item.starts and item.present_engine in engines)
    )


def count_replaced(plan: FleetPlan) -> int:
    """Return how many serving instances this plan replaces or removes, apart from hosts whose GPUs' modes change."""
    count = 0
    for host in plan.hosts:
        if host.host.state and not any(action.kind in PARTITION_KINDS for action in host.actions):
            serving = {
                item.name for item in host.host.state.instances if item.state == "running" and item.ready
            }
            count += len(serving & {*host.start, *host.remove})
    return count
