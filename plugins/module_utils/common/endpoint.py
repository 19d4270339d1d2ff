# SPDX-License-Identifier: Apache-2.0
"""What the load balancer's plan and its node agree on: ports, names of files, who took a server out."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

OPERATOR = "operator"
"""Who took a server out: a run takes in again only what a run took out."""
# Asked on loopback by HAProxy, see programs/haproxy_agent.py.
AGENT_PORT = 8406
# HAProxy's address for routers (programs/router.py), and the ports of routers, of which each has another one 20 above.
ROUTER_PORT = 8407
ROUTERS = range(8410, 8430)
ADDRESS_FILE = "keepalived.conf"
"""The balancer's file that says how its virtual address is held (virtual_address.py)."""
METRICS = 20
"""A router's metrics are that many ports above its own."""


def local_address(listen: str) -> str:
    """Where a node reaches what listens at an address of its own, or at all of them."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen, listen)


def listen_address(argv: Sequence[str]) -> str:
    """Where the server of a `vllm serve` command line listens."""
    return argv[argv.index("--host") + 1] if "--host" in argv else "127.0.0.1"


def busy(port: int) -> int:
    """Requests that a router works on: HAProxy makes a connection for each."""
    found = 0
    with contextlib.suppress(OSError), open("/proc/net/tcp", encoding="ascii") as file:
        for line in file:
            words = line.split()
            found += words[3] == "01" and words[1].endswith(f":{port:04X}")
    return found
