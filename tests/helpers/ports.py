# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that are started a moment later: nobody else gets them in between."""

from __future__ import annotations

import functools
import itertools
import socket
from collections.abc import Iterator

# Below what the kernel gives to connections and to port 0 (net.ipv4.ip_local_port_range, 32768 and up): a port of
# those may be another process's before it is used, and who tries to connect to it may even reach itself.
BLOCK = 500
BLOCKS = range(20500, 32500, BLOCK)


@functools.cache
def _mine() -> tuple[socket.socket, Iterator[int]]:
    """Ports that no other process of these tests uses, and what tells the others so until this process ends."""
    for first in BLOCKS:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0instinct-fleet tests, ports from {first}")
        except OSError:
            claim.close()
            continue
        return claim, itertools.cycle(range(first, first + BLOCK))
    raise AssertionError("all blocks of ports are taken")


def free_port() -> int:
    """A port at which nobody listens, at any address."""
    _, ports = _mine()
    for port in itertools.islice(ports, BLOCK):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))  # refused as well while an earlier connection is remembered
            except OSError:
                continue
            return port
    raise AssertionError("all ports of this process are taken")
