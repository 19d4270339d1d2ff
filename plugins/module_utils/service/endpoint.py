# SPDX-License-Identifier: Apache-2.0
"""Names on which the load balancer's plan and its node agree: ports, files, and who drained a server."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

OPERATOR = "operator"
"""Marks servers drained by the operator: a run returns to service only servers that a run drained."""
BALANCER = "balancer"
"""The class of a failure of a load balancer itself, as opposed to one of its instances."""
NOT_IN_SERVICE = "not_in_service"
"""The class of a failure to return an instance to service in time, though it has answered on its host."""
# HAProxy queries the agent on loopback, see programs/haproxy_agent.py.
AGENT_PORT = 8406
# HAProxy's address for routers (programs/router.py), and the ports of routers; each has a second port, METRICS above.
ROUTER_PORT = 8407
ROUTERS = range(8410, 8430)
ADDRESS_FILE = "keepalived.conf"
"""The balancer's file that defines how it holds its virtual address (virtual_address.py)."""
METRICS = 20
"""Offset from a router's port to the port of its metrics."""


def local_address(listen: str) -> str:
    """Return the address at which a node reaches its own server that listens on `listen`, which may be a wildcard."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen, listen)


def listen_address(argv: Sequence[str]) -> str:
    """Return the address on which the server of a `vllm serve` command line listens."""
    return argv[argv.index("--host") + 1] if "--host" in argv else "127.0.0.1"


def busy(port: int) -> int:
    """Return the number of requests in flight at a router: HAProxy opens a connection for each."""
    found = 0
    with contextlib.suppress(OSError), open("/proc/net/tcp", encoding="ascii") as file:
        for line in file:
            words = line.split()
            found += words[3] == "01" and words[1].endswith(f":{port:04X}")
    return found
