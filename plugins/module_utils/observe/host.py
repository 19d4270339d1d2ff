# SPDX-License-Identifier: Apache-2.0
"""The host's processors, memory, and groups of devices."""

from __future__ import annotations

import os

from .source import ABSENT, Source, integer, pairs

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any


def cpu_set(text: str | None) -> set[int]:
    """Return {0, 1, 2, 3, 8} for "0-3,8"."""
    found: set[int] = set()
    for part in (text or "").split(","):
        first, _unused, last = part.partition("-")
        if first.isdigit():
            found.update(range(int(first), int(last or first) + 1))
    return found


def read_cpu(source: Source, cpuinfo: dict[str, str]) -> dict[str, Any]:
    """Return model, sockets and threads. This reads one file per socket, not one per CPU."""
    top = "/sys/devices/system/cpu"
    online = cpu_set(source.text(f"{top}/online"))
    sockets, left = 0, set(online)
    while left:
        first = min(left)
        topology = f"{top}/cpu{first}/topology"
        names = ("package_cpus_list", "core_siblings_list")  # of newer and older kernels
        package = next((text for text in (source.text(f"{topology}/{name}") for name in names) if text), None)
        if package is None:
            break
        left -= cpu_set(package) | {first}
        sockets += 1
    return {"model": cpuinfo.get("model name"), "sockets": sockets or None, "threads": len(online) or None}


def kib(values: dict[str, str], key: str) -> int | None:
    """Return a field of a meminfo file in bytes."""
    words = values.get(key, "").split()
    number = integer(words[0]) if words else None
    return number * 1024 if number is not None else None


def read_numa_nodes(source: Source) -> list[dict[str, Any]]:
    """Return the NUMA nodes with their CPUs and memory."""
    top = "/sys/devices/system/node"
    found = []
    names = [name[4:] for name in source.names(top) if name.startswith("node")]
    for number in sorted(int(name) for name in names if name.isdigit()):
        meminfo = pairs(source.text(f"{top}/node{number}/meminfo"), ":")
        found.append({
            "id": number,
            "cpus": source.text(f"{top}/node{number}/cpulist"),
            "memory_bytes": kib(meminfo, f"Node {number} MemTotal"),
        })  # fmt: skip
    return found


def read_device_gids(source: Source) -> dict[str, int | None]:
    """Return the groups that a container needs, by number: inside an image, the names mean other groups."""
    groups = [line.split(":") for line in (source.text("/etc/group") or "").splitlines()]
    gids: dict[str, int | None] = {"kfd": None, "render": None, "video": None}
    gids.update({group[0]: integer(group[2]) for group in groups if len(group) > 2 and group[0] in gids})
    paths = {"kfd": "/dev/kfd"}
    for name in source.names("/dev/dri"):
        if name.startswith(("renderD", "card")):
            paths.setdefault("render" if name.startswith("renderD") else "video", f"/dev/dri/{name}")
    for kind, path in paths.items():
        try:
            gids[kind] = os.stat(source.root + path).st_gid
        except OSError as error:
            if error.errno not in ABSENT:
                source.problem(path, error)
    return gids
