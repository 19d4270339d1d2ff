# SPDX-License-Identifier: Apache-2.0
"""A swarm on shaped links: stores of made-up blobs, the program as nodes run it, and what it says of itself."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import secrets
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import (
    Manifest,
    ManifestFile,
    manifest_of,
)
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_job import (
    SwarmJob,
    SwarmMember,
    write_job,
)
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_state import SwarmState, read_state
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import archive

from tests.fanout.net import ShapedNet

PYTHON = "/usr/bin/python3"  # the one that has the distribution's libtorrent
PORT = 8620


def content(sizes: Iterable[int], seed: int = 1) -> dict[str, bytes]:
    """Return made-up files of these sizes, by path."""
    made = random.Random(seed)
    return {f"file-{number:02d}": made.randbytes(size) for number, size in enumerate(sizes)}


def image_sizes(total: int) -> list[int]:
    """Return the sizes of an image's eight layers: one has most of it."""
    parts = [1, 2, 5, 30, 700, 4000, 12000, 33000]
    return [max(1, total * part // sum(parts)) for part in parts]


def weight_sizes(total: int) -> list[int]:
    """Return the sizes of a model's twenty files: equal shards, and small ones."""
    small = [700, 1200, 9000, 300, 20000]
    shards = 20 - len(small)
    return [*small, *[(total - sum(small)) // shards] * shards]


def manifest(files: dict[str, bytes], name: str = "test") -> Manifest:
    """Return the manifest of files."""
    return manifest_of(
        name,
        (ManifestFile(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in files.items()),
    )


@dataclass
class Fleet:
    """Nodes with stores, on a net; the first `seeds` of them have all files."""

    net: ShapedNet
    root: Path
    files: dict[str, bytes]
    seeds: int = 1

    def __post_init__(self) -> None:
        self.manifest = manifest(self.files)
        self.program = self.root / "swarm.pyz"
        self.program.write_bytes(base64.b64decode(archive("swarm")))
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.changes: dict[str, object] = {"linger": 20.0, "stall": 90.0, "deadline": 900.0}
        for node in range(self.seeds):
            self.fill(node)

    def store(self, node: int) -> Store:
        """Return a node's store."""
        return Store(str(self.root / f"node{node}"))

    def directory(self, node: int) -> Path:
        """Return the directory of a node's job and state."""
        return self.root / f"run{node}"

    def fill(self, node: int) -> None:
        """Put all files into a node's store."""
        for data in self.files.values():
            self.store(node).put(data, hashlib.sha256(data).hexdigest())

    def start(self, nodes: Iterable[int], seeds: Iterable[int] = (0,)) -> float:
        """Start a run of these nodes, sources last, when the others wait for them; return when that was.

        Thus the start of dozens of programs on one machine is not part of what is measured.
        """
        nodes, seeds, key = list(nodes), set(seeds), secrets.token_hex(32)
        members = tuple(
            SwarmMember(f"n{node}", self.net.address(node), PORT, node in seeds) for node in nodes
        )
        waiting = [node for node in nodes if node not in seeds]
        for node in waiting:
            self._start(node, members, key)
        limit = time.monotonic() + 120
        while any((found := self.state(node)) is None or found.phase == "hashing" for node in waiting):
            if time.monotonic() > limit:
                raise TimeoutError("the programs do not start")
            time.sleep(0.1)
        for node in seeds:
            self._start(node, members, key)
        return time.monotonic()

    def _start(self, node: int, members: tuple[SwarmMember, ...], key: str) -> None:
        serve = (
            tuple(self.manifest.blobs) if members[[m.name for m in members].index(f"n{node}")].serves else ()
        )
        job = SwarmJob(self.manifest, self.store(node).root, f"n{node}", members, serve, key)
        path = write_job(replace(job, **self.changes), str(self.directory(node)))  # type: ignore[arg-type]
        (self.directory(node) / "state.json").unlink(missing_ok=True)
        self.running[node] = self.net.start(node, (PYTHON, str(self.program), path), self.root / f"log{node}")

    def state(self, node: int) -> SwarmState | None:
        """Return what a node says of its run."""
        return read_state(str(self.directory(node)))

    def wait(
        self, nodes: Iterable[int], seconds: float, each: Callable[[], None] = lambda: None
    ) -> dict[int, float]:
        """Wait until nodes are complete; return when each was, in seconds from now. Raise TimeoutError."""
        begun, done = time.monotonic(), {}
        left = set(nodes)
        while left:
            now = time.monotonic() - begun
            each()
            for node in sorted(left):
                found = self.state(node)
                if found is not None and found.finished:
                    done[node] = now
                    left.discard(node)
                elif self.running[node].poll() is not None:
                    log = (self.root / f"log{node}").read_text()
                    raise RuntimeError(f"n{node} ended: {found}\n{log[-2000:]}")
            if now > seconds:
                raise TimeoutError(
                    f"{sorted(left)} incomplete after {seconds} s: {[self.state(n) for n in left]}"
                )
            time.sleep(0.1)
        return done

    def check(self, nodes: Iterable[int]) -> None:
        """Raise AssertionError unless these nodes have every file, byte for byte."""
        for node in nodes:
            store = self.store(node)
            for data in self.files.values():
                sha256 = hashlib.sha256(data).hexdigest()
                assert Path(store.path(sha256)).read_bytes() == data, f"n{node} {sha256}"
                assert os.stat(store.path(sha256)).st_mode & 0o777 == 0o644
