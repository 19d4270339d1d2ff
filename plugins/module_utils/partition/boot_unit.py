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

from ..common.files import make_private, write_atomic
from ..common.module_main import require_program
from ..common.paths import PARTITION_LINK, PARTITION_PROGRAM, PARTITION_RECORD, PARTITION_UNIT
from .gpus import AUTO
from .monitors import MONITOR_UNITS
from .record import DRIVER_SECONDS, Record

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


def default(record: Record) -> bool:
    """Return whether the driver comes up in these modes by itself."""
    modes = record.compute.values()
    return record.memory in (None, "NPS1") and all(mode == AUTO["NPS1"] for mode in modes)


def unit_files(record: Record, python: str, program: bytes) -> dict[str, bytes]:
    """Return the files by their paths; none for the driver's defaults."""
    if default(record):
        return {}
    require_program(program)  # an empty one would fail unnoticed at the next boot
    values = {"python": python, "program": PARTITION_PROGRAM, "limit": LIMIT}
    unit = UNIT_TEXT.format(monitors=" ".join(MONITOR_UNITS), **values)
    return {
        PARTITION_RECORD: record.to_text().encode(),
        PARTITION_PROGRAM: program,
        PARTITION_UNIT: unit.encode(),
    }


def converge(
    path: Callable[[str], str],
    record: Record,
    check: bool,
    run: Callable[[list[str]], Any],
    program: bytes,
    python: str = sys.executable,
) -> dict[str, Any]:
    """Write, link or remove the files that keep the modes; return changed, actions, diff. path: adds the root."""
    files = unit_files(record, python, program)
    places = (PARTITION_UNIT, PARTITION_PROGRAM, PARTITION_RECORD)
    actions = [f"write {name}" for name, data in files.items() if _read(path(name)) != data]
    linked = os.path.lexists(path(PARTITION_LINK))
    diff = [
        _diff(name, _read(path(name)), files.get(name))
        for name in places
        if name.endswith((".json", ".service"))
    ]
    if files:
        actions += [] if linked else [f"link {PARTITION_LINK}"]
    else:
        gone = (PARTITION_LINK, *places)
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


def _apply(path: Callable[[str], str], files: Mapping[str, bytes]) -> None:
    if not files:
        for name in (PARTITION_LINK, PARTITION_UNIT, PARTITION_PROGRAM, PARTITION_RECORD):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path(name))
        return
    make_private(os.path.dirname(path(PARTITION_PROGRAM)))
    for name, data in files.items():
        if _read(path(name)) != data:
            write_atomic(path(name), data, 0o644 if name == PARTITION_UNIT else 0o600)
    if not os.path.lexists(path(PARTITION_LINK)):
        os.makedirs(os.path.dirname(path(PARTITION_LINK)), mode=0o755, exist_ok=True)
        os.symlink(PARTITION_UNIT, path(PARTITION_LINK))


def _read(name: str) -> bytes | None:
    try:
        with open(name, "rb") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def _diff(name: str, before: bytes | None, after: bytes | None) -> dict[str, str] | None:
    if before == after:
        return None
    texts = {"before": (before or b"").decode("utf-8", "replace"), "after": (after or b"").decode()}
    return {**texts, "before_header": name, "after_header": name}
