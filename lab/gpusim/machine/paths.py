# SPDX-License-Identifier: Apache-2.0
"""Where the simulation keeps and shows things. GPUSIM_ROOT puts everything below another directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CONTROL = ".sync"  # a file of the served tree; writing to it brings the mirrored files in line


@dataclass(frozen=True)
class Paths:
    """Directories of a node. `root` is / in a node, a scratch directory in tests."""

    root: Path

    @classmethod
    def of_environment(cls) -> Paths:
        return cls(Path(os.environ.get("GPUSIM_ROOT", "/")))

    @property
    def scratch(self) -> bool:
        """Not a node, but a directory on some machine: its /sys and containers are not ours."""
        return self.root != Path("/")

    @property
    def run(self) -> Path:
        return self.root / "run/gpusim"

    @property
    def state(self) -> Path:
        """Kept over a reboot, as GPUs and firmware are."""
        return self.root / "var/lib/gpusim/state.json"

    @property
    def ready(self) -> Path:
        return self.run / "ready"

    @property
    def fuse(self) -> Path:
        """Mount point of the served file system: the whole simulated sysfs, live."""
        return self.run / "live"

    @property
    def files(self) -> Path:
        """tmpfs with the mirrored part, written by the server only."""
        return self.run / "files"

    @property
    def tree(self) -> Path:
        """The same, read-only: what /sys shows."""
        return self.run / "tree"

    @property
    def shown(self) -> Path:
        """Files that are bound over the machine's own, by their names."""
        return self.run / "shown"

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    @property
    def original(self) -> Path:
        """The node's own sysfs, reachable after parts of /sys were covered."""
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
