# SPDX-License-Identifier: Apache-2.0
"""The mounts that put the simulated parts of /sys and /proc over a node's own.

A tmpfs covers /sys/class, /sys/module and the PCI bus directories of the node, with links to the kernel's and the
network's entries; CPUs, NUMA nodes, huge pages, /proc/cpuinfo and /proc/meminfo are bound over the machine's. No
hardware of the machine below remains visible. That works even if /sys is mounted read-only, as in a container.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from ..machine.paths import Paths
from ..machine.state import StateError

BOUND = ("devices/system/cpu", "devices/system/node", "kernel/mm/transparent_hugepage")
BOARD = "devices/virtual/dmi"  # shown as a class too
TABLES = "firmware/dmi"  # read by dmidecode
CLASSES = {
    "bdi",
    "block",
    "mem",
    "misc",
    "net",
    "tty",
    "vc",
}  # the kernel's own, and the network of the node's
# Docker reads these before it accepts --cpuset-cpus and --cpuset-mems: cgroups v1, v2.
CPUSETS = {
    "fs/cgroup/cpuset/cpuset.cpus": "cpus",
    "fs/cgroup/cpuset/cpuset.mems": "mems",
    "fs/cgroup/cpuset.cpus.effective": "cpus",
    "fs/cgroup/cpuset.mems.effective": "mems",
}


def link(path: Path, target: Path | None) -> None:
    """Make `path` a link to target, or remove it. Never follow it: that could wait for this process."""
    if os.path.lexists(path):
        if target is not None and os.path.islink(path) and os.readlink(path) == str(target):
            return
        path.unlink()
    if target is not None:
        path.symlink_to(target)


def covered(paths: Paths) -> bool:
    """Return whether parts of /sys are simulated."""
    return (paths.original / "class").is_dir()


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StateError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def _cover(paths: Paths, name: str, keep: Callable[[str], bool]) -> None:
    """Mount a tmpfs over /sys/<name> with the kept entries: links stay links, directories become links."""
    target, original = paths.sys / name, paths.original / name
    run("mount", "-t", "tmpfs", "-o", "mode=755,size=4m", "gpusim", str(target))
    for entry in sorted(filter(keep, os.listdir(original))):
        source = original / entry
        (target / entry).symlink_to(os.readlink(source) if source.is_symlink() else source)


def _cover_pci(paths: Paths) -> None:
    """Hide all PCI devices of the machine from buses and drivers."""
    if (paths.sys / "bus/pci/devices").is_dir():
        for name in ("bus/pci/devices", "bus/pci/drivers"):
            _cover(paths, name, lambda _: False)
        return
    _cover(paths, "bus", lambda name: name != "pci")
    for name in ("devices", "drivers"):
        (paths.sys / "bus/pci" / name).mkdir(parents=True)


def _make(paths: Paths, name: str) -> None:
    """Create a directory of /sys/<name> that the machine does not have: not every kernel has huge pages."""
    there = next(parent for parent in Path(name).parents if (paths.sys / parent).is_dir())
    _cover(paths, str(there), lambda _: True)
    (paths.sys / name).mkdir(parents=True)


def _bind(source: Path, target: Path) -> None:
    """Show a file or directory instead of the machine's, if that has one."""
    if target.exists():
        run("mount", "--bind", str(source), str(target))


def _keep_parent(cpuset: Path) -> None:
    """Write the machine's CPUs into the containers' parent cgroup.

    With cgroups v1, runc copies them from the root cgroup, which it cannot read once that is covered.
    """
    parent = cpuset / "docker"
    if not (cpuset / "cpuset.cpus").exists():
        return
    parent.mkdir(exist_ok=True)
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not (parent / name).read_text().strip():
            (parent / name).write_text((cpuset / name).read_text())


def cover(paths: Paths) -> None:
    """Cover the simulated parts of /sys and /proc; the tree and the files must exist already.

    In a scratch root, /sys is a link to the simulated one.
    """
    if paths.scratch:
        link(paths.sys, paths.tree)
        return
    if covered(paths):
        return
    paths.original.mkdir(parents=True, exist_ok=True)
    run("mount", "--bind", str(paths.sys), str(paths.original))
    _cover(paths, "class", CLASSES.__contains__)
    _cover(paths, "module", lambda _: True)  # simulated ones replace the machine's
    _cover_pci(paths)
    for name in (name for name in BOUND if not (paths.sys / name).is_dir()):
        _make(paths, name)
    for name in (*BOUND, BOARD):
        _bind(paths.tree / name, paths.sys / name)
    if (paths.sys / TABLES).is_dir():
        _cover(paths, TABLES, lambda _: False)
    for name in ("cpuinfo", "meminfo"):
        _bind(paths.shown / name, paths.proc / name)
    _keep_parent(paths.sys / "fs/cgroup/cpuset")
    for place, name in CPUSETS.items():
        _bind(paths.shown / name, paths.sys / place)


def uncover(paths: Paths) -> None:
    """Undo the mounts, as far as they exist."""
    ours = [paths.tree, paths.files, paths.fuse]
    if not paths.scratch and covered(paths):
        made = [str(parent) for name in BOUND for parent in list(Path(name).parents)[:-1]]
        names = (
            *CPUSETS, TABLES, BOARD, *BOUND, *made, "bus/pci/drivers", "bus/pci/devices", "bus", "module", "class",
        )  # fmt: skip
        proc = (paths.proc / "cpuinfo", paths.proc / "meminfo")
        ours = [*(paths.sys / name for name in names), paths.original, *proc, *ours]
    elif paths.scratch and paths.sys.is_symlink():
        paths.sys.unlink()
        for name in ("cpuinfo", "meminfo"):
            (paths.proc / name).unlink(missing_ok=True)
    for path in ours:
        subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)
