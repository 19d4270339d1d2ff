# SPDX-License-Identifier: Apache-2.0
"""The journal of a partition change, on the node: the facts with which a run continues after a crash.

It exists from before the first change until the node is consistent again, so its mere existence means that a change is
in progress or was interrupted. Every step is on disk before it begins. Its disk space is reserved before anything is
stopped: it is written in place to files of its full size, which take its name in turn, so that a disk that fills up in
the meantime does not prevent a run from continuing, and a crash leaves one of the two intact.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..common.files import read_text, sync_directory
from .gpus import PartitionError
from .holders import Service

SCHEMA = 1
SIZE = 32768
"""Bytes of the journal, blanks included; one with a hundred services takes a third of that."""
NEXT, LAST = ".next", ".last"
STEPS = ("drain", "wait", "set", "verify", "restore", "undo")
ABOUT = (
    "A change of this node's GPU partition modes that is in progress or was interrupted. playbooks/partition.yml "
    "finishes it; the module rocm_partition without compute and memory undoes it. `before`: the earlier modes, by "
    "PCI address; `stopped`: services that were stopped for it and must be started again."
)


@dataclass(frozen=True)
class Journal:
    """A change in progress. Compute modes by PCI address; `memory`: the node's mode, None if it has none."""

    step: str
    started: str
    before_memory: str | None
    before_compute: Mapping[str, str]
    wanted_memory: str | None
    wanted_compute: Mapping[str, str]
    stopped: tuple[Service, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the journal as it is written, readable for operators as well."""
        return {
            "schema": SCHEMA,
            "about": ABOUT,
            "started": self.started,
            "step": self.step,
            "before": {"memory": self.before_memory, "compute": dict(self.before_compute)},
            "wanted": {"memory": self.wanted_memory, "compute": dict(self.wanted_compute)},
            "stopped": [
                {"kind": item.kind, "name": item.name, "seconds": item.seconds} for item in self.stopped
            ],
        }


def parse_journal(text: str) -> Journal:
    """Parse a journal. Raise ValueError for any other text."""
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA or data["step"] not in STEPS:
            raise ValueError(f"schema {data['schema']}, step {data['step']}")
        before, wanted = data["before"], data["wanted"]
        return Journal(
            step=data["step"],
            started=str(data["started"]),
            before_memory=_mode(before["memory"]),
            before_compute=_modes(before["compute"]),
            wanted_memory=_mode(wanted["memory"]),
            wanted_compute=_modes(wanted["compute"]),
            stopped=tuple(_service(item) for item in data["stopped"]),
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _mode(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"not a mode: {value!r}")
    return value


def _modes(value: Any) -> dict[str, str]:
    if any(not isinstance(item, str) for item in value.values()):
        raise ValueError(f"not modes: {value!r}")
    return dict(value)


def _service(item: Any) -> Service:
    if item["kind"] not in ("instance", "container", "unit"):
        raise ValueError(f"not a kind of service: {item['kind']!r}")
    return Service(item["kind"], str(item["name"]), int(item["seconds"]))


def load(path: str) -> Journal | None:
    """Return the journal of an interrupted change, None if there is none. Raise PartitionError if it is unreadable."""
    text = read_text(path)
    if text is None:
        return None
    try:
        return parse_journal(text)
    except ValueError as error:
        raise PartitionError(
            f"{path} is the journal of an earlier change, and cannot be read ({error}). Compare the modes "
            "(rocm-smi or amd-smi) and the services with what they should be, remove the file, and run again."
        ) from None


def reserve(path: str) -> None:
    """Reserve the disk space that the journal of a change needs.

    Raise OSError, and leave nothing behind, without it.
    """
    directory = os.path.dirname(path)
    os.makedirs(directory, mode=0o755, exist_ok=True)
    release(path)
    try:
        for suffix in (NEXT, LAST):
            _write(path + suffix, os.O_CREAT | os.O_EXCL, b" " * SIZE)
        sync_directory(directory)
    except OSError:
        release(path)
        raise


def save(path: str, journal: Journal) -> None:
    """Write the journal; it is on disk when this returns. Raise OSError if it is not; the former one stays then."""
    text = (json.dumps(journal.to_json(), indent=2) + "\n").encode()
    _write(path + NEXT, os.O_CREAT, text.ljust(SIZE))
    with contextlib.suppress(FileNotFoundError, FileExistsError):  # the first one; there is another reserve
        os.link(path, path + LAST)
    os.replace(path + NEXT, path)
    with contextlib.suppress(FileNotFoundError):
        os.replace(path + LAST, path + NEXT)
    sync_directory(os.path.dirname(path))


def drop(path: str) -> None:
    """Remove the journal: the node is consistent. Raise OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    release(path)
    sync_directory(os.path.dirname(path))


def release(path: str) -> None:
    """Release the reserved disk space."""
    for suffix in (NEXT, LAST):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + suffix)


def _write(path: str, flags: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
