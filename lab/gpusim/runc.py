# SPDX-License-Identifier: Apache-2.0
"""Run runc so that a container with GPU devices has them open, as a process that uses GPUs has.

It precedes runc in a node's PATH. The engines of the lab never open /dev/kfd themselves; here the first process of
their container inherits it, so that /proc/*/fd shows who holds the GPUs. Such a container also sees the node's
simulated /sys/class, as it would see a real one. A container's CPUs are numbered as in the simulated server; the kernel
knows only those of the machine below, so they are mapped. Started as a program.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Sequence

RUNC = "/usr/sbin/runc"
FIRST = 3  # runc passes on file descriptors from here
SEEN = ("/run/gpusim", "/sys/class")  # the second has links into the first


def devices(config: str) -> list[str]:
    """Return the GPU devices in a container's config.json, /dev/kfd first; none without it."""
    with open(config, encoding="utf-8") as f:
        given = [entry["path"] for entry in json.load(f).get("linux", {}).get("devices", [])]
    if "/dev/kfd" not in given:
        return []
    return ["/dev/kfd", *sorted(path for path in given if path.startswith("/dev/dri/renderD"))]


def show(config: str, places: Sequence[str] = SEEN) -> None:
    """Mount the node's directories into the container of a config.json, read-only."""
    with open(config, encoding="utf-8") as f:
        data = json.load(f)
    mounts = [
        {"destination": place, "source": place, "type": "bind", "options": ["rbind", "ro", "rslave"]}
        for place in places
        if os.path.isdir(place)
    ]
    data["mounts"] = [*data.get("mounts", []), *mounts]
    with open(config, "w", encoding="utf-8") as f:
        json.dump(data, f)


def lay(cpus: str, real: Sequence[int]) -> str:
    """Map a list of the server's CPUs, such as 0-3,96, to the machine's: one after another, wrapping around."""
    found = set()
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        found |= {real[cpu % len(real)] for cpu in range(int(first), int(last or first) + 1)}
    return ",".join(map(str, sorted(found)))


def pin(config: str, real: Sequence[int]) -> None:
    """Map the CPUs in a container's config.json to the machine's, and allow all of its memory."""
    with open(config, encoding="utf-8") as f:
        data = json.load(f)
    cpu = data.get("linux", {}).get("resources", {}).get("cpu", {})
    if not cpu.get("cpus") and not cpu.get("mems"):
        return
    cpu.pop("mems", None)
    if cpu.get("cpus"):
        cpu["cpus"] = lay(cpu["cpus"], real)
    with open(config, "w", encoding="utf-8") as f:
        json.dump(data, f)


def arguments(argv: Sequence[str], count: int) -> list[str]:
    """Return the command line that hands `count` open files to the container; argv is without the program."""
    position = next(i for i, word in enumerate(argv) if word in ("create", "run"))
    return [*argv[: position + 1], f"--preserve-fds={count}", *argv[position + 1 :]]


def bundle(argv: Sequence[str]) -> str:
    """Return the container's directory: --bundle DIR, -b DIR, or the working directory."""
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if word in ("--bundle", "-b"):
            return following
        if word.startswith("--bundle="):
            return word.partition("=")[2]
    return "."


def main(argv: Sequence[str]) -> None:
    """Open the container's devices, and become runc."""
    held = []
    config = f"{bundle(argv)}/config.json"
    try:
        pin(config, sorted(os.sched_getaffinity(0)))
        given = devices(config)
        if given:
            show(config)
        for path in given:
            opened = os.open(path, os.O_RDWR)
            held.append(fcntl.fcntl(opened, fcntl.F_DUPFD, 200))
            os.close(opened)
    except OSError:
        held = []  # runc itself will report the error
    for number, descriptor in enumerate(held, FIRST):
        os.dup2(descriptor, number)  # inheritable
        os.close(descriptor)
    os.execv(RUNC, ["runc", *(arguments(argv, len(held)) if held else argv)])


if __name__ == "__main__":
    main(sys.argv[1:])
