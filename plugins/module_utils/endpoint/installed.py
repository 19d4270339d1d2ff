# SPDX-License-Identifier: Apache-2.0
"""The load balancer on this host: its configuration, its HAProxy, and the record of what is drained in it.

out.json records which servers are drained, by whom and since when; HAProxy's own state file preserves the states over
restarts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..common.files import read_text, write_atomic
from ..common.module_main import NodeError
from ..common.paths import BALANCER_DIR, BALANCER_STATE
from ..service.balancer_config import configured_servers, followers
from ..service.endpoint import BALANCER
from .haproxy_socket import CarriedServer, Haproxy, ServerLoad


class DrainRecord:
    """The record of drained servers: {"backend/server": {state, by, since}}; of a run's own also run and command."""

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> dict[str, dict[str, str]]:
        """Return the whole record; it is empty if there is no file."""
        text = read_text(self.path)
        return dict(json.loads(text)) if text else {}

    def write(self, found: dict[str, dict[str, str]]) -> None:
        """Replace the record."""
        if found != self.read():
            write_atomic(self.path, json.dumps(found, indent=1, sort_keys=True) + "\n", 0o600)

    def has(self, run: str) -> bool:
        """Return whether a run has drained servers."""
        return any(item.get("run") == run for item in self.read().values())

    def carry(self, servers: Mapping[str, str]) -> None:
        """Write the record of a new configuration; `servers` has the former server whose entry each of them gets."""
        found = self.read()
        self.write({name: found[before] for name, before in servers.items() if before in found})


@dataclass(frozen=True)
class Balancer:
    """The load balancer on this host."""

    directory: str = BALANCER_DIR
    state: str = BALANCER_STATE

    @property
    def haproxy(self) -> Haproxy:
        """Return the client of its HAProxy."""
        return Haproxy(f"{self.state}/admin.sock")

    @property
    def drain_record(self) -> DrainRecord:
        """Return its record of drained servers."""
        return DrainRecord(f"{self.state}/out.json")

    def config(self, optional: bool = False) -> dict[str, Any]:
        """Return its configuration as data. Raise NodeError if there is no load balancer; optional: {} then."""
        text = read_text(f"{self.directory}/current/balancer.json")
        if text is None and optional:
            return {}
        if text is None:
            what = "There is no load balancer on this host. Run site.yml first."
            raise NodeError(what, **{"class": BALANCER})
        return dict(json.loads(text))

    def servers(self) -> dict[str, dict[str, Any]]:
        """Return the configured servers by "backend/server". Raise NodeError if there is no load balancer."""
        return configured_servers(self.config())

    def loads(self) -> dict[str, ServerLoad]:
        """Return the requests at the configured servers, those that came by subsets of their backend included."""
        config, found = self.config(), self.haproxy.loads()
        following = followers(config)
        return {
            name: replace(
                found[name],
                running=sum(found[one].running for one in (name, *following.get(name, ()))),
                waiting=sum(found[one].waiting for one in (name, *following.get(name, ()))),
            )
            for name in configured_servers(config)
            if name in found
        }


def same_servers(config: Mapping[str, Any]) -> dict[str, CarriedServer]:
    """Return the servers of a configuration, for a new process that has the same one."""
    return {
        name: CarriedServer(str(item["address"]), int(item["port"]), name)
        for name, item in configured_servers(config).items()
    }
