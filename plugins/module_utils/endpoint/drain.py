# SPDX-License-Identifier: Apache-2.0
"""Drain servers of the load balancer or return them to service, and wait until that is done."""

from __future__ import annotations

import contextlib
import http.client
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..common.abandoned import leave_if_abandoned
from ..common.errors import Problem
from ..common.files import make_private, write_atomic
from ..common.module_main import NodeError
from ..leases.run_lock import run_lock
from ..service.endpoint import BALANCER, NOT_IN_SERVICE, OPERATOR
from ..service.minimum import ServingEngine, parse_count, refusals
from .haproxy_socket import CarriedServer, state_file
from .installed import Balancer, same_servers

POLL_SECONDS = 0.2
CHECK_SECONDS = 15.0  # until a server whose instance runs has been checked: the agent asks it for a token
ANSWER_BYTES = 8 << 20  # vLLM's metrics have some hundred kilobytes
_BUSY = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{.*\})? ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True)
class ServerStateRequest:
    """The requested state of some servers; by: who requests it, in which run; wait: seconds to wait for it.

    at_once: drain servers even if too few would stay in service. min_available: how many have to; None: the
    default. whole_hosts: whoever requests it cannot choose single instances.
    advice: what a refusal says instead of which part may be drained.
    command: the run's playbooks, which say what it was about if it is cut off.
    """

    names: tuple[str, ...]
    state: str
    by: str
    wait: float
    at_once: bool = True
    min_available: Any = None
    run: str = ""
    whole_hosts: bool = False
    command: str = ""
    advice: str = ""


def find_servers(balancer: Balancer, **wanted: Any) -> tuple[str, ...]:
    """Return the servers of hosts and instances (lists), a deployment and an instance; None means any.

    Raise NodeError if no server matches or the host has no load balancer; with `optional`, return () instead.
    """
    optional = wanted.pop("optional", False)
    lists = {key: wanted.pop(f"{key}s", None) for key in ("host", "instance")}
    try:
        servers = balancer.servers()
    except NodeError:
        if optional:
            return ()
        raise
    found = tuple(
        name
        for name, server in servers.items()
        if all(values is None or server[key] in values for key, values in lists.items())
        and all(value is None or server[key] == value for key, value in wanted.items())
    )
    if not found and not optional:
        raise NodeError(f"No load balancer server matches. Servers: {', '.join(servers) or 'none'}.")
    return found


def set_state(balancer: Balancer, request: ServerStateRequest, check: bool) -> dict[str, Any]:
    """Set the servers' state, and wait. Raise NodeError if they do not get into service in time.

    In check mode, a run's servers that are not there are those which it would have configured by then, and what it
    would have started serves by then: that enough stay in service is what its plan has proved.
    """
    predicts = check and request.by != OPERATOR
    addresses = same_servers(balancer.config(optional=predicts))
    unknown = sorted(set(request.names) - set(addresses))
    if unknown and not predicts:
        raise NodeError(
            f"The load balancer has no server {', '.join(unknown)}. Servers: {', '.join(sorted(addresses)) or 'none'}.",
            **{"class": BALANCER},
        )
    if not check:
        make_private(balancer.state)
    with contextlib.nullcontext() if check else run_lock("balancer", 300):
        if request.by != OPERATOR:  # a run neither returns to service what the operator drained nor claims it
            theirs = {
                name for name, item in balancer.drain_record.read().items() if item.get("by") == OPERATOR
            }
            request = replace(request, names=tuple(name for name in request.names if name not in theirs))
        if request.state != "ready" and not predicts:
            _keep_enough(balancer, request)
        actions, diff = _set(balancer, request, addresses, check)
    result: dict[str, Any] = {"changed": bool(actions), "actions": actions, "diff": diff, "warnings": []}
    if check:
        return result
    begun = time.monotonic()
    result["servers"] = _wait(balancer, request, addresses)
    result["seconds"] = round(time.monotonic() - begun, 1)
    late = [item for item in result["servers"] if not item["done"]]
    if late and request.state == "ready":
        texts = ", ".join(f"{item['name']} ({item['check']})" for item in late)
        raise NodeError(
            f"Not in service after {request.wait:.0f} s: {texts}. An instance enters service once its "
            f"/health answers and "
            "it has generated tokens. See docker logs instinct-<instance> on its host.",
            **{"class": NOT_IN_SERVICE},
            **result,
        )
    result["warnings"] = [
        f"{item['name']} still has {item['requests']} requests after {request.wait:.0f} s" for item in late
    ]
    return result


def _keep_enough(balancer: Balancer, request: ServerStateRequest) -> None:
    """Raise NodeError if HAProxy would have too few servers of a model name in service without these.

    What counts is what HAProxy uses now; nobody else drains meanwhile, as the caller holds the lock. What was started
    just now gets the time of a check: a run has proved that enough come; others wait for new servers only. A run that
    takes all at once, or has proved its batches, waits as well, and is not refused.
    """
    if request.at_once and request.by == OPERATOR:
        return
    end = time.monotonic() + CHECK_SECONDS
    while True:
        problems, may_come = _too_few(balancer, request)
        if not problems:
            return
        if not may_come or time.monotonic() >= end:
            break
        time.sleep(POLL_SECONDS)
    if not request.at_once:
        what, fix = " ".join(item.what for item in problems), request.advice or problems[0].fix
        raise NodeError(f"Nothing was drained. {what} {fix}")


def _too_few(balancer: Balancer, request: ServerStateRequest) -> tuple[Sequence[Problem], bool]:
    """Return why the servers may not be drained now, and whether that may change by itself."""
    min_available = parse_count(request.min_available)
    if min_available is None and request.min_available is not None:
        raise NodeError(
            f"rollout_min_available: {request.min_available!r} is not a number of engines or a percentage of them. "
            'Use for example 1 or "75%".'
        )
    configured, now = balancer.servers(), balancer.haproxy.servers()
    touched = {model for name in request.names for model in configured[name]["models"]}
    serves = {name for name, server in now.items() if server.up and server.state == "ready"}
    listening = {
        (server["address"], server["port"]): server
        for server in configured.values()
        if not server.get("coming")
    }
    engines = []
    for name, server in configured.items():
        coming = server.get("coming")
        models = tuple(model for model in server["models"] if model in touched)
        if models and (name in serves or not coming):
            # Whoever has its address now answers for an instance that has yet to come.
            item = listening.get((server["address"], server["port"]), server) if coming else server
            engines.append(
                ServingEngine(
                    item["deployment"],
                    item["instance"],
                    (item["host"],),
                    name in serves,
                    name in request.names,
                    models,
                )
            )
    may_come = any(
        (server.get("coming") or request.by != OPERATOR)
        and now[name].state == "ready"
        and not touched.isdisjoint(server["models"])
        for name, server in configured.items()
        if name in now.keys() - serves
    )
    return refusals(engines, min_available, whole_hosts=request.whole_hosts), may_come


def _set(
    balancer: Balancer, request: ServerStateRequest, addresses: Mapping[str, CarriedServer], check: bool
) -> tuple[list[str], list[dict[str, str]]]:
    haproxy, record = balancer.haproxy, balancer.drain_record.read()
    now, run = haproxy.servers() if addresses else {}, None if request.by == OPERATOR else request.run or None
    actions, diff = [], []
    for name in request.names:
        noted = record.get(name, {})
        is_now = now[name].state if name in now else "unknown"
        if is_now != request.state:
            actions.append(f"set server {name} state {request.state}")
            diff.append(
                {
                    "before_header": name,
                    "after_header": name,
                    "before": f"{is_now}\n",
                    "after": f"{request.state}\n",
                }
            )
        if request.state == "ready":
            record.pop(name, None)
        elif [noted.get(key) for key in ("state", "by", "run")] != [request.state, request.by, run]:
            since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            record[name] = {"state": request.state, "by": request.by, "since": since}
            if run:  # others leave it as it is while that run goes on
                record[name] |= {"run": run, "command": request.command}
    if record != balancer.drain_record.read() and not actions:
        actions.append(f"write {balancer.drain_record.path}")
    if check or not actions:
        return actions, diff
    # First the record: after an interruption, it shows what remains to be repaired.
    if request.state != "ready":
        balancer.drain_record.write(record)
    for action in actions:
        if action.startswith("set server "):
            haproxy.set_state(action.split()[2], request.state)
    write_atomic(
        f"{balancer.state}/servers", state_file(haproxy.table("show servers state"), addresses), 0o600
    )
    balancer.drain_record.write(record)
    return actions, diff


def _wait(
    balancer: Balancer, request: ServerStateRequest, addresses: Mapping[str, CarriedServer]
) -> list[dict[str, Any]]:
    """Wait until no server works on requests, or all are up; return the state of each."""
    end = time.monotonic() + request.wait
    while True:
        leave_if_abandoned()
        servers, loads = balancer.haproxy.servers(), balancer.loads()
        found: list[dict[str, Any]] = []
        for name in request.names:
            load = loads[name]
            requests = load.running + load.waiting
            if request.state != "ready" and not requests:
                # After a reload, HAProxy does not count the requests that its former process still carries.
                requests = engine_requests(addresses[name].address, addresses[name].port)
            up = servers[name].up and servers[name].state == "ready"
            done = up or request.wait == 0 if request.state == "ready" else requests == 0
            found.append(
                {
                    "name": name,
                    "state": servers[name].state,
                    "up": up,
                    "requests": requests,
                    "check": load.check,
                }
            )
            found[-1]["done"] = done
        if all(item["done"] for item in found) or time.monotonic() >= end:
            return found
        time.sleep(POLL_SECONDS)


def engine_requests(host: str, port: int) -> int:
    """Return the number of requests that an instance itself counts as running or waiting; 0 if it does not say."""
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read(ANSWER_BYTES).decode("utf-8", "replace")
        return int(sum(float(value) for value in _BUSY.findall(text)))
    except (OSError, http.client.HTTPException, ValueError, OverflowError):
        return 0
    finally:
        connection.close()
