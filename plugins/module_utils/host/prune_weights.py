# SPDX-License-Identifier: Apache-2.0
"""Weights in the caches: what a commit takes that no other one has, and its removal."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator

from ..content.prune import FoundWeights
from ..disk.beneath import directory_below, names_below
from ..disk.hub_files import MARKERS, HubRepository, is_blob
from ..disk.untrusted_tree import walk

REMOVING = ".removing"  # the marker of weights whose removal has begun
_COMMIT = re.compile(r"[0-9a-f]{40}")


def found_weights(cache_dir: str) -> Iterator[FoundWeights]:
    """Yield the commits with the toolkit's marker; what another tool put into the cache has none."""
    for name in names_below(cache_dir, "hub"):
        repository = HubRepository(cache_dir, name)
        markers = repository.names(MARKERS) if name.startswith("models--") else ()
        kinds = [os.path.splitext(marker) for marker in markers]
        for commit in sorted({commit for commit, kind in kinds if kind in (".json", REMOVING)}):
            if _COMMIT.fullmatch(commit):
                size = sum(repository.size(path) or 0 for path in _own_files(repository, commit))
                repo = name[len("models--") :].replace("--", "/")
                yield FoundWeights(cache_dir, repo, commit, size)


def remove_weights(repository: HubRepository, commit: str) -> None:
    """Remove a commit. Its links go after the blobs, and its mark last, so that another run can finish this.

    From the first step on the weights count as incomplete.
    """
    with directory_below(repository.cache_dir, f"{repository.place}/{MARKERS}") as inside:
        with contextlib.suppress(FileNotFoundError):  # an earlier run came that far
            os.replace(f"{commit}.json", f"{commit}{REMOVING}", src_dir_fd=inside, dst_dir_fd=inside)
        os.fsync(inside)
    for path in _files(repository, "refs"):
        if (repository.read(path) or "").strip() == commit:
            repository.remove(path)
    for path in _own_files(repository, commit):
        repository.remove(path)
    repository.remove(f"snapshots/{commit}")
    repository.remove(f"{MARKERS}/{commit}{REMOVING}")


def _own_files(repository: HubRepository, commit: str) -> set[str]:
    """Return the files behind a commit's links that no other commit has."""
    others = (name for name in repository.names("snapshots") if name != commit)
    shared = {path for name in others for path in _contents(repository, name)}
    return set(_contents(repository, commit)) - shared


def _contents(repository: HubRepository, commit: str) -> Iterator[str]:
    """Yield the blobs of a commit, and its files that are not links; leave out links that lead elsewhere."""
    top = f"snapshots/{commit}"
    with contextlib.suppress(FileNotFoundError):
        for entry in walk(repository.cache_dir, f"{repository.place}/{top}"):
            path = f"{top}/{entry.path}"
            if entry.is_kind(stat.S_IFREG):
                yield path
            elif entry.is_kind(stat.S_IFLNK) and is_blob(path, entry.link()):
                yield os.path.normpath(os.path.join(os.path.dirname(path), entry.link()))


def _files(repository: HubRepository, top: str) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError):
        for entry in walk(repository.cache_dir, f"{repository.place}/{top}"):
            if entry.is_kind(stat.S_IFREG):
                yield f"{top}/{entry.path}"
