# SPDX-License-Identifier: Apache-2.0
"""Summarize what runs in the fleet: the rows of all hosts, the sums of a deployment, and what does not serve. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ....module_utils.common.errors import host_names, natural
from ....module_utils.service.generations import History, Hold
from ...base.json_record import JsonRecord
from ...planning.desired.actions import size
from ...planning.generations.bindings import ENDS, hold_text
from .rows import (
    DRAINED,
    IN,
    MISSING,
    NONE,
    NOT_REACHED,
    SERVING,
    STATES,
    STOPPED,
    StatusRow,
    balancer_state,
    row_of,
    unreached_step,
)

FULL_PERCENT = 90  # how full a disk must be for the status to name it


@dataclass(frozen=True)
class DeploymentSummary(JsonRecord):
    """The sums of a deployment.

    They count instances that accept requests from clients (`total`), those that serve, those in service, and their
    load. divided: says that it is held while some of it runs another generation; "" if none does.
    """

    name: str
    total: int
    serving: int
    balanced: int
    inside: int
    tokens: float
    running: int
    waiting: int
    kv: float | None
    notes: tuple[str, ...] = ()
    divided: str = ""


@dataclass(frozen=True)
class FleetStatus:
    """The fleet: rows with trouble first, unreached hosts with the reason, and faults of load balancers themselves.

    held: a sentence for each deployment that is held, even if nothing of it runs. disks: sentences about full disks and
    quotas, by host; they stop nothing yet, so the verdict leaves them out.
    """

    rows: tuple[StatusRow, ...]
    deployments: tuple[DeploymentSummary, ...] = ()
    hosts: tuple[str, ...] = ()
    unreached: Mapping[str, str] = field(default_factory=dict)
    balancers: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, Sequence[str]] = field(default_factory=dict)
    disks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    held: tuple[str, ...] = ()

    def verdict(self) -> str:
        """Return what does not serve, in one line; "" if everything serves."""
        parts = []
        bad = [row for row in self.rows if not row.well and row.state != NOT_REACHED]
        if bad:
            shown = [f"{row.instance} on {row.host} ({row.state})" for row in bad[:4]]
            more = [f"{len(bad) - 4} more"] if len(bad) > 4 else []
            parts.append(
                f"{len(bad)} of {len(self.rows)} instances do not serve as they should: {', '.join(shown + more)}"
            )
        if self.unreached:
            parts.append(f"not reached: {', '.join(self.unreached)}")
        parts += [item.divided for item in self.deployments if item.divided]
        parts += [f"load balancer {host}: {error}" for host, error in self.balancers.items() if error]
        parts += [f"{host}: {text}" for host, texts in self.problems.items() for text in texts]
        return ". ".join(text.rstrip(".") for text in parts) + ("." if parts else "")

    def to_json(self) -> dict[str, Any]:
        """Return the content for -e status_file."""
        return {
            "schema": 1,
            "verdict": self.verdict(),
            "deployments": {item.name: item.to_json() for item in self.deployments},
            "instances": [row.to_json() for row in self.rows],
            "hosts": list(self.hosts),
            "not_reached": dict(self.unreached),
            "balancers": dict(self.balancers),
            "problems": {host: list(texts) for host, texts in self.problems.items()},
            "disks": {host: list(texts) for host, texts in self.disks.items()},
            "held": list(self.held),
        }


# ---- the load balancer -------------------------------------------------------------------------------

Key = tuple[str, str]
Servers = dict[Key, list[Mapping[str, Any]]]


def servers_by_instance(seen: Mapping[str, Mapping[str, Any]]) -> Servers:
    """Return the servers of all load balancers, by (host, instance)."""
    found: Servers = {}
    for state in seen.values():
        balancer = state.get("balancer")
        for server in balancer["servers"] if balancer and not balancer["error"] else ():
            found.setdefault((server["host"], server["instance"]), []).append(server)
    return found


# ---- the fleet ---------------------------------------------------------------------------------------


def status(
    seen: Mapping[str, Mapping[str, Any]],
    unreached: Mapping[str, str],
    quotas: Mapping[str, int] | None = None,
) -> FleetStatus:
    """Return the status from the results of instance_status on each host, and the reasons why hosts were not reached.

    quotas: the store_quota of hosts that have one, in bytes.
    """
    servers = servers_by_instance(seen)
    rows = [row for host, state in seen.items() for row in host_rows(host, state, servers)]
    rows = with_batch_advice([*rows, *unreached_rows(servers, unreached)], seen)
    rows.sort(key=order)
    by_deployment: dict[str, list[StatusRow]] = {}
    for row in rows:
        by_deployment.setdefault(row.deployment, []).append(row)
    notes, held = open_rollouts(seen), holds(seen)
    listed = {host: problems_of(state) for host, state in seen.items()}
    return FleetStatus(
        rows=tuple(rows),
        deployments=tuple(
            summarize_deployment(name, by_deployment[name], notes.get(name, ()), held.get(name, {}))
            for name in sorted(by_deployment, key=natural)
        ),
        hosts=tuple(sorted(seen, key=natural)),
        unreached={host: unreached[host] for host in sorted(unreached, key=natural)},
        balancers={host: state["balancer"]["error"] for host, state in seen.items() if state["balancer"]},
        problems={host: texts for host, texts in listed.items() if texts},
        disks={
            host: texts
            for host, state in seen.items()
            if (texts := (*full_disks(host, state), *full_quota(host, state, (quotas or {}).get(host, 0))))
        },
        held=tuple(held_text(name, held[name]) for name in sorted(held, key=natural)),
    )


def unreached_rows(servers: Servers, unreached: Mapping[str, str]) -> Iterator[StatusRow]:
    """Yield the instances of hosts that were not reached, as the load balancers know them."""
    places: dict[str, set[str]] = {}
    for (host, _unused), items in servers.items():
        places.setdefault(host, set()).add(balancer_state(items))
    for (host, instance), items in servers.items():
        if host in unreached:
            next_step = unreached_step(host, unreached[host], places[host])
            yield StatusRow(
                items[0]["deployment"],
                host,
                instance,
                NOT_REACHED,
                "",
                next_step,
                balancer=balancer_state(items),
            )


def with_batch_advice(rows: Sequence[StatusRow], seen: Mapping[str, Mapping[str, Any]]) -> list[StatusRow]:
    """Return the rows; where site.yml would move all instances of a deployment at once, the next step is another."""
    advice = batch_advice(seen, rows)
    return [
        replace(row, next_step=advice[row.deployment].format("returns" if row.state == DRAINED else "starts"))
        if row.deployment in advice and (row.state in (STOPPED, MISSING) or "site.yml" in row.next_step)
        else row
        for row in rows
    ]


def full_disks(host: str, state: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the disks of a host that are nearly full, with the next step."""
    return tuple(
        f"the disk of {item['path']} is {item['percent']} % full ({size(item['free_bytes'])} free). Next: prune.yml "
        f"--limit {host} shows what can be removed"
        for item in state.get("disks") or ()
        if item["percent"] >= FULL_PERCENT
    )


def full_quota(host: str, state: Mapping[str, Any], quota: int) -> tuple[str, ...]:
    """Return that the toolkit uses nearly all of its quota on a host, with the next step."""
    held = state.get("held_bytes")
    if quota <= 0 or held is None or 100 * held < FULL_PERCENT * quota:
        return ()
    return (
        f"images, weights and the content store take {size(held)}, {100 * held // quota} % of store_quota "
        f"({size(quota)}). Next: prune.yml --limit {host} shows what can be removed",
    )


def batch_advice(seen: Mapping[str, Mapping[str, Any]], rows: Sequence[StatusRow]) -> dict[str, str]:
    """Return the next step (with {} for its verb) of deployments some of whose instances run another generation.

    site.yml would move all of them at once, including those that serve; these playbooks work in batches.
    """
    known = {(host, name): item for host, state in seen.items() for name, item in histories(state).items()}
    found: dict[str, str] = {}
    for row in rows:
        history = known.get((row.host, row.deployment))
        wanted = history and (history.as_of(history.held.generation) if history.held else history.newest)
        if history is None or not wanted or row.generation == wanted.generation:
            continue
        if history.held:
            rollback = f"rollback.yml -e deployment={row.deployment} -e generation={history.held.generation}"
            found[row.deployment] = f"{rollback} {{}} it and moves the others, a few at a time"
        else:
            found.setdefault(row.deployment, "upgrade.yml {} it and moves the others, a few at a time")
    return found


def order(row: StatusRow) -> tuple[Any, ...]:
    """Return the sort key of a row: by deployment, the worst first."""
    return natural(row.deployment), STATES.index(row.state), natural(row.host), natural(row.instance)


def histories(state: Mapping[str, Any]) -> dict[str, History]:
    """Return a host's records of its deployments, as far as this version can read them."""
    found = {}
    for item in state.get("generations") or ():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found[item["deployment"]] = History.from_json(item)
    return found


def problems_of(state: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what could not be read on a host, or is of an unknown version."""
    known = histories(state)
    strange = [
        item["deployment"] for item in state.get("generations") or () if item["deployment"] not in known
    ]
    return (
        *state["problems"],
        *(
            f"the record of generations of {name} was written by another version of the toolkit"
            for name in strange
        ),
    )


def host_rows(host: str, state: Mapping[str, Any], servers: Servers) -> list[StatusRow]:
    """Return the rows of one host: its containers, and recorded instances without one."""
    known = histories(state)
    found = []
    for item in state["instances"]:
        history = known.get(item["deployment"])
        generation = history.of_spec(item["name"], item["spec_hash"]) if history else None
        seen = {**item, "generation": generation.generation if generation else None}
        found.append(row_of(host, seen, state["now"], servers.get((host, item["name"]), ())))
    there = {item["name"] for item in state["instances"]}
    for history in known.values():
        wanted = history.as_of(history.held.generation) if history.held else history.newest
        if wanted is None:
            continue
        of_it = {"deployment": history.deployment, "vllm": wanted.vllm, "generation": wanted.generation}
        for member in wanted.members:
            if member.name not in there:
                seen = {**ABSENT, **of_it, "name": member.name}
                found.append(row_of(host, seen, state["now"], servers.get((host, member.name), ())))
    return found


ABSENT: Mapping[str, Any] = {
    "status": "absent",
    "started": None,
    "finished": None,
    "restarts": 0,
    "endpoint": None,
    "metrics": None,
    "supervisor": None,
}
"""A recorded instance without a container."""


def held_text(name: str, holds: Mapping[str, Hold]) -> str:
    """Return the sentences about a deployment that is held on these hosts."""
    newest = max(holds.values(), key=lambda hold: hold.since)
    since = min(hold.since for hold in holds.values() if hold.generation == newest.generation)
    where = host_names(sorted(holds, key=natural))
    return f"{hold_text(name, replace(newest, since=since))}, on {where}. {ENDS}"


def open_rollouts(seen: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return open rollouts as sentences with their hosts, by deployment."""
    listed: dict[tuple[str, int, str], dict[str, str]] = {}
    for host, state in seen.items():
        for name, history in histories(state).items():
            if history.trial:
                key = (name, history.trial.generation, history.trial.why)
                listed.setdefault(key, {})[host] = history.trial.since
    found: dict[str, tuple[str, ...]] = {}
    for (name, number, why), hosts in listed.items():
        names = host_names(sorted(hosts, key=natural))
        what = f"rollout in progress, or interrupted, to generation {number}"
        found[name] = (*found.get(name, ()), f"{what} since {min(hosts.values())}: {why} ({names})")
    return found


def holds(seen: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Hold]]:
    """Return the holds of deployments, by deployment and host, without those that ended while a host was away."""
    known = [(host, history) for host, state in seen.items() for history in histories(state).values()]
    lifted: dict[str, str] = {}
    for _unused, history in known:
        lifted[history.deployment] = max(lifted.get(history.deployment, ""), history.lifted)
    found: dict[str, dict[str, Hold]] = {}
    for host, history in known:
        if history.held and history.held.since > lifted[history.deployment]:
            found.setdefault(history.deployment, {})[host] = history.held
    return found


def divided_text(name: str, rows: Sequence[StatusRow], held: Mapping[str, Hold]) -> str:
    """Return that a held deployment also runs other generations, and what moves them back."""
    if not held:
        return ""
    number = max(hold.generation for hold in held.values())  # of one host that was away
    other = [row for row in rows if row.state not in (MISSING, NOT_REACHED) and row.generation != number]
    if not other:
        return ""
    if not number:
        return (
            f"{name} is held and not started, but {len(other)} of its instances exist: site.yml removes them"
        )
    return (
        f"{name} is held at generation {number}, but {len(other)} of {len(rows)} instances run another one: "
        f"rollback.yml -e deployment={name} -e generation={number} moves them, a few at a time"
    )


def summarize_deployment(
    name: str, rows: Sequence[StatusRow], notes: Sequence[str] = (), held: Mapping[str, Hold] | None = None
) -> DeploymentSummary:
    """Return a deployment's sums, without ranks that work for another host's server."""
    asked = [row for row in rows if not row.rank]
    kv = [row.kv for row in asked if row.kv is not None]
    return DeploymentSummary(
        name=name,
        total=len(asked),
        serving=sum(row.state == SERVING for row in asked),
        balanced=sum(row.balancer != NONE for row in asked),
        inside=sum(row.balancer == IN for row in asked),
        tokens=sum(row.tokens or 0.0 for row in asked),
        running=sum(row.running or 0 for row in asked),
        waiting=sum(row.waiting or 0 for row in asked),
        kv=max(kv, default=None),
        notes=tuple(notes),
        divided=divided_text(name, rows, held or {}),
    )
