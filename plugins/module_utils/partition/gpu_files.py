# SPDX-License-Identifier: Apache-2.0
"""A node's GPUs as the driver's files present them."""

from __future__ import annotations

import os

from ..observe.gpus import read_gpus
from ..observe.source import Source
from .gpus import PartitionedGpu, gpus_of

MODE_FILES = ("current_compute_partition", "current_memory_partition")


class GpuFiles:
    """The files of a node, under `root`."""

    def __init__(self, root: str = "/") -> None:
        self.root = root
        self.source = Source(root)

    def path(self, path: str) -> str:
        """Return `path` below the root."""
        return self.root.rstrip("/") + path

    def gpus(self) -> tuple[PartitionedGpu, ...]:
        """Return the GPUs' present state."""
        self.source.problems.clear()
        state = read_gpus(self.source)
        ending = f"/{MODE_FILES[0]}"
        unread = {
            problem["what"][: -len(ending)]: problem["error"]
            for problem in self.source.problems
            if problem["what"].endswith(ending)
        }
        files = [f"{entry['sysfs_path']}/{name}" for entry in state for name in MODE_FILES]
        writable = frozenset(path for path in files if self._writable(path))
        return gpus_of(state, writable, frozenset(self.source.names("/dev/dri")), unread)

    def _writable(self, path: str) -> bool:
        try:
            return bool(os.stat(self.path(path)).st_mode & 0o200)
        except OSError:
            return False
