# SPDX-License-Identifier: Apache-2.0
"""The node's kernel log as dmesg prints it: amdgpu's messages at load, later events, and faults."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from ..driver import faults
from ..machine.models import MIB
from ..machine.state import Node
from .smi import Terminal

ERROR, INFO = 3, 6
LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
_BAD = ("error", "fail", "timeout", "reset begin", "uncorrectable", "invalid")
_FIRST, _STEP = 21.0, 0.25  # seconds after the boot of the first line, and between lines


def lines(node: Node) -> list[tuple[int, str]]:
    """Return (level, text) of every line, oldest first."""
    found: list[str] = []
    if node.driver.loaded:
        found.append("[drm] amdgpu kernel modesetting enabled.")
        if node.driver.kind == "dkms":
            found.append(f"[drm] amdgpu version: {node.driver.version}")
        for k, gpu in enumerate(node.gpus):
            tag = f"amdgpu {gpu.bdf}: amdgpu:"
            found += [
                f"{tag} VRAM: {node.spec.vram // MIB}M",
                f"kfd kfd: amdgpu: added device 1002:{node.spec.device_id:04x}",
                f"[drm] Initialized amdgpu 3.60.0 for {gpu.bdf} on minor {8 * k}",
            ]
    found += node.log
    for k, gpu in enumerate(node.gpus):
        tag = f"amdgpu {gpu.bdf}: amdgpu:"
        if k in (faults.value(node, "kernel-error") or ()):
            found += [
                f"{tag} [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring comp_1.0.0 timeout",
                f"{tag} GPU reset begin!",
            ]
        if gpu.sensors.uncorrectable:
            count = gpu.sensors.uncorrectable
            found.append(f"{tag} {count} uncorrectable hardware errors detected in umc block")
    return [(ERROR if any(word in text.lower() for word in _BAD) else INFO, text) for text in found]


def _levels(argv: Sequence[str]) -> set[int] | None:
    """Return the levels selected by -l LIST, --level LIST or --level=LIST; None for all."""
    words = iter(argv)
    for word in words:
        chosen = next(words, "") if word in ("-l", "--level") else word.partition("--level=")[2]
        if chosen:
            return {LEVELS.index(name) for name in chosen.split(",") if name in LEVELS}
    return None


def dmesg(argv: Sequence[str], node: Node, euid: int, terminal: Terminal) -> int:
    """Run dmesg [-T] [-t] [-J] [-l LIST]; other options have no effect here."""
    if euid != 0:
        terminal.err.write("dmesg: read kernel buffer failed: Operation not permitted\n")
        return 1
    wanted = _levels(argv)
    flags = {letter for word in argv if word[:1] == "-" and word[:2] != "--" for letter in word[1:]}
    flags |= {{"--ctime": "T", "--notime": "t", "--json": "J"}.get(word, "") for word in argv}
    boot = time.time() - 3600
    shown = []
    for number, (level, text) in enumerate(lines(node)):
        if wanted is not None and level not in wanted:
            continue
        when = _FIRST + _STEP * number
        if "J" in flags:
            shown.append(json.dumps({"pri": level, "time": when, "msg": text}))
        elif "t" in flags:
            shown.append(text)
        else:
            stamp = time.ctime(boot + when) if "T" in flags else f"{when:12.6f}"
            shown.append(f"[{stamp}] {text}")
    if "J" in flags:
        terminal.print('{\n   "dmesg": [\n      ' + ",\n      ".join(shown) + "\n   ]\n}")
    elif shown:
        terminal.print("\n".join(shown))
    return 0
