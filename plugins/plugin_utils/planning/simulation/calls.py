# SPDX-License-Identifier: Apache-2.0
"""What each module or role that a run calls does to the fleet, and what it needs. Pure.

Every action that a step of a plan can name has an entry in CALLS; a step without one is an error, not a step without
effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..endpoint.servers import Instance
from .before import Templates
from .model import FleetModel, Running
from .rules import IN_USE, NEEDS, TAKEN, Violation, resource_conflicts

Args = Mapping[str, Any]


class UnknownStep(Exception):
    """Raised for a step whose effect is not known here."""


@dataclass
class SimulatedRun:
    """What calls work on.

    Attributes:
        awaited_images: by host, the images that instances need and that have not arrived yet.
        images: the image of an instance, by host, name and spec hash.
        partitions: hosts whose GPUs have yet to change.
        at_once: the operator accepts that too few serve.
        found: the rules that were broken.
        step: what the run does now.
        changing: the instances that it changes now.
    """

    model: FleetModel
    known: Templates
    awaited_images: dict[str, set[str]]
    images: Mapping[tuple[str, str, str], str]
    partitions: set[str]
    at_once: bool
    found: list[Violation]
    step: str = ""
    changing: tuple[Instance, ...] = ()

    def violate(self, rule: str, what: str, *hosts: str) -> None:
        """Record that the current step breaks a rule."""
        self.found.append(Violation(rule, self.step, what, hosts, self.changing))


@dataclass(frozen=True)
class Call:
    """What a call does on a host: first it takes things away, then it gives them. Either may be nothing."""

    takes: Callable[[SimulatedRun, str, Args], None] | None = None
    gives: Callable[[SimulatedRun, str, Args], None] | None = None


# ---- load balancers ----------------------------------------------------------------------------------


def _servers(context: SimulatedRun, args: Args) -> Iterator[tuple[str, str]]:
    """Yield the servers that a call is about, each with its load balancer, except those that the operator drained."""
    for entry in args["servers"]:
        balancer = context.model.balancers.get(entry["balancer"])
        if balancer is None or not balancer.exists:
            continue
        for name in entry["servers"]:
            if name in balancer.servers and balancer.servers[name].of not in balancer.by_operator:
                yield balancer.name, name


def _set_state(context: SimulatedRun, _host: str, args: Args) -> None:
    for entry in args["servers"]:
        balancer = context.model.balancers.get(entry["balancer"])
        if balancer is None or not balancer.exists:
            context.violate(NEEDS, f"load balancer {entry['balancer']} is asked before it is configured")
            continue
        for name in (name for name in entry["servers"] if name not in balancer.servers):
            context.violate(NEEDS, f"load balancer {balancer.name} has no server {name}")
        if args["state"] != "ready":
            # It waits for servers that have yet to be checked, where too few would be left without them.
            drained = [balancer.servers[name] for name in entry["servers"] if name in balancer.servers]
            context.model.count_on(balancer.name, {model for server in drained for model in server.models})
    for name, server in _servers(context, args):
        context.model.set_drained(name, server, drained=args["state"] != "ready")


def _returned(context: SimulatedRun, _host: str, args: Args) -> None:
    if args["state"] != "ready" or not args.get("wait", 1):
        return
    for balancer, name in _servers(context, args):
        context.model.prove(balancer, [name])
        if not context.model.serves(balancer, name):
            context.violate(
                NEEDS, f"load balancer {balancer} waits for {name}, whose instance does not answer there"
            )


# ---- instances ---------------------------------------------------------------------------------------


def _started(args: Args) -> Sequence[Mapping[str, Any]]:
    return args["servers"] if args.get("state", "present") != "stopped" else ()


def _stop(context: SimulatedRun, host: str, args: Args) -> None:
    """Stop what is removed, what is stopped, and what is replaced by other files."""
    names = [*(args.get("remove") or ())]
    for server in args["servers"]:
        there = context.model.instances.get((host, server["name"]))
        stays = there is not None and there.spec == server.get("spec_hash")
        if args.get("state", "present") == "stopped" or (
            there and not stays and args.get("state") != "started"
        ):
            names.append(server["name"])
    for name in names:
        stop_instance(context, (host, name))


def stop_instance(context: SimulatedRun, instance: Instance) -> None:
    """Stop an instance, which no load balancer may be sending requests to."""
    asked = context.model.asked(instance)
    if asked and not context.at_once:
        names = ", ".join(f"{balancer} as {name}" for balancer, name in asked)
        context.violate(IN_USE, f"{instance[1]} stops while requests are sent to it by {names}", instance[0])
    context.model.stop(instance)


def _start(context: SimulatedRun, host: str, args: Args) -> None:
    ready = args.get("wait", True)
    for server in _started(args):
        instance = host, str(server["name"])
        item = context.known.started(*instance, str(server.get("spec_hash") or ""))
        there = context.model.instances.get(instance)
        if there is None:
            start_instance(context, item)
        elif there.engine != item.engine:  # it stays as it is, and works with others from now on
            context.model.start(item)
    for server in _started(args) if ready else ():
        _wait(context, (host, str(server["name"])))


def start_instance(context: SimulatedRun, item: Running) -> None:
    """Start an instance, whose image must be there, and whose ports and GPUs must be free."""
    image = context.images.get((*item.of, item.spec), "")
    if image in context.awaited_images.get(item.host, ()):
        context.violate(NEEDS, f"{item.name} starts before its image {image} is there", item.host)
    if item.host in context.partitions:
        context.violate(NEEDS, f"{item.name} starts before the GPUs have their partition modes", item.host)
    for what in resource_conflicts(context.model.on(item.host), item):
        context.violate(TAKEN, f"{item.name} starts with {what}", item.host)
    context.model.start(item)


def _wait(context: SimulatedRun, instance: Instance) -> None:
    item = context.model.instances[instance]
    missing = [
        one for one in context.model.engines.get(item.engine, ()) if one not in context.model.instances
    ]
    if missing:
        names = ", ".join(f"{name} on {host}" for host, name in sorted(missing))
        context.violate(NEEDS, f"{item.name} waits for {names}, which nobody has started", item.host)
    context.model.ready(instance)


# ---- measurements, records ---------------------------------------------------------------------------


def _measure(context: SimulatedRun, host: str, args: Args) -> None:
    """Load instances with requests, while those of users must go elsewhere."""
    if args.get("phase") == "failed" or context.at_once:
        return
    described = [args.get("old") if args.get("phase") == "before" else args.get("new"), args.get("reference")]
    described += args.get("instances") or ()
    for item in described:
        if item and item.get("name") and context.model.asked((host, str(item["name"]))):
            context.violate(IN_USE, f"{item['name']} is measured while it is in service", host)


CALLS: dict[str, Call] = {
    "": Call(),
    "balancer_server": Call(_set_state, _returned),
    "vllm_server": Call(_stop, _start),
    "canary": Call(_measure),
    "measurement": Call(_measure),
    "vllm_watch": Call(),
    "instance_cache": Call(),
    "serving_generation": Call(),
}
"""By the names of modules and roles, as steps have them (rollout/steps.py)."""


def perform(
    context: SimulatedRun, calls: Iterable[tuple[str, str, Args]], after_taking: Callable[[], None]
) -> None:
    """Make calls on several hosts at the same time: what all of them take away is gone before one gives something.

    calls: host, action and arguments. after_taking: called in between, when the least is in service.
    """
    todo = list(calls)
    for _unused, action, _args in todo:
        if action not in CALLS:
            raise UnknownStep(action)
    for host, action, args in todo:
        takes = CALLS[action].takes
        if takes:
            takes(context, host, args)
    after_taking()
    for host, action, args in todo:
        gives = CALLS[action].gives
        if gives:
            gives(context, host, args)
