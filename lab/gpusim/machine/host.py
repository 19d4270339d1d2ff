# SPDX-License-Identifier: Apache-2.0
"""A node's hardware and settings besides its GPUs: CPU governor, idle states, huge pages, RDMA NICs.

The defaults are those of a well-configured server: performance governor, C2 off, huge pages always, eight NICs up. A
write to sysfs changes them until the next boot; `config` also changes the values at boot.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .processors import EPYC, SOCKETS, Processor

HUGE_PAGES = {
    "enabled": ("always", "madvise", "never"),
    "defrag": ("always", "defer", "defer+madvise", "madvise", "never"),
}
NIC_BDFS = (
    "0000:0c:00.0", "0000:2a:00.0", "0000:4a:00.0", "0000:69:00.0",
    "0000:89:00.0", "0000:aa:00.0", "0000:ca:00.0", "0000:e9:00.0",
)  # fmt: skip


@dataclass(frozen=True)
class Cpu:
    """One CPU: its frequency governor, and the numbers of its disabled idle states."""

    governor: str = "performance"
    disabled: tuple[int, ...] = ()


@dataclass(frozen=True)
class Nic:
    """One RDMA NIC with one port. `rate` is Gb/s."""

    name: str
    bdf: str
    numa_node: int
    up: bool = True
    rate: int = 400
    firmware: str = "28.43.2026"


# As the drivers fill a RoCE port's table: per address first RoCE v1, then v2; link-local, then IPv4.
GID_TYPES = ("IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2")


def netdev(nic: Nic) -> str:
    """Return the name of the NIC's network interface."""
    return f"rdma{nic.name.removeprefix('mlx5_')}"


def gids(nic: Nic) -> tuple[str, ...]:
    """Return the port's addresses: each NIC has its subnet, and the number in the node's name is the host part."""
    number, rail = re.sub(r".*?(\d*)$", r"\1", os.uname().nodename), int(nic.name.removeprefix("mlx5_"))
    local = f"fe80:0000:0000:0000:0200:00ff:fe00:{rail:04x}"
    mapped = f"0000:0000:0000:0000:0000:ffff:c0a8:{rail + 100:02x}{int(number or 1) % 256:02x}"
    return (local, local, mapped, mapped)


def make_nics(count: int) -> tuple[Nic, ...]:
    """Return the NICs of a server with one per GPU."""
    return tuple(Nic(f"mlx5_{i}", NIC_BDFS[i], 0 if i < 4 else 1) for i in range(count))


def make_cpus(processor: Processor, count: int) -> tuple[Cpu, ...]:
    """Return the CPUs of a well-configured server."""
    return (Cpu(disabled=processor.off),) * count


@dataclass(frozen=True)
class Host:
    """Settings of the kernel and the NICs."""

    cpus: tuple[Cpu, ...] = field(default_factory=lambda: make_cpus(EPYC, SOCKETS * EPYC.cores))
    huge_pages: dict[str, str] = field(default_factory=lambda: {"enabled": "always", "defrag": "madvise"})
    nics: tuple[Nic, ...] = field(default_factory=lambda: make_nics(len(NIC_BDFS)))


# Each returns the host after a write, or an errno.
Written = tuple[Host, int]


def _with_cpu(host: Host, index: int, cpu: Cpu) -> Host:
    return replace(host, cpus=(*host.cpus[:index], cpu, *host.cpus[index + 1 :]))


def set_governor(host: Host, index: int, text: str, governors: Sequence[str]) -> Written:
    """Write scaling_governor: EINVAL for a governor that the driver does not have."""
    if text not in governors:
        return host, errno.EINVAL
    return _with_cpu(host, index, replace(host.cpus[index], governor=text)), 0


def set_idle(host: Host, index: int, state: int, text: str) -> Written:
    """Write cpuidle/stateN/disable: 0 or 1, else EINVAL."""
    if text not in ("0", "1"):
        return host, errno.EINVAL
    cpu = host.cpus[index]
    disabled = set(cpu.disabled) - {state} | ({state} if text == "1" else set())
    return _with_cpu(host, index, replace(cpu, disabled=tuple(sorted(disabled)))), 0


def set_huge_pages(host: Host, name: str, text: str) -> Written:
    """Write transparent_hugepage/enabled or defrag: EINVAL for an unknown word."""
    if text not in HUGE_PAGES[name]:
        return host, errno.EINVAL
    return replace(host, huge_pages={**host.huge_pages, name: text}), 0


def chosen(host: Host, name: str) -> str:
    """Return the choices with the active one in brackets, as the kernel does: always [madvise] never."""
    return " ".join(f"[{w}]" if w == host.huge_pages[name] else w for w in HUGE_PAGES[name])
