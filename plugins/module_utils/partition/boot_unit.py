# SPDX-License-Identifier: Apache-2.0
"""Keep partition modes over reboots: a record of them, a program that sets them again, and its systemd unit.

These exist only while the desired modes differ from the driver's defaults.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..common.files import make_private
from ..common.module_main import require_program
from ..common.paths import PARTITION_PROGRAM, PARTITION_RECORD
from .gpus import AUTO, PartitionedGpu
from .monitors import MONITOR_UNITS
from .record import DRIVER_SECONDS, Record

SERVICE = "instinct-partition.service"
UNIT = f"/etc/systemd/system/{SERVICE}"
LINK = f"/etc/systemd/system/multi-user.target.wants/{SERVICE}"
LIMIT = int(DRIVER_SECONDS) + 210
"""Seconds after which systemd starts Docker, whatever the outcome."""
UNIT_TEXT = """\
# Written by instinct-fleet.
[Unit]
Description=Partition modes of the GPUs, as instinct-fleet set them
After=local-fs.target systemd-modules-load.service systemd-udev-settle.service
Before=docker.service {monitors}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={python} {program}
TimeoutStartSec={limit}

[Install]
WantedBy=multi-user.target
"""


def record_of(gpus: tuple[PartitionedGpu, ...], compute: str | None, memory: str | None) -> Record | None:
    """Return the modes to keep: the requested or else the present ones; None if they are the driver's defaults."""
    modes = {gpu.bdf: compute or gpu.mode for gpu in gpus}
    known = {bdf: mode for bdf, mode in modes.items() if mode}
    memories = {memory or gpu.memory_mode for gpu in gpus}
    kept = memories.pop() if len(memories) == 1 else None
    own = kept in (None, "NPS1") and all(mode == AUTO["NPS1"] for mode in known.values())
    return None if own or not known else Record(kept, known)


def wanted(record: Record | None, python: str, program: bytes) -> dict[str, bytes]:
    """Return the files by their paths; none without a record."""
    if record is None:
        return {}
    require_program(program)  # an empty one would fail unnoticed at the next boot
    values = {"python": python, "program": PARTITION_PROGRAM, "limit": LIMIT}
    unit = UNIT_TEXT.format(monitors=" ".join(MONITOR_UNITS), **values)
    return {
        PARTITION_RECORD: record.to_text().encode(),
        PARTITION_PROGRAM: program,
        UNIT: unit.encode(),
    }


def converge(
    path: Callable[[str], str],
    record: Record | None,
    check: bool,
    run: Callable[[list[str]], Any],
    program: bytes,
    python: str = sys.executable,
) -> dict[str, Any]:
    """Write, link or remove the files that keep the modes; return changed, actions, diff. path: adds the root."""
    files = wanted(record, python, program)
    places = (UNIT, PARTITION_PROGRAM, PARTITION_RECORD)
    actions = [f"write {name}" for name, data in files.items() if _read(path(name)) != data]
    linked = os.path.lexists(path(LINK))
    diff = [
        _diff(name, _read(path(name)), files.get(name))
        for name in places
        if name.endswith((".json", ".service"))
    ]
    if files:
        actions += [] if linked else [f"link {LINK}"]
    else:
        gone = (LINK, *places)
        actions += [f"remove {name}" for name in gone if os.path.lexists(path(name))]
    if actions and not check:
        _apply(path, files)
        if os.path.isdir(path("/run/systemd/system")):
            run(["systemctl", "daemon-reload"])
    return {
        "changed": bool(actions),
        "actions": actions,
        "diff": [item for item in diff if item],
        "warnings": [],
    }


def follow(
    path: Callable[[str], str],
    gpus: tuple[PartitionedGpu, ...],
    run: Callable[[list[str]], Any],
    program: bytes,
) -> list[str]:
    """Update an existing record after a change of modes; return the actions."""
    if _read(path(PARTITION_RECORD)) is None:
        return []
    return list(converge(path, record_of(gpus, None, None), False, run, program)["actions"])


def _apply(path: Callable[[str], str], files: Mapping[str, bytes]) -> None:
    if not files:
        for name in (LINK, UNIT, PARTITION_PROGRAM, PARTITION_RECORD):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path(name))
        return
    make_private(os.path.dirname(path(PARTITION_PROGRAM)))
    for name, data in files.items():
        if _read(path(name)) != data:
            _write(path(name), data, 0o644 if name == UNIT else 0o600)
    if not os.path.lexists(path(LINK)):
        os.makedirs(os.path.dirname(path(LINK)), mode=0o755, exist_ok=True)
        os.symlink(UNIT, path(LINK))


def _read(name: str) -> bytes | None:
    try:
        with open(name, "rb") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def _write(name: str, data: bytes, mode: int) -> None:
    temporary = f"{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(temporary, mode)
    os.replace(temporary, name)


def _diff(name: str, before: bytes | None, after: bytes | None) -> dict[str, str] | None:
    if before == after:
        return None
    texts = {"before": (before or b"").decode("utf-8", "replace"), "after": (after or b"").decode()}
    return {**texts, "before_header": name, "after_header": name}
