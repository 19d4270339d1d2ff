# SPDX-License-Identifier: Apache-2.0
"""The processes that hold the GPUs, found in /proc, and the VRAM that they are assumed to use.

A process holds the GPUs if it has /dev/kfd or a render node open. A container that was given /dev/kfd counts too, as
one process with VRAM in use: the engines of the lab run on the CPU, but on a real node they would open it (runc.py
opens it for them). The toolkit's supervisor in the container does not count: it never opens the devices, and starts the
engine that does. A container is recognised by another mount namespace with a dev/kfd in it; that needs no container
engine and finds podman's too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ..machine.models import MIB
from ..machine.state import Holder, Node
from ..machine.topology import Partition

CONTAINER_SHARE = 0.9  # of each usable partition, like vLLM's --gpu-memory-utilization
_INITS = {"docker-init", "tini", "dumb-init", "catatonit"}
_SHELLS = {"bash", "sh"}


def _minor(name: str) -> int | None:
    """Return 129 for dri/renderD129, None for anything else."""
    number = name.removeprefix("dri/renderD")
    return int(number) if number != name and number.isdigit() else None


def _opened(process: Path, dev: str) -> tuple[bool, tuple[int, ...]]:
    """Return (has /dev/kfd open, render minors open) for a /proc/PID."""
    kfd, minors = False, set()
    try:
        entries = os.listdir(process / "fd")
    except OSError:
        return False, ()
    for entry in entries:
        try:
            target = os.readlink(process / "fd" / entry)
        except OSError:
            continue
        name = target.removeprefix(f"{dev}/")
        kfd = kfd or (name == "kfd" and name != target)
        minor = _minor(name)
        if minor is not None:
            minors.add(minor)
    return kfd, tuple(sorted(minors))


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "N/A"


def _supervises(process: Path) -> bool:
    """Return whether it is the toolkit's supervisor, or the script that becomes it."""
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        return bool({b"/instinct-lib/supervise.py", b"/instinct/serve.sh"} & set(words))
    except OSError:
        return False


def _namespace(process: Path) -> str:
    try:
        return os.readlink(process / "ns" / "mnt")
    except OSError:
        return ""


def _container_minors(process: Path) -> tuple[int, ...] | None:
    """Return the render minors in a container's /dev/dri; None if it has no /dev/kfd."""
    dev = process / "root" / "dev"
    try:
        os.lstat(dev / "kfd")
    except OSError:
        return None
    try:
        names = os.listdir(dev / "dri")
    except OSError:
        names = []
    found = (_minor(f"dri/{name}") for name in names)
    return tuple(sorted(minor for minor in found if minor is not None))


def scan(
    proc: Path = Path("/proc"), own: str | None = None, dev: str = "/dev", containers_too: bool = True
) -> list[Holder]:
    """Return the holders in /proc, by pid.

    `own`: the mount namespace that is not a container (default: this process's). `dev`: the directory of this node's
    device nodes. Without `containers_too`, only processes count that have one of these devices open.
    """
    own = own if own is not None else _namespace(proc / "self")
    found: dict[int, Holder] = {}
    containers: dict[str, list[int]] = {}
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        process = proc / str(pid)
        kfd, minors = _opened(process, dev)
        if kfd or minors:
            found[pid] = Holder(pid, _name(process), minors, kfd)
        namespace = _namespace(process)
        if containers_too and namespace and namespace != own:
            containers.setdefault(namespace, []).append(pid)
    for pids in containers.values():
        given = _container_minors(proc / str(pids[0]))
        if given is None:
            continue
        names = {pid: _name(proc / str(pid)) for pid in pids}
        # The oldest process of the actual workload: not the container's init, nor a shell or a supervisor around it.
        around = {p for p in pids if _supervises(proc / str(p))}
        inner = [p for p in pids if names[p] not in _INITS and p not in around] or [*set(pids) - around]
        if around and all(names[p] in _INITS for p in inner):
            inner = []
        for init in set(pids) - set(inner):  # has the devices open only to hand them on (runc.py)
            found.pop(init, None)
        if not inner:
            continue
        pid = next((p for p in inner if names[p] not in _SHELLS), inner[0])
        found[pid] = Holder(pid, names[pid], given, True, vram=None)
    return [found[pid] for pid in sorted(found)]


def exported(kfd_proc: Path, parts: Sequence[Partition], proc: Path = Path("/proc")) -> list[Holder]:
    """Return the holders in the simulated /sys/class/kfd/kfd/proc, for callers that may not scan /proc."""
    try:
        pids = sorted(int(name) for name in os.listdir(kfd_proc) if name.isdigit())
    except OSError:
        return []
    found = []
    for pid in pids:
        sizes = {}
        for part in parts:
            try:
                sizes[part.render] = int((kfd_proc / str(pid) / f"vram_{part.gpu_id}").read_text())
            except (OSError, ValueError):
                continue
        found.append(Holder(pid, _name(proc / str(pid)), tuple(sizes), True, max(sizes.values(), default=0)))
    return found


class Scanner:
    """The holders of the devices, real and injected, scanned again if older than AGE seconds."""

    AGE = 0.2

    def __init__(
        self,
        scan: Callable[[], Sequence[Holder]],
        read: Callable[[], Node],
        alive: Callable[[Holder], bool] = lambda holder: True,
    ) -> None:
        self._scan = scan
        self._alive = alive
        self._read = read
        self._lock = threading.Lock()
        self._found: Sequence[Holder] = ()
        self._when = -1.0

    def __call__(self) -> list[Holder]:
        with self._lock:
            if self._when < 0 or time.monotonic() - self._when > self.AGE:
                self._found, self._when = self._scan(), time.monotonic()
            return [*filter(self._alive, self._found), *self._read().holders]

    def fresh(self) -> list[Holder]:
        """Scan now, whatever the age."""
        with self._lock:
            self._when = -1.0
        return self()


def uses(holder: Holder, part: Partition) -> bool:
    """Return whether a holder can use this logical GPU; a holder without render nodes can use all."""
    return not holder.minors or part.render in holder.minors


def vram_of(holder: Holder, part: Partition) -> int:
    """Return the bytes of a partition's VRAM that a holder uses."""
    if not uses(holder, part):
        return 0
    return int(part.memory * CONTAINER_SHARE) if holder.vram is None else holder.vram


def vram_used(node: Node, holders: Sequence[Holder], parts: Iterable[Partition], gpu: int) -> int:
    """Return the bytes in use on a whole GPU: idle use, stranded memory, and its partitions' holders."""
    own = [p for p in parts if p.gpu == gpu]
    used = sum(min(p.memory, sum(vram_of(h, p) for h in holders)) for p in own)
    return min(node.spec.vram, node.gpus[gpu].used_mib * MIB + node.gpus[gpu].stranded + used)
