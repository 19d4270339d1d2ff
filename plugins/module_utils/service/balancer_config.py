# SPDX-License-Identifier: Apache-2.0
"""Read balancer.json: the servers of a load balancer's configuration, and which servers of another configuration they
continue. Pure.

A server is an instance at an address that is asked for some model names. Its name ("backend/server") may change from
one configuration to the next; its state in HAProxy and who drained it stay with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def configured_servers(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the servers of a configuration by "backend/server", each with its deployment and its model names.

    Before 0.2, all servers of a backend had its name as their deployment, and its model names.
    """
    return {
        f"{backend['name']}/{server['name']}": {
            "deployment": backend["name"],
            "models": backend.get("models") or [],
            **server,
        }
        for backend in config.get("backends") or ()
        for server in backend["servers"]
    }


def followers(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the servers of subsets that follow each server's state, by "backend/server"."""
    found: dict[str, list[str]] = {}
    for backend in config.get("backends") or ():
        for subset in backend.get("subsets") or ():
            for name in subset["servers"]:
                found.setdefault(f"{backend['name']}/{name}", []).append(f"{subset['name']}/{name}")
    return found


def carried_servers(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    """Return for each server of a configuration the one of the former configuration that it continues, if there is one.

    That one is the same instance at the same address, whatever its host is called, with a model name in common; of
    several, the one with the same name if there is one.
    """
    there: dict[tuple[Any, ...], list[tuple[str, frozenset[str]]]] = {}
    for name, server in configured_servers(before).items():
        there.setdefault(_place(server), []).append((name, frozenset(server["models"])))
    found = {}
    for name, server in configured_servers(after).items():
        fitting = [old for old, models in there.get(_place(server), ()) if models & set(server["models"])]
        if fitting:
            found[name] = name if name in fitting else fitting[0]
    return found


def _place(server: Mapping[str, Any]) -> tuple[Any, ...]:
    return server["instance"], server["address"], int(server["port"])
