# SPDX-License-Identifier: Apache-2.0
"""What else the Hugging Face cache has of a snapshot: unfinished files, the marker of a complete one, names, modes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence

from ..common.module_main import NodeError
from ..disk.beneath import directory_below
from ..disk.hub_files import is_blob
from ..disk.untrusted_tree import TreeEntry, checked_entries, set_mode
from ..disk.write_below import write_below
from ..store.blobs import Store
from .snapshot import VERIFIED, Snapshot

_UNIQUE = re.compile(r"\.[0-9a-f]{8}\.incomplete$")


def partial_bytes(snapshot: Snapshot) -> int:
    """Return the bytes of interrupted downloads that the next one can continue."""
    return sum(size for name, size in _unfinished(snapshot).items() if not _UNIQUE.search(name))


def abandoned_downloads(snapshot: Snapshot) -> dict[str, int]:
    """Return names and sizes of unfinished files in blobs/ that no download will continue.

    huggingface_hub since 2.x writes to <etag>.<random>.incomplete, which a killed download leaves behind
    (huggingface/huggingface_hub#4228); earlier versions write to <etag>.incomplete, which the next download continues.
    """
    return {name: size for name, size in sorted(_unfinished(snapshot).items()) if _UNIQUE.search(name)}


def remove_abandoned(snapshot: Snapshot, names: Iterable[str]) -> None:
    """Remove them."""
    for name in names:
        snapshot.repository.remove(f"blobs/{name}")


def _unfinished(snapshot: Snapshot) -> dict[str, int]:
    repository = snapshot.repository
    names = [name for name in repository.names("blobs") if name.endswith(".incomplete")]
    sizes = {name: repository.size(f"blobs/{name}") for name in names}
    return {name: size for name, size in sizes.items() if size is not None}  # a download renames them


def has_marker(snapshot: Snapshot) -> bool:
    """Return whether the marker exists with the right content, hashes of all files included.

    That of an earlier version has none: these files were compared by their sizes only.
    """
    try:
        found = json.loads(snapshot.repository.read(snapshot.marker_place) or "")
        verified = found.pop(VERIFIED, {})
        return bool(found == snapshot.marker and set(snapshot.files) <= set(verified))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return False


def write_marker(snapshot: Snapshot, verified: Mapping[str, str]) -> None:
    """Record that the snapshot is complete. verified: the hashes of its files."""
    marker = {**snapshot.marker, VERIFIED: verified}
    _write(snapshot, snapshot.marker_place, json.dumps(marker, indent=1, sort_keys=True) + "\n")


def remove_marker(snapshot: Snapshot) -> None:
    """Remove the marker: files that replace others must not count as verified before they are."""
    snapshot.repository.remove(snapshot.marker_place)


def has_ref(snapshot: Snapshot) -> bool:
    """Return whether the cache maps the revision's name to this commit."""
    place = snapshot.ref_place
    return not place or (snapshot.repository.read(place) or "").strip() == snapshot.commit


def write_ref(snapshot: Snapshot) -> None:
    """Record the commit of the revision's name: a download by commit does not, and look-ups by name need it."""
    _write(snapshot, snapshot.ref_place, snapshot.commit)


def _write(snapshot: Snapshot, place: str, text: str) -> None:
    write_below(snapshot.cache_dir, f"{snapshot.repository.place}/{place}", text, 0o644)


def make_readable(snapshot: Snapshot, store: Store) -> None:
    """Let a serving container of any user read the model.

    Raise NodeError, before anything is changed, for what is neither of this repository alone nor a blob of the store: a
    container may have left it.
    """
    shared = _inodes(store)

    def accepts(entry: TreeEntry) -> bool:
        if entry.is_kind(stat.S_IFLNK):
            return is_blob(entry.path, entry.link())
        return entry.is_kind(stat.S_IFREG) and (entry.status.st_dev, entry.status.st_ino) in shared

    top, place = snapshot.cache_dir, snapshot.repository.place
    for _entry in checked_entries(top, place, accepts):
        pass
    for entry in checked_entries(top, place, accepts):
        mode = stat.S_IMODE(entry.status.st_mode)
        # No setuid programs, and nothing that others may alter.
        wanted = mode | 0o555 if entry.is_kind(stat.S_IFDIR) else (mode | 0o444) & ~0o7002
        if wanted != mode and not entry.is_kind(stat.S_IFLNK):
            with contextlib.suppress(FileNotFoundError):  # a download renames its files
                set_mode(entry, wanted)
    with directory_below(top, place) as inside:
        os.fchmod(inside, stat.S_IMODE(os.fstat(inside).st_mode) | 0o555)


def _inodes(store: Store) -> set[tuple[int, int]]:
    """Return device and inode of every blob of the store, which may have further names in a cache."""
    place = os.path.dirname(store.path(""))
    with contextlib.suppress(FileNotFoundError), os.scandir(place) as entries:
        device = os.stat(place).st_dev
        return {(device, entry.inode()) for entry in entries}
    return set()


def local_model(path: str, names: Sequence[str] = ("config.json", "params.json")) -> None:
    """Check that a directory contains a model. Raise NodeError if it does not."""
    if not os.path.isdir(path):
        raise NodeError(
            f"The model {path} is not a directory of this node. A model given by path is not fetched: put "
            "it there, or give a repository of the hub (org/name)."
        )
    if not any(os.path.isfile(os.path.join(path, name)) for name in names):
        raise NodeError(f"The directory {path} holds no model: it has neither {' nor '.join(names)}.")
