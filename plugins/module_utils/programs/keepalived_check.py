# SPDX-License-Identifier: Apache-2.0
"""Keepalived's check: exits with 0 if this host's HAProxy works, else with 1.

It queries the admin socket. The loop that serves clients answers there, even if all connections are in use; in that
case the other balancer would do no better. One file without imports of the toolkit: it runs on the balancer's host.

    alive.py ADMIN.SOCK
"""

from __future__ import annotations

import socket
import sys

SECONDS = 2.0


def works(path: str) -> bool:
    """Return whether HAProxy answers at this socket and is not stopping."""
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
    raise SystemExit(0 if works(sys.argv[1]) else 1)
