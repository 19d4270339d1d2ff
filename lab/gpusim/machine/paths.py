# SPDX-License-Identifier: Apache-2.0
"""The paths of the simulation. GPUSIM_ROOT puts everything below another directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CONTROL = ".sync"  # a file of the served tree; a write to it updates the mirrored files


@dataclass(frozen=True)
class Paths:
    """Directories of a node. `root` is / in a node, a scratch directory in tests."""

    root: Path

    @classmethod
    def of_environment(cls) -> Paths:
        return cls(Path(os.environ.get("GPUSIM_ROOT", "/")))

    @property
    def scratch(self) -> bool:
        """Return whether this is only a directory on some machine, whose /sys and containers must not be touched."""
        return self.root != Path("/")

    @property
    def run(self) -> Path:
        return self.root / "run/gpusim"

    @property
    def state(self) -> Path:
        """Return the path of the state, kept over a reboot like that of GPUs and firmware."""
        return self.root / "var/lib/gpusim/state.json"

    @property
    def ready(self) -> Path:
        return self.run / "ready"

    @property
    def fuse(self) -> Path:
        """Return the mount point of the served file system: the whole simulated sysfs, live."""
        return self.run / "live"

    @property
    def files(self) -> Path:
        """Return the tmpfs with the mirrored part, written by the server only."""
        return self.run / "files"

    @property
    def tree(self) -> Path:
        """Return the read-only view of the mirrored part, to which /sys links."""
        return self.run / "tree"

    @property
    def shown(self) -> Path:
        """Return the directory of files that are bound over the machine's own, by their names."""
        return self.run / "shown"

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    @property
    def original(self) -> Path:
        """Return the path of the node's own sysfs, which stays reachable after parts of /sys are covered."""
        return self.run / "sys"

    @property
    def sys(self) -> Path:
        return self.root / "sys"

    @property
    def dev(self) -> Path:
        return self.root / "dev"

    @property
    def rocm_bin(self) -> Path:
        return self.root / "opt/rocm/bin"

    @property
    def rocm_info(self) -> Path:
        return self.root / "opt/rocm/.info"
