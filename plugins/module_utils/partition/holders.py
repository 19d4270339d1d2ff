# SPDX-License-Identifier: Apache-2.0
"""The processes that hold the GPUs, and which of them may be stopped.

If a living process has opened /dev/kfd, even if it has closed it again, the driver refuses a change as busy. A process
with an open device below /dev/dri prevents unloading the driver.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ..observe.gpus import kfd_processes
from ..observe.source import Source, pairs
from .monitors import DISPLAY_MANAGER, DISPLAY_SERVERS, MONITOR_IMAGES, MONITOR_UNITS

INSTANCE_LABEL = "instinct-fleet.instance"
STOP_SECONDS = 60

_CONTAINER = re.compile(r"(?:^|[-/])([0-9a-f]{64})(?:\.scope)?$")
_DRI = re.compile(r"/dev/dri/(card|renderD)\d+")

Inspect = Callable[[str], Optional[Mapping[str, Any]]]
"""Returns Docker's description of a container by its id; None if there is no such container."""


@dataclass(frozen=True)
class Service:
    """A service that was stopped and must be started again. kind: instance, container (of a monitor) or unit.

    `seconds`: time from the request to stop until it is killed.
    """

    kind: str
    name: str
    seconds: int = field(default=STOP_SECONDS, compare=False)

    @property
    def text(self) -> str:
        """Return its name for messages and `actions`."""
        return self.name if self.kind == "unit" else f"container {self.name}"


@dataclass(frozen=True)
class GpuHolder:
    """A process that holds the GPUs, its unit or container, and the service that must be stopped to end it.

    `service` is None if this toolkit must not stop it. `zombie`: it has ended, but its parent has not collected it.
    """

    pid: int
    command: str
    container: str | None = None
    unit: str | None = None
    service: Service | None = None
    zombie: bool = False

    @property
    def name(self) -> str:
        """Return its name for messages."""
        text = f"pid {self.pid} {self.command}"
        if self.zombie:
            text += " (a zombie: its parent has to be stopped)"
        if self.container:
            return f"{text} in container {self.container}"
        return f"{text} of {self.unit}" if self.unit else text


def holders(source: Source, inspect: Inspect) -> list[GpuHolder]:
    """Return the processes that hold the GPUs, by pid, without this one."""
    own = set(_paths(source.text("/proc/self/cgroup") or ""))
    pids = set(kfd_processes(source)) | set(_openers(source))
    pids.discard(os.getpid())
    return [_holder(source, pid, own, inspect) for pid in sorted(pids)]


def _openers(source: Source) -> list[int]:
    """Return the processes with an open /dev/kfd or an open amdgpu device below /dev/dri."""
    found = []
    ours: dict[str, bool] = {"/dev/kfd": True}
    for name in source.names("/proc"):
        if not name.isdigit():
            continue
        directory = f"{source.root}/proc/{name}/fd"
        try:
            entries = os.listdir(directory)
        except OSError:  # it ended
            continue
        for entry in entries:
            try:
                target = os.readlink(f"{directory}/{entry}")
            except OSError:
                continue
            if target not in ours:
                ours[target] = bool(_DRI.fullmatch(target)) and _of_amdgpu(source, target)
            if ours[target]:
                found.append(int(name))
                break
    return found


def _of_amdgpu(source: Source, device: str) -> bool:
    """Return whether a device below /dev/dri is amdgpu's; a BMC's graphics has its own driver."""
    path = f"{source.root}/sys/class/drm/{os.path.basename(device)}/device"
    driver = os.path.basename(os.path.realpath(f"{path}/driver")) if os.path.exists(f"{path}/driver") else ""
    if not driver:  # partitions are platform devices without a driver link on some kernels
        driver = pairs(source.text(f"/sys/class/drm/{os.path.basename(device)}/device/uevent"), "=").get(
            "DRIVER", "amdgpu"
        )
    return driver.startswith("amdgpu")


def _holder(source: Source, pid: int, own: set[str], inspect: Inspect) -> GpuHolder:
    command, zombie = describe_process(source, pid)
    container, unit = owner_of(source.text(f"/proc/{pid}/cgroup") or "", own)
    if container is not None:
        details = inspect(container)
        name = str(details["Name"]).lstrip("/") if details else container[:12]
        return GpuHolder(
            pid, command, name, None, container_service(name, details) if details else None, zombie
        )
    program = source.text(f"/proc/{pid}/comm") or ""
    if program in DISPLAY_SERVERS:
        unit = DISPLAY_MANAGER
    service = Service("unit", unit) if unit in MONITOR_UNITS else None
    return GpuHolder(pid, command, None, unit, service, zombie)


def describe_process(source: Source, pid: int) -> tuple[str, bool]:
    """Return (a process's name, whether it is a zombie).

    Words after the first flag of its command line are not shown: they may be secrets.
    """
    words = (source.text(f"/proc/{pid}/cmdline") or "").split("\0")
    shown: list[str] = []
    for word in words[:3]:
        if word.startswith("-") or "=" in word:
            break
        shown.append(word)
    command = " ".join(shown).strip() or source.text(f"/proc/{pid}/comm") or "(ended)"
    # The program's name is in parentheses and may contain any character.
    state = (source.text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return command, state[:1] == ["Z"]


def _paths(text: str) -> list[str]:
    """Return a process's cgroups. Those of systemd's hierarchy come first, because they name container and unit."""
    lines = [line.split(":", 2) for line in text.splitlines()]
    rows = [row for row in lines if len(row) == 3]
    rows.sort(key=lambda row: row[1] not in ("", "name=systemd"))
    return [row[2] for row in rows]


def owner_of(text: str, own: set[str]) -> tuple[str | None, str | None]:
    """Return (container id, systemd unit) of a process: the innermost cgroup that is either.

    `own`: this process's cgroups. If the node itself is a container, they do not identify a process's service.
    """
    for path in _paths(text):
        for outer in sorted(own, key=len, reverse=True):
            if outer != "/" and (path == outer or path.startswith(outer + "/")):
                path = path[len(outer) :]  # noqa: PLW2901
                break
        for part in reversed(path.split("/")):
            container = _CONTAINER.search(part)
            if container:
                return container.group(1), None
            if part.endswith(".service"):
                return None, part
    return None, None


def container_service(name: str, details: Mapping[str, Any]) -> Service | None:
    """Return the service of a Docker container that is an instance or a known monitor, else None."""
    config = details.get("Config") or {}
    seconds = int(config.get("StopTimeout") or 0)
    if (config.get("Labels") or {}).get(INSTANCE_LABEL):
        return Service("instance", name, seconds or 120)
    image = str(config.get("Image") or "").partition("@")[0].rpartition("/")[2].partition(":")[0]
    return Service("container", name, seconds or STOP_SECONDS) if image in MONITOR_IMAGES else None


def services(found: Sequence[GpuHolder]) -> tuple[Service, ...]:
    """Return the services to stop so that these processes end: instances first, so that they finish their requests."""
    order = {"instance": 0, "container": 1, "unit": 2}
    unique = dict.fromkeys(holder.service for holder in found if holder.service)
    return tuple(sorted(unique, key=lambda service: order[service.kind]))


def unmanaged_holders(found: Sequence[GpuHolder]) -> list[GpuHolder]:
    """Return the processes that this toolkit must not stop."""
    return [holder for holder in found if holder.service is None]


def foreign_message(found: Sequence[GpuHolder]) -> str:
    """Say which processes are in the way, and the next step."""
    names = "; ".join(holder.name for holder in found)
    return f"These processes use the GPUs, and instinct-fleet does not stop them: {names}. Stop them and run again."


def busy_message(message: str, found: Sequence[GpuHolder], attempts: int) -> str:
    """Say which processes keep the GPUs busy, and the next step."""
    tries = f"after {attempts} attempts" if attempts > 1 else "at the only attempt"
    if found:
        names = "; ".join(holder.name for holder in found)
        return f"The GPUs are busy {tries} ({message}). They are held by {names}. Stop them and run again."
    return (
        f"The GPUs are busy {tries} ({message}), but no process holds /dev/kfd. The driver may still be "
        "cleaning up after one that ended: raise retries and timeout, or reload amdgpu."
    )
