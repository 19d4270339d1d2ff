# SPDX-License-Identifier: Apache-2.0
"""Put the simulated GPUs into a node: device nodes and links, in line with the state.

If /sys is covered (mounts.py), it has links to the simulated tree for kfd, drm and amdgpu. The tree is plain files,
read-only, with links to a served file system for live entries (fs.py). A process that changes the state updates device
nodes, links and files before the change returns, so that it is visible at once.

/dev/dri shows the render nodes of the partitions that exist in the present mode. The real driver registers all eight
per GPU in any mode and lets open() of an idle one fail with ENOENT; a plain device node cannot do that, but a missing
one fails in the same way. The fault `all-render-nodes` shows the idle ones too (as 226:N without a driver, so that
opening them fails).
"""

from __future__ import annotations

import contextlib
import grp
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .driver import faults, holders
from .files.mounts import covered, link
from .files.proc_files import cpuinfo, meminfo
from .machine.host import NIC_BDFS
from .machine.paths import CONTROL, Paths
from .machine.state import APU_BDFS, BDFS, Holder, Node, StateError
from .machine.store import FileStore
from .machine.topology import drm_devices, partitions
from .tools import rocm_smi

NULL = os.makedev(1, 3)
DRM_MAJOR = 226
OUR_DEVICES = ("kfd", "dri/renderD*", "infiniband/*")


def wanted_devices(node: Node) -> dict[str, int]:
    """Return the device nodes below /dev for this state: name to device number."""
    found = {f"infiniband/uverbs{number}": NULL for number in range(len(node.host.nics))}
    if found:
        found["infiniband/rdma_cm"] = NULL
    if not node.driver.loaded:
        return found
    found["kfd"] = NULL
    if faults.value(node, "all-render-nodes"):
        found |= {f"dri/renderD{d.render}": os.makedev(DRM_MAJOR, d.render) for d in drm_devices(node)}
    return found | {f"dri/renderD{p.render}": NULL for p in partitions(node)}


def _group() -> int:
    for name in ("render", "video"):
        with contextlib.suppress(KeyError):
            return grp.getgrnam(name).gr_gid
    return 0


def sync_devices(dev: Path, node: Node) -> None:
    """Create and remove device nodes; correct ones stay untouched, because they may be open."""
    wanted = wanted_devices(node)
    present = {str(path.relative_to(dev)) for ours in OUR_DEVICES for path in dev.glob(ours)}
    for name in present - set(wanted):
        (dev / name).unlink()
    for name in {"dri", *(os.path.dirname(name) for name in wanted)}:
        (dev / name).mkdir(parents=True, exist_ok=True)
    for name, number in wanted.items():
        path = dev / name
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            if stat.S_ISCHR(found.st_mode) and found.st_rdev == number:
                continue
            path.unlink()
        os.mknod(path, stat.S_IFCHR | 0o660, number)
        os.chmod(path, 0o660)
        os.chown(path, 0, _group())


def sync_sysfs(paths: Paths, node: Node) -> None:
    """Link the covered parts of /sys to the simulated entries that exist now."""
    loaded = node.driver.loaded
    for name in ("class/kfd", "class/drm", "module/amdgpu", "bus/pci/drivers/amdgpu"):
        link(paths.sys / name, paths.tree / name if loaded else None)
    for name in ("class/dmi", "class/iommu"):
        link(paths.sys / name, paths.tree / name)
    link(paths.sys / "module/ast", paths.tree / "module/ast" if node.ast else None)
    link(paths.sys / "class/infiniband", paths.tree / "class/infiniband" if node.host.nics else None)
    devices = {gpu.bdf for gpu in node.gpus} | {nic.bdf for nic in node.host.nics}
    for bdf in {*BDFS, *APU_BDFS, *NIC_BDFS, *devices}:
        name = f"bus/pci/devices/{bdf}"
        link(paths.sys / name, paths.tree / name if bdf in devices else None)


def sync_release(paths: Paths, node: Node) -> None:
    """Write the ROCm release to /opt/rocm/.info/version, if there is an /opt/rocm."""
    if not paths.rocm_info.parent.is_dir():
        return
    paths.rocm_info.mkdir(exist_ok=True)
    text = f"{node.release}\n"
    version = paths.rocm_info / "version"
    if not version.exists() or version.read_text() != text:
        version.write_text(text)


def sync_tools(paths: Paths, node: Node) -> None:
    """Hide the tools that this release does not have or that a fault removes, if they exist."""
    for name in ("rocm-smi", "amd-smi"):
        shown, hidden = paths.rocm_bin / name, paths.rocm_bin / f".{name}"
        missing = faults.tool_state(node, name) == "missing" or (
            name == "rocm-smi" and not rocm_smi.installed(node)
        )
        if missing and shown.exists():
            shown.rename(hidden)
        elif not missing and hidden.exists():
            hidden.rename(shown)


def shown_files(node: Node) -> dict[str, str]:
    """Return the texts of single files that replace the machine's: of /proc, and the CPUs and memory for Docker."""
    nodes = "0" if node.cpu_nodes == 1 else f"0-{node.cpu_nodes - 1}"
    return {
        "cpuinfo": cpuinfo(node),
        "meminfo": meminfo(node),
        "cpus": f"0-{node.layout.count - 1}\n",
        "mems": f"{nodes}\n",
    }


def sync_shown(paths: Paths, node: Node) -> None:
    """Write differing files in place, because they are bind-mounted. A scratch root has them in its /proc."""
    paths.shown.mkdir(parents=True, exist_ok=True)
    for name, content in shown_files(node).items():
        path = paths.shown / name
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
    if paths.scratch:
        paths.proc.mkdir(exist_ok=True)
        for name in ("cpuinfo", "meminfo"):
            link(paths.proc / name, paths.shown / name)


def sync(paths: Paths, node: Node) -> None:
    """Bring device nodes and links in line with the state. Needs root."""
    sync_devices(paths.dev, node)
    sync_shown(paths, node)
    if covered(paths):
        sync_sysfs(paths, node)
    sync_release(paths, node)
    sync_tools(paths, node)


def _changed_elsewhere(paths: Paths, node: Node) -> None:
    """Update the node after a change by a tool: device nodes here, mirrored files through the server, if it runs."""
    sync(paths, node)
    try:
        control = os.open(paths.fuse / CONTROL, os.O_WRONLY)
    except FileNotFoundError:
        return
    except OSError as e:
        raise StateError(f"the simulation's server is gone ({e.strerror}); start it again with serve") from e
    try:
        os.write(control, b"1")
    finally:
        os.close(control)


def finder(paths: Paths) -> Callable[[], list[Holder]]:
    """Return the function by which root finds the processes that hold the devices."""
    return partial(holders.scan, dev=str(paths.dev), containers_too=not paths.scratch)


def open_store(paths: Paths) -> FileStore:
    """Return the node's state; root's changes also update sysfs and the device nodes."""
    return FileStore(paths.state, partial(_changed_elsewhere, paths) if os.geteuid() == 0 else None)
