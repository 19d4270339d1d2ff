# SPDX-License-Identifier: Apache-2.0
"""The mounts that put the simulated parts of /sys and /proc over a node's own.

A tmpfs covers /sys/class, /sys/module, /sys/devices/system/cpu and the PCI bus directories of the node, with
links to everything that was there. That works where /sys is mounted read-only, as in a container.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from .paths import Paths
from .state import Node, StateError

CPUS = "devices/system/cpu"
HUGE_PAGES = "kernel/mm/transparent_hugepage"


def link(path: Path, target: Path | None) -> None:
    """Make `path` a link to target, or remove it. Never follows it: that could wait for ourselves."""
    if os.path.lexists(path):
        if target is not None and os.path.islink(path) and os.readlink(path) == str(target):
            return
        path.unlink()
    if target is not None:
        path.symlink_to(target)


def covered(paths: Paths) -> bool:
    """Whether parts of /sys are ours."""
    return (paths.original / "class").is_dir()


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StateError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def _cover(paths: Paths, name: str) -> None:
    """A tmpfs over /sys/<name> with all that was there: links stay links, directories become links."""
    target, original = paths.sys / name, paths.original / name
    run("mount", "-t", "tmpfs", "-o", "mode=755,size=4m", "gpusim", str(target))
    for entry in sorted(os.listdir(original)):
        source = original / entry
        (target / entry).symlink_to(os.readlink(source) if source.is_symlink() else source)


def _cover_cpus(paths: Paths, count: int) -> None:
    """The settings of the CPUs that are simulated; all else of them stays."""
    _cover(paths, CPUS)
    for name in (f"cpu{index}" for index in range(count)):
        own, original = paths.sys / CPUS / name, paths.original / CPUS / name
        if not original.is_dir():
            continue
        own.unlink()
        own.mkdir()
        ours = {entry: paths.tree / CPUS / name / entry for entry in ("cpufreq", "cpuidle")}
        theirs = {entry: original / entry for entry in os.listdir(original)}
        for entry, target in (theirs | ours).items():
            (own / entry).symlink_to(target)


def cover(paths: Paths, node: Node) -> None:
    """Cover the simulated parts of /sys, of which the tree has to be there already.

    In a scratch root, /sys is a link to the simulated one.
    """
    if paths.scratch:
        link(paths.sys, paths.tree)
        return
    if covered(paths):
        return
    paths.original.mkdir(parents=True, exist_ok=True)
    run("mount", "--bind", str(paths.sys), str(paths.original))
    for name in ("class", "module"):
        _cover(paths, name)
    if (paths.sys / "bus/pci/devices").is_dir():
        for name in ("bus/pci/devices", "bus/pci/drivers"):
            _cover(paths, name)
    else:
        _cover(paths, "bus")
        for name in ("devices", "drivers"):
            (paths.sys / "bus/pci" / name).mkdir(parents=True)
    _cover_cpus(paths, len(node.host.cpus))
    if (paths.sys / HUGE_PAGES).is_dir():
        run("mount", "--bind", str(paths.tree / HUGE_PAGES), str(paths.sys / HUGE_PAGES))


def uncover(paths: Paths) -> None:
    """Undo the mounts, as far as they were made."""
    ours = [paths.tree, paths.files, paths.fuse]
    if not paths.scratch:
        names = (HUGE_PAGES, CPUS, "bus/pci/drivers", "bus/pci/devices", "bus", "module", "class")
        ours = [*(paths.sys / name for name in names), paths.original, Path("/proc/cpuinfo"), *ours]
    elif paths.sys.is_symlink():
        paths.sys.unlink()
    for path in ours:
        subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)
    paths.cpuinfo.unlink(missing_ok=True)
