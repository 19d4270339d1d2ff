# SPDX-License-Identifier: Apache-2.0
"""The Ray cluster of an engine that runs over hosts by Ray: its command lines, and the wait for its nodes."""

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
"""Asks Ray itself: the text of `ray status` differs between releases. Arguments: address, nodes, seconds."""


@dataclass(frozen=True)
class Ray:
    """head: it is the first node. address: the head's, HOST:PORT. ip: this host's own. more: words for `ray start`."""

    head: bool
    address: str
    ip: str
    gpus: str
    cpus: str
    more: tuple[str, ...]

    @property
    def start(self) -> tuple[str, ...]:
        """The head's comes back once its daemons run; a worker's stays, and ends when its daemons do."""
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
        """Ends with 0 once so many nodes are alive, with 3 when they are not in time."""
        return (sys.executable, "-c", ALIVE, self.address, str(nodes), str(seconds))

    @property
    def stop(self) -> tuple[str, ...]:
        """Ends what Ray runs in this container."""
        return ("ray", "stop")
