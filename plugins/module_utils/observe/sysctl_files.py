# SPDX-License-Identifier: Apache-2.0
"""The files that set sysctls at boot, and their effect on automatic NUMA balancing."""

from __future__ import annotations

from .source import Source, integer

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any
SYSCTL_DIRS = tuple(f"{top}/sysctl.d" for top in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib"))


def sysctl_settings(source: Source, key: str) -> list[tuple[str, int, str]]:
    """Return (file, line number, value) of every setting of `key`, in the order in which a boot applies them.

    The rule is that of sysctl --system and systemd-sysctl: files of all directories are sorted by name, and of equal
    names only the first directory's file counts. /etc/sysctl.conf comes last, and the last setting wins.
    """
    files: dict[str, str] = {}
    for directory in SYSCTL_DIRS:
        for name in source.names(directory):
            if name.endswith(".conf"):
                files.setdefault(name, f"{directory}/{name}")
    found: list[tuple[str, int, str]] = []
    for path in [*(files[name] for name in sorted(files)), "/etc/sysctl.conf"]:
        for number, line in enumerate((source.text(path) or "").splitlines(), 1):
            value = sysctl_value(line, key)
            if value is not None:
                found.append((path, number, value))
    return found


def sysctl_value(line: str, key: str) -> str | None:
    """Return the value that a line of a sysctl file gives to `key`, or None."""
    name, equals, value = line.strip().partition("=")
    if not equals or name.startswith(("#", ";")):
        return None
    return value.strip() if name.lstrip("-").strip().replace("/", ".") == key else None


def read_numa_balancing(source: Source, cmdline: list[str]) -> dict[str, Any]:
    """Return automatic NUMA balancing now and after the next boot."""
    settings = sysctl_settings(source, "kernel.numa_balancing")
    persisted: int | None = None
    path: str | None = None
    if settings:
        path, persisted = settings[-1][0], integer(settings[-1][2])
    elif "numa_balancing=disable" in cmdline:
        path, persisted = "/proc/cmdline", 0
    return {"runtime": source.number("/proc/sys/kernel/numa_balancing"), "persisted": persisted, "file": path}
