# SPDX-License-Identifier: Apache-2.0
"""Describe a batch: what each host does in it, and the record of it for the playbook. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ....module_utils.common.errors import natural
from ....module_utils.service.generations import MEASUREMENTS, UPGRADE
from ..instances.planned import RecordedInstance
from ..plan.host_plan import host_backends
from .batches import Batch, CanaryProgress
from .host_rollout import HostRollout
from .steps import COMING_BACK, FORWARD, MEASURING, WAY_BACK, BatchChange, Canary, Step, Work, phases
from .turning_back import Holds

Data = Mapping[str, Any]


def work_of_host(
    host: HostRollout, batch: Batch, trial: CanaryProgress | None, changed: Collection[str]
) -> Work:
    """Return a host's part of a batch. changed: instances that earlier batches change."""
    members = batch.members[host.name]
    names = [item.name for item in members]
    unchanged = batch.reference if batch.reference and batch.reference.host == host.name else None
    reference = [unchanged.name] if unchanged else []
    as_new = reference if unchanged and unchanged.id in changed else []
    as_old = [name for name in reference if name not in as_new]
    back = {name: host.before(name) for name in names}
    gone = {item.name for item in members if item.new is None}
    comes = [name for name in names if name not in gone]
    return Work(
        servers=[_server(host, name) for name in comes],
        remove=[name for name in names if name in gone],
        leave=_servers(host, leaving=[*names, *as_old], entering=as_new),
        enter=_servers(host, entering=[*comes, *as_new], returning=map(host.known, as_old)),
        old_servers=[known.server for known in back.values() if known],
        old_remove=[name for name, known in back.items() if known is None and name not in host.running],
        enter_old=_servers(host, entering=as_new, returning=[*back.values(), *map(host.known, as_old)]),
        lost=[name for name, known in back.items() if known is None and name in host.running],
        spans=any(item.id in batch.spanning for item in members),
        measured=[
            {"host": host.name, **known.described}
            for known in map(host.known, comes)
            if known and not known.member.headless
        ],
        down=any(item.old is None and item.resources_known for item in members),
        canary=_canary(host, batch, trial) if batch.canary and batch.canary.host == host.name else None,
    )


def _server(host: HostRollout, name: str) -> Data:
    """Return the SERVER of an instance: as it is wanted, or as it runs."""
    item, known = host.wanted.get(name), host.known(name)
    if item:
        return item.server
    return known.server if known else {"name": name}


def _canary(host: HostRollout, batch: Batch, trial: CanaryProgress | None) -> Canary:
    measured, reference_name = batch.canary, batch.reference
    name = measured.name if measured else ""
    item, found, old = host.wanted[name], host.running.get(name), host.before(name)
    reference = host.known(reference_name.name) if reference_name else None
    continued = trial is not None and trial.canary == f"{host.name}/{name}"
    return Canary(
        id=f"{host.name}/{name}",
        old={**old.described, "gpus": item.described.get("gpus")} if old else {},
        new={"host": host.name, **item.described},
        reference=reference.described if reference else {},
        # An instance that is new already was measured by the interrupted run, or never.
        measure=bool(old and found and host.is_ready(name) and not host.runs_as_wanted(name)),
        baseline=dict(_baseline(host, batch.deployment)) if continued else {},
    )


def _baseline(host: HostRollout, deployment: str) -> Mapping[str, Any]:
    history = host.histories.get(deployment)
    return (history.trial.baseline.get("found") or {}) if history and history.trial else {}


def _servers(
    host: HostRollout,
    leaving: Sequence[str] = (),
    entering: Sequence[str] = (),
    returning: Iterable[RecordedInstance | None] = (),
) -> list[dict[str, Any]]:
    """Return the servers in each load balancer: of instances that leave, enter as they will be, or return unchanged."""
    backends = [item.backend for item in returning if item]
    here = host_backends(host.plan)
    found = []
    for balancer in host.balancers:
        servers = [
            *balancer.leaving(host.name, leaving),
            *balancer.entering(host.name, entering),
            *balancer.returning(here, backends),
        ]
        if servers:
            found.append({"balancer": balancer.host.name, "servers": sorted(servers, key=natural)})
    return found


def playbook_batch(
    batch: Batch,
    count: int,
    change: BatchChange,
    work: Mapping[str, Work],
    steps: Mapping[str, Mapping[int, Mapping[str, Step]]],
    holds: Mapping[str, Holds],
) -> dict[str, Any]:
    """Return a batch for the playbook. count: of all batches. holds: what is held if a deployment is turned back."""
    held = holds.get(batch.deployment, {})
    mine = [steps[name][batch.number] for name in batch.hosts]
    measures = change.operation in MEASUREMENTS
    back = phases(mine, COMING_BACK if measures else WAY_BACK)
    if held and not measures:
        back = ["hold", *back, "confirm_hold"]
    return {
        "number": batch.number,
        "of": count,
        "operation": change.operation,
        "deployment": batch.deployment,
        "generation": change.generation,
        "holds": {name: hold.generation for name, hold in held.items()},
        "lost": [f"{host}/{name}" for host, part in work.items() for name in part.lost],
        "why": change.why,
        "canary": batch.canary.id if batch.canary else "",
        "hosts": list(batch.hosts),
        "units": [[item.id for item in group.members] for group in batch.groups],
        "phases": phases(mine, MEASURING if measures else FORWARD),
        "way_back": back if measures or change.operation == UPGRADE else [],
        "text": f"batch {batch.number} of {count}: " + "; ".join(group.name for group in batch.groups),
    }


def all_hosts(batch: Batch, batches: Iterable[Batch], holding: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the hosts of all batches of a deployment, and those that record a hold if it is turned back."""
    same = (host for item in batches if item.deployment == batch.deployment for host in item.hosts)
    return list(
        dict.fromkeys((*same, *(name for name, holds in holding.items() if batch.deployment in holds)))
    )
