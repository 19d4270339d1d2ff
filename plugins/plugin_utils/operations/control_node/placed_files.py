# SPDX-License-Identifier: Apache-2.0
"""Put the files of a bundle that belong to the control node into a directory there, each complete or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....module_utils.common.disk_space import human_size
from ....module_utils.common.errors import FleetError, Problem
from ...base.file_hash import file_hash
from ...base.node_answers import AnswerError, path_in, sha256_in, size_in


@dataclass(frozen=True)
class PlacedFile:
    """A file as the bundle has it: its path within the directory, its size in bytes, and its SHA-256 in hex digits."""

    path: str
    size: int
    sha256: str


Fetch = Callable[[PlacedFile, Path], None]
"""Copies a file's blob from the node to a path."""


def parse_files(data: Iterable[Mapping[str, Any]]) -> tuple[PlacedFile, ...]:
    """Return the files that a host named. Raise FleetError for a path that leads out of the directory."""
    try:
        return tuple(PlacedFile(path_in(item), size_in(item, "size"), sha256_in(item)) for item in data)
    except AnswerError as error:
        what = f"the bundle's list of files is not valid: {error}."
        raise FleetError([Problem(("bundle_files_dir",), what, "Make the bundle again.")]) from None


def refuse_full_disk(files: Iterable[PlacedFile], directory: Path) -> None:
    """Raise FleetError if the files do not fit on the directory's disk."""
    need = sum(item.size for item in files)
    place = next(step for step in (directory, *directory.parents) if step.is_dir())
    free = shutil.disk_usage(place).free
    if need > free:
        what = f"{place} has {human_size(free)} free, but the bundle's files need {human_size(need)}."
        raise FleetError([Problem(("bundle_files_dir",), what, "Make room, or choose another directory.")])


def changed_files(files: Iterable[PlacedFile], directory: Path) -> list[PlacedFile]:
    """Return the files that are not in the directory with their content.

    Raise FleetError where a link or a directory is in the way: nothing is removed, or written elsewhere.
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
            what = f"{wrong} is in the way of {item.path}: it is a link, or a file in place of a directory."
            raise FleetError(
                [Problem(("bundle_files_dir",), what, "Remove it, and run the same command again.")]
            )
        if not target.is_file() or target.stat().st_size != item.size or file_hash(target) != item.sha256:
            missing.append(item)
    return missing


def place_file(item: PlacedFile, directory: Path, fetch: Fetch) -> None:
    """Fetch a file under a temporary name, hash it, and rename it. Raise FleetError for wrong content."""
    target = directory / item.path
    part = target.with_name(f".{target.name[:100]}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fetch(item, part)
        if file_hash(part) != item.sha256:
            what = f"{item.path} arrived with other content than the bundle has, and was refused."
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
