# SPDX-License-Identifier: Apache-2.0
"""Determine an instance's state, the reason and the next step from the result of instance_status. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....module_utils.service.endpoint import OPERATOR
from ...base.hints import hint
from ...base.json_record import JsonRecord
from ...knowledge.sizing.start_log import read_start_log

GAVE_UP, FAILING, CRASHED, DEAD = "gave up", "failing", "crashed", "dead"
MISSING, SILENT, PAUSED, NO_TRAFFIC = "missing", "silent", "paused", "no traffic"
DRAINED = "drained"
NOT_REACHED, STOPPED = "not reached", "stopped"
WAITING, STARTING, STOPPING, UNPROVEN = "waiting", "starting", "stopping", "unproven"
SERVING, WORKING = "serving", "works"

STATES = (
    GAVE_UP, CRASHED, FAILING, DEAD, SILENT, MISSING, NO_TRAFFIC, PAUSED, DRAINED, NOT_REACHED, STOPPED,
    WAITING, STARTING, STOPPING, UNPROVEN, SERVING, WORKING,
)  # fmt: skip
"""Every state, the worst first; docs/runbooks/status.md explains each."""
TROUBLE = STATES[: STATES.index(WAITING)]
WELL = (SERVING, WORKING)

NEXT = {
    SILENT: "docker logs instinct-{instance} on {host} shows what it does; if it does nothing, run restart.yml "
    "-e deployment={deployment} -e instance={instance}",
    DEAD: "its supervisor starts it again; if that does not help, see docker logs instinct-{instance} on {host}",
    CRASHED: "site.yml starts it again",
    MISSING: "site.yml creates it again",
    NO_TRAFFIC: "journalctl -u instinct-balancer on the load balancer's host shows why its checks fail",
    PAUSED: "docker unpause instinct-{instance} on {host}",
    DRAINED: "undrain.yml --limit {host} -e instance={instance} returns it",
    STOPPED: "site.yml starts it, if the inventory still defines it",
}

WINDOW = 1800.0
"""How long a failure counts against a starting engine, in seconds."""
IN, OUT, DOWN, NONE = "in", "out", "down", ""


@dataclass(frozen=True)
class StatusRow(JsonRecord, add=("well",)):
    """An instance. Load and speed are None if it did not answer; age: seconds in this state.

    balancer: IN, OUT, DOWN, "1 of 2" if two load balancers differ, NONE if none has the instance. rank: it works for a
    server on another host, and has no port of its own. backend: the attention backends found in its log, "" if none is
    known.
    """

    deployment: str
    host: str
    instance: str
    state: str
    why: str = ""
    next_step: str = ""
    version: str = ""
    generation: int | None = None
    age: float | None = None
    kv: float | None = None
    running: int | None = None
    waiting: int | None = None
    tokens: float | None = None
    restarts: int = 0
    failures: int = 0
    balancer: str = NONE
    rank: bool = False
    backend: str = ""

    @property
    def well(self) -> bool:
        """Return whether it serves as it should."""
        return self.state in WELL

    @property
    def trouble(self) -> bool:
        """Return whether it needs attention."""
        return self.state in TROUBLE


def state_of(seen: Mapping[str, Any], now: float) -> str:
    """Return the state of an instance from the result of instance_status.

    now: the node's clock.
    """
    if seen["status"] != "running":
        return _not_running(seen)
    supervisor = seen.get("supervisor") or {}
    reported = supervisor.get("state")
    if reported in ("gave_up", "stopping"):
        return GAVE_UP if reported == "gave_up" else STOPPING
    if not seen["endpoint"]:
        return _starting_or_failing(seen, now) if reported in ("waiting", "starting") else WORKING
    if seen["health"] == 200:
        generated = (seen["metrics"] or {}).get("generated")
        return SERVING if seen["ready"] or generated else UNPROVEN
    if seen["health"]:
        return DEAD
    return SILENT if reported == "running" else _starting_or_failing(seen, now)


def _not_running(seen: Mapping[str, Any]) -> str:
    status = seen["status"]
    if status == "restarting":
        return FAILING
    if status in ("paused", "absent"):
        return PAUSED if status == "paused" else MISSING
    return (
        CRASHED if status == "dead" or (status == "exited" and seen["exit_code"] not in (0, 143)) else STOPPED
    )


def _starting_or_failing(seen: Mapping[str, Any], now: float) -> str:
    supervisor = seen.get("supervisor") or {}
    if supervisor.get("state") == "waiting":
        return WAITING
    if supervisor:
        failed = any(now - failure["at"] <= WINDOW for failure in supervisor.get("failures") or ())
    else:
        failed = bool(seen["restarts"])
    return FAILING if failed else STARTING


def reason_and_next_step(seen: Mapping[str, Any], state: str, host: str) -> tuple[str, str]:
    """Return (why an instance does not serve, what to do next); empty texts for one that does."""
    if state in WELL:
        return "", ""
    supervisor = seen.get("supervisor") or {}
    failures = supervisor.get("failures") or ()
    first = failures[0] if failures else seen.get("failure")
    if state in (GAVE_UP, FAILING, CRASHED, DEAD) and first:
        count = f"{len(failures)} failures, the first: " if len(failures) > 1 else ""
        next_step = str(first["next_step"])
        if state == CRASHED:  # Docker leaves it so
            next_step = f"{next_step.rstrip('.')}; then {NEXT[CRASHED]}"
        return f"{count}{first['kind']}: {first['line']}", next_step
    why = str(supervisor.get("why") or "") if state in (WAITING, STARTING, GAVE_UP, STOPPING) else ""
    return why, NEXT.get(state, "").format(
        instance=seen["name"], host=host, deployment=seen.get("deployment", "")
    )


def unreached_step(host: str, why: str, places: Collection[str]) -> str:
    """Return the next step for a host that was not reached.

    places: the state of its instances in the load balancers. What is in service there must not be drained: it answers
    the load balancers' checks, and only the connection to its host is broken.
    """
    if any(place not in (OUT, DOWN, NONE) for place in places):
        advice = hint(why) or f"check the connection to it: ssh {host}"
        return f"the load balancer's checks reach it, so it serves: do not drain it; {advice}"
    step = hint(why) or "check the host"
    if DOWN in places:
        return f"{step}; drain.yml --limit {host} keeps it out of service until undrain.yml"
    return step


def balancer_state(servers: Sequence[Mapping[str, Any]]) -> str:
    """Return whether the instance is in service, drained or down in the load balancers that have it."""
    words = [OUT if item["state"] != "ready" else IN if item["up"] else DOWN for item in servers]
    if len(set(words)) == 1:
        return words[0]
    return f"{words.count(IN)} of {len(words)}" if words else NONE


def drain_note(servers: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Return (what drained it, and since when; what returns it, "" for undrain.yml)."""
    for item in servers:
        out = item.get("out") or {}
        if item["state"] != "ready" and out.get("by") == OPERATOR:
            return f"drained by drain.yml at {out.get('since', '')}", ""
        if item["state"] != "ready" and out:
            who = f"drained by a run at {out.get('since', '')}"
            return who, "if that run is over, the next run of site.yml or upgrade.yml returns it"
    return "drained by hand", ""


def _balanced_state(servers: Sequence[Mapping[str, Any]]) -> str:
    """Return the state of an instance that serves, by its load balancers: one that does not have it is trouble."""
    if any(item["state"] != "ready" for item in servers):
        return DRAINED
    return SERVING if all(item["up"] for item in servers) else NO_TRAFFIC


def other_backend(seen: Mapping[str, Any]) -> str:
    """Return that it runs another attention backend than planned; "" if it does not, or none was found in its log."""
    proof = seen.get("attention") or {"planned": "", "running": ()}
    running, planned = proof["running"], proof["planned"]
    if not running or planned in running:
        return ""
    return f"runs attention backend {', '.join(running)}, not the planned {planned}"


def other_cache(seen: Mapping[str, Any]) -> str:
    """Return that vLLM measured a KV cache outside the predicted range; "" if it did not, or either is unknown."""
    start = seen.get("start") or {}
    tokens = read_start_log(map(str, start.get("lines") or ())).tokens
    predicted = start.get("predicted_tokens")
    if tokens is None or not predicted or predicted[0] <= tokens <= predicted[1]:
        return ""
    return f"has a KV cache of {tokens:,} tokens; {predicted[0]:,} to {predicted[1]:,} were predicted"


def row_of(host: str, seen: Mapping[str, Any], now: float, servers: Sequence[Mapping[str, Any]]) -> StatusRow:
    """Return one instance as a row."""
    state, where = state_of(seen, now), balancer_state(servers)
    if state == SERVING:
        state = _balanced_state(servers)
    why, next_step = reason_and_next_step(seen, state, host)
    if state == NO_TRAFFIC:
        check = next(item["check"] for item in servers if not item["up"])
        why = f"it serves, but the load balancer's check reports {check}"
    elif state == DRAINED:
        why, back = drain_note(servers)
        next_step = back or next_step
    elif where == OUT and not why:
        why = drain_note(servers)[0]
    if state in (*WELL, DRAINED):
        why = "; ".join(filter(None, (why, other_backend(seen), other_cache(seen))))
    supervisor, load = seen.get("supervisor") or {}, seen["metrics"] or {}
    since = supervisor.get("since") if state not in (STOPPED, CRASHED) else None
    since = since or (seen["finished"] if state in (STOPPED, CRASHED) else None) or seen["started"]
    return StatusRow(
        deployment=seen["deployment"],
        host=host,
        instance=seen["name"],
        state=state,
        why=why,
        next_step=next_step,
        version=(seen["vllm"] or "").partition("+")[0],
        generation=seen.get("generation"),
        age=max(0.0, now - since) if since else None,
        kv=load.get("kv"),
        running=load.get("running"),
        waiting=load.get("waiting"),
        tokens=load.get("tokens_per_second"),
        restarts=seen["restarts"],
        failures=len(supervisor.get("failures") or ()),
        balancer=where,
        rank=not seen["endpoint"] and state == WORKING,
        backend=", ".join((seen.get("attention") or {}).get("running", ())),
    )
