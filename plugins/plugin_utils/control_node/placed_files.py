# SPDX-License-Identifier: Apache-2.0
"""Put the files of a bundle that belong to the control node into a directory there, each whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...module_utils.common.errors import FleetError, Problem
from ..file_hash import file_hash

Fetch = Callable[[str, str], None]
"""Brings the blob of a SHA-256 from the node to a path."""
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class PlacedFile:
    """A file as the bundle has it: its path within the directory, its size in bytes, and its SHA-256 in hex digits."""

    path: str
    size: int
    sha256: str


def parse_files(data: Iterable[Mapping[str, Any]]) -> tuple[PlacedFile, ...]:
    """Return the files that a host named. Raise FleetError for a path that leads out of the directory."""
    found = tuple(PlacedFile(str(item["path"]), int(item["size"]), str(item["sha256"])) for item in data)
    for item in found:
        parts = item.path.split("/")
        if not {"", ".", ".."}.isdisjoint(parts) or "\0" in item.path or not _HEX.fullmatch(item.sha256):
            what = f"the bundle has a file {item.path!r}, which is no path within bundle_files_dir."
            raise FleetError([Problem(("bundle_files_dir",), what, "Make the bundle again.")])
    return found


def different(files: Iterable[PlacedFile], directory: Path) -> list[PlacedFile]:
    """Return the files that are not in the directory with their content.

    Raise FleetError where a link is in the way, or a directory: nothing is written elsewhere, or removed.
    """
    missing = []
    for item in files:
        target = directory / item.path
        steps = [target, *target.parents][: item.path.count("/") + 1]
        wrong = next(
            (
                step
                for step in steps
                if step.is_symlink() or (step.exists() and step.is_dir() is (step == target))
            ),
            None,
        )
        if wrong:
            what = f"{wrong} is in the way of {item.path}: it is a link, or a file for a directory."
            raise FleetError([Problem(("bundle_files_dir",), what, "Remove it, and run again.")])
        if not target.is_file() or target.stat().st_size != item.size or file_hash(target) != item.sha256:
            missing.append(item)
    return missing


def place(item: PlacedFile, directory: Path, fetch: Fetch) -> None:
    """Fetch a file beside its name, hash it, and give it its name. Raise FleetError for other content."""
    target = directory / item.path
    part = target.with_name(f".{target.name[:100]}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fetch(item.sha256, str(part))
        if file_hash(part) != item.sha256:
            what = f"{item.path} came with other content than the bundle's, and was refused."
            raise FleetError([Problem((), what, "Run bundle_load.yml again, which hashes the store.")])
        part.chmod(0o644)
        os.replace(part, target)
    except OSError as error:
        what = f"{target} cannot be written: {error.strerror}."
        raise FleetError(
            [Problem(("bundle_files_dir",), what, "Make room, or choose another directory.")]
        ) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
