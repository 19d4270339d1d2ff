#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Keepalived's check: ends with 0 when this host's HAProxy works, else with 1.

It asks the admin socket: that is answered by the loop that serves clients, and also when all connections are taken,
where the other balancer would not do better. One file without imports of the toolkit: it runs on the balancer's host.
    alive.py ADMIN.SOCK
"""

from __future__ import annotations

import socket
import sys

SECONDS = 2.0


def works(path: str) -> bool:
    """HAProxy answers at this socket, and is not about to end."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(SECONDS)
            link.connect(path)
            link.sendall(b"show info\n")
            said = b""
            while b"\nStopping: " not in said:
                part = link.recv(8192)
                if not part:
                    return False
                said += part
            return b"\nStopping: 1" not in said
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(0 if works(sys.argv[1]) else 1)
