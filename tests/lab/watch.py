# SPDX-License-Identifier: Apache-2.0
"""Watches a lab from outside, twice a second: who listens on each node, and what load balancers say of their servers.

It knows nothing of the toolkit but where HAProxy's socket is: it asks the kernel and HAProxy.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping
from typing import Any

from tests.helpers.trace import DOWN, IN, OUT, UP, Look

from .conftest import Lab, container

SECONDS = 0.5
# Ports of what else a node runs: SSH, and what a load balancer itself has open.
OTHERS = (22, 8443, 8405, 8406, 8415)
OWN = "inside"  # a backend that is the load balancer itself
PROGRAM = r"""
import json, select, socket, sys, time
def listening():
    found = []
    for path, size in (("/proc/net/tcp", 8), ("/proc/net/tcp6", 32)):
        for line in open(path).readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                address, port = fields[1].split(":")
                raw = b"".join(bytes.fromhex(address[i:i + 8])[::-1] for i in range(0, size, 8))
                family = socket.AF_INET if size == 8 else socket.AF_INET6
                found.append([socket.inet_ntop(family, raw), int(port, 16)])
    return found
def stat():
    try:
        asked = socket.socket(socket.AF_UNIX)
        asked.settimeout(5)
        asked.connect("/var/lib/instinct-fleet/balancer/admin.sock")
        asked.sendall(b"show stat -1 4 -1;show servers state\n")
        return asked.makefile().read()
    except OSError:
        return None
left = 0.0
while not select.select([sys.stdin], [], [], left)[0]:
    begun = time.time()
    print(json.dumps({"at": begun, "stat": stat(), "listening": listening()}), flush=True)
    left = max(0.0, begun + float(sys.argv[1]) - time.time())
"""

# A server's administrative states: forced maintenance, forced drain, inherited drain.
DRAINED = 0x01 | 0x08 | 0x10


def servers(text: str | None) -> dict[str, tuple[str, str]] | None:
    """Each server of HAProxy's statistics, whether it is drained and whether it is up; of what tracks another: nothing.

    A drained server may be down as well, so its administrative state is asked too. Columns and bits are in sections 9.1
    and 9.3 of HAProxy's management guide.
    """
    if not text:
        return None
    statistics, _, states = text.partition("\n\n")
    admin = {
        f"{row[1]}/{row[3]}": int(row[6])
        for row in map(str.split, states.splitlines())
        if len(row) > 20 and row[0] != "#"
    }
    lines = statistics.removeprefix("# ").splitlines()
    names = lines[0].split(",")
    found = {}
    for line in lines[1:]:
        row = dict(zip(names, line.split(","), strict=False))
        name = f"{row['pxname']}/{row['svname']}"
        if row["type"] == "2" and row["pxname"] != OWN and not row["tracked"] and name in admin:
            up = UP if row["status"].startswith("UP") else DOWN
            found[name] = (OUT if admin[name] & DRAINED else IN, up)
    return found


def look(host: str, raw: Mapping[str, Any]) -> Look:
    """What was seen at one moment."""
    there = frozenset(
        ("0.0.0.0" if address in ("::", "0.0.0.0") else address, port)
        for address, port in raw["listening"]
        if port not in OTHERS and not address.startswith("127.0.0.11")
    )
    return Look(raw["at"], host, there, servers(raw["stat"]))


class Watcher:
    """Looks at the nodes of a lab until the end of its block."""

    def __init__(self, lab: Lab, hosts: Mapping[str, str]) -> None:
        """hosts: the inventory's names, with those of the lab's nodes."""
        self.lab, self.hosts = lab, hosts
        self.looks: list[Look] = []
        self._programs: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Watcher:
        for host, node in self.hosts.items():
            program = subprocess.Popen(
                ["docker", "exec", "--interactive", container(node), "python3", "-c", PROGRAM, str(SECONDS)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            reader = threading.Thread(target=self._read, args=(host, program))
            reader.start()
            self._programs.append(program)
            self._readers.append(reader)
        return self

    def _read(self, host: str, program: subprocess.Popen[str]) -> None:
        assert program.stdout is not None
        for line in program.stdout:
            self.looks.append(look(host, json.loads(line)))

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            assert program.stdin is not None
            program.stdin.close()
        for program, reader in zip(self._programs, self._readers, strict=True):
            program.wait(30)
            reader.join(30)
