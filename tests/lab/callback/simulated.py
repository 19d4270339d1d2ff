# SPDX-License-Identifier: Apache-2.0
"""Callback plugin of the lab tests: what the simulation of a run contains, one JSON line per state, into FLEET_STATES.

The planner simulates in a process that is forked from this one: what is put around it here is around it there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from ansible.plugins.callback import CallbackBase
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.fleet import ANY
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation import simulate as simulation

DOCUMENTATION = """
name: simulated
type: aggregate
short_description: write what the simulation of a run contains
description: Used by the lab tests to compare it with what an outside watcher sees.
"""


def state(step: str, model: Any) -> dict[str, Any]:
    """A fleet between two steps, as plain data."""
    return {
        "step": step,
        "hosts": sorted(model.addresses),
        "instances": [
            {
                "host": item.host, "name": item.name, "listen": item.listen, "port": item.port,
                "ports": sorted(item.ports), "ready": item.ready,
            }
            for item in model.instances.values()
        ],
        "balancers": {
            balancer.name: [
                [name, name in balancer.drained, serves(model, balancer, name)]
                for name in balancer.servers
            ]
            for balancer in model.balancers.values()
            if balancer.exists
        },
    }  # fmt: skip


def serves(model: Any, balancer: Any, name: str) -> bool | None:
    """Whether a server gets requests and answers them; None where the load balancer may have yet to find out.

    Or where it is asked at an address that the inventory no longer has: who listens at all of a host's addresses
    answers there for as long as the host has it.
    """
    if model.may_serve(balancer.name, name):
        return None if name in balancer.unproven | balancer.awaited else True
    server = balancer.servers[name]
    elsewhere = server.address != model.addresses.get(server.host, server.address)
    there = [item for item in model.on(server.host) if item.listen in ANY and item.port == server.port]
    return None if elsewhere and there else False


NO_LIMITS = simulation.RunLimits()


def recorded(simulate: Callable[..., Any], path: str) -> Callable[..., Any]:
    """The simulation, with every state written to a file; the last simulation of a run is the one that counts."""

    def around(plan: Any, todo: Any, operation: str, terms: Any = NO_LIMITS, watch: Any = None) -> Any:
        with open(path, "w", encoding="utf-8") as stream:

            def note(step: str, model: Any) -> None:
                stream.write(json.dumps(state(step, model)) + "\n")

            return simulate(plan, todo, operation, terms, note)

    return around


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "simulated"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        if path := os.environ.get("FLEET_STATES"):
            simulation.simulate = recorded(simulation.simulate, path)
