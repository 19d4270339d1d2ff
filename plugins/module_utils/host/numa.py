# SPDX-License-Identifier: Apache-2.0
"""Decide how to keep automatic NUMA balancing on or off, now and after the next boot. Pure functions.

AMD's guides recommend turning it off on GPU hosts: the kernel unmaps pages to sample accesses, which disturbs GPU
memory access and makes RCCL's performance vary (RCCL warns about it at startup).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..observe.sysctl import Edit, Setting, keep

KEY = "kernel.numa_balancing"
RUNTIME = "/proc/sys/kernel/numa_balancing"


@dataclass(frozen=True)
class Change:
    """The change: files to write, then the value for the running kernel, if any.

    `file` decides at boot once the edits are made.
    """

    runtime: str | None
    edits: tuple[Edit, ...] = ()
    file: str | None = None

    @property
    def actions(self) -> tuple[str, ...]:
        """Return what is written, in order."""
        now = (f"write {self.runtime} > {RUNTIME}",) if self.runtime is not None else ()
        return tuple(edit.text for edit in self.edits) + now


def is_on(value: str) -> bool | None:
    """Return whether a value of the key means on (1, or 2 for memory tiering); None if it is not a number."""
    return int(value) != 0 if value.isdigit() else None


def plan(
    state: Mapping[str, Any],
    settings: Sequence[Setting],
    files: Mapping[str, str],
    *,
    enabled: bool,
    persist: bool,
    sysctl_file: str,
) -> Change:
    """Return the change needed. Raise SysctlError if a file that this toolkit must not edit would undo it at boot.

    `state` is node_state's numa_balancing; settings and files are those of sysctl.keep.
    """
    if state["runtime"] is None:  # a kernel without the feature: it can never be on
        return Change(None)
    value = "1" if enabled else "0"
    runtime = value if (state["runtime"] != 0) != enabled else None
    # If no file sets a value for the next boot, the kernel will repeat what it does by itself now.
    lasting = enabled and not runtime if state["persisted"] is None else (state["persisted"] != 0) == enabled
    if not persist or lasting:
        return Change(runtime)
    edits, file = keep(KEY, value, settings, files, sysctl_file, lambda other: is_on(other) == enabled)
    return Change(runtime, edits, file)
