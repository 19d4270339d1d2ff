# SPDX-License-Identifier: Apache-2.0
"""The Ray cluster of an engine that spans hosts by Ray: its command lines, and the wait for its nodes."""

from __future__ import annotations

import sys
from dataclasses import dataclass

ALIVE = """
import sys, time
import ray
address, wanted, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
end = time.monotonic() + seconds
while True:
    alive = [node for node in ray.nodes() if node.get("Alive")]
    if len(alive) >= wanted or time.monotonic() > end:
        break
    time.sleep(0.5)
for node in alive:
    resources = node.get("Resources") or {}
    print("ray:", node.get("NodeManagerAddress"), {key: resources.get(key) for key in ("GPU", "CPU")}, flush=True)
sys.exit(0 if len(alive) >= wanted else 3)
"""
"""A program that asks Ray itself, since the text of `ray status` differs between releases.

Arguments: address, nodes, seconds.
"""


@dataclass(frozen=True)
class Ray:
    """A node of the cluster. head: whether it is the head; address: HOST:PORT of the head; ip: this host's address;
    more: additional arguments of `ray start`.
    """

    head: bool
    address: str
    ip: str
    gpus: str
    cpus: str
    more: tuple[str, ...]

    @property
    def start(self) -> tuple[str, ...]:
        """Return the `ray start` command.

        On the head it returns once the daemons run; on a worker it blocks until they end.
        """
        words = ["ray", "start"]
        if self.head:
            words += ["--head", f"--port={self.address.rpartition(':')[2]}", "--include-dashboard=false"]
            words += ["--disable-usage-stats"]
        else:
            words += [f"--address={self.address}", "--block"]
        for name, value in (
            ("node-ip-address", self.ip),
            ("num-gpus", self.gpus),
            ("num-cpus", self.cpus),
        ):
            words += [f"--{name}={value}"] if value else []
        return (*words, *self.more)

    def wait(self, nodes: int, seconds: float) -> tuple[str, ...]:
        """Return the command that exits with 0 once `nodes` nodes are alive, and with 3 after `seconds`."""
        return (sys.executable, "-c", ALIVE, self.address, str(nodes), str(seconds))

    @property
    def stop(self) -> tuple[str, ...]:
        """Return the command that ends Ray's processes in this container."""
        return ("ray", "stop")
