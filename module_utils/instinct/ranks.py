# SPDX-License-Identifier: Apache-2.0
"""Servers that are one engine together: over several hosts, or one per data parallel rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rank:
    """A server's place among those that make one engine.

    hosts: the group of hosts, in natural order; node_rank: this host's place among them. master, master_port:
    where the servers meet, at the group's first host (torch's store, data parallel's handshake, or Ray).
    data_rank: the first data parallel rank of this server. headless: it works for the first one, and has no
    HTTP port.
    """

    group: int
    node_rank: int
    hosts: tuple[str, ...]
    master: str
    master_port: int
    data_rank: int = 0
    headless: bool = False

    @property
    def nodes(self) -> int:
        """Hosts of the group."""
        return len(self.hosts)
