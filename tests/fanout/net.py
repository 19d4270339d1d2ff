# SPDX-License-Identifier: Apache-2.0
"""Nodes on shaped links, on one machine: a network namespace each, on a bridge in a namespace of its own.

Both ends of every link have a token bucket filter: one limits what the node sends, the other what it receives.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class ShapedNet:
    """Namespaces node0 … node<count-1> on links of `mbit` Mbit/s; all is gone when it is left."""

    def __init__(self, count: int, mbit: float, tag: str = "") -> None:
        self.count, self.mbit = count, mbit
        self.tag = f"fo{os.getpid() % 100000}{tag}"
        self.processes: list[subprocess.Popen[bytes]] = []

    def name(self, node: int) -> str:
        """Return the name of a node's namespace."""
        return f"{self.tag}-{node}"

    def address(self, node: int) -> str:
        """Return a node's address."""
        return f"10.99.{node // 200}.{node % 200 + 1}"

    def __enter__(self) -> Self:
        try:
            self._up()
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._down()

    def _up(self) -> None:
        switch = f"{self.tag}-sw"
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        for node in range(self.count):
            name = self.name(node)
            _run("ip", "netns", "add", name)
            _run(
                *("ip", "-n", switch, "link", "add", f"v{node}", "type", "veth"),
                *("peer", "name", "eth0", "netns", name),
            )
            _run("ip", "-n", switch, "link", "set", f"v{node}", "master", "br0", "mtu", "9000", "up")
            _run("ip", "-n", name, "addr", "add", f"{self.address(node)}/16", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "mtu", "9000", "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            self._loss_based(name)
            self.shape(node, self.mbit)

    def _loss_based(self, name: str) -> None:
        """Use a usual congestion control: BBR shares such short queues unfairly among many connections."""
        for control in ("cubic", "reno"):
            setting = f"net.ipv4.tcp_congestion_control={control}"
            if not subprocess.run(
                ["ip", "netns", "exec", name, "sysctl", "-qw", setting], capture_output=True, check=False
            ).returncode:
                return

    def shape(self, node: int, mbit: float) -> None:
        """Give a node's link a rate, both ways."""
        for name, device in ((f"{self.tag}-sw", f"v{node}"), (self.name(node), "eth0")):
            _run(
                *("tc", "-n", name, "qdisc", "replace", "dev", device, "root", "tbf"),
                *("rate", f"{mbit}mbit", "burst", "64kb", "latency", "100ms"),
            )

    def link(self, node: int, up: bool) -> None:
        """Cut a node's link, or mend it."""
        _run("ip", "-n", f"{self.tag}-sw", "link", "set", f"v{node}", "up" if up else "down")

    def sent(self, node: int) -> int:
        """Return the bytes that went out over a node's link, headers included."""
        shown = json.loads(_run("tc", "-n", self.name(node), "-s", "-j", "qdisc", "show", "dev", "eth0"))
        return int(shown[0]["bytes"])

    def start(self, node: int, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a program on a node."""
        with log.open("ab") as stream:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name(node), *command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def _down(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        names: list[Any] = json.loads(_run("ip", "-j", "netns", "list") or "[]")
        for entry in names:
            if entry["name"].startswith(f"{self.tag}-"):
                _run("ip", "netns", "del", entry["name"])
