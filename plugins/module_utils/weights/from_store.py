# SPDX-License-Identifier: Apache-2.0
"""Weights from a node's content store for its cache: one file under two names, hashed on the way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..disk.beneath import directory_below
from ..store.blob_files import give_name, open_blob
from ..store.blobs import Store
from ..store.manifest import Manifest
from . import verify
from .snapshot import Snapshot, remove_file


@dataclass(frozen=True)
class LinkedFiles:
    """What came out of the store: the hashes of good files, and the names of those that were wrong there."""

    hashes: Mapping[str, str]
    wrong: tuple[str, ...]


NOTHING = LinkedFiles({}, ())


def link(store: Store, snapshot: Snapshot, manifest: Manifest, names: Iterable[str]) -> LinkedFiles:
    """Put files of the store into the cache, as the hub's client would, and hash them.

    Those that are wrong are removed from the cache and from the store, so that they are fetched elsewhere.
    """
    stored = {item.path: item.sha256 for item in manifest.files}
    wanted = {name: stored[name] for name in names}
    os.makedirs(snapshot.cache_dir, mode=0o755, exist_ok=True)
    for name, sha256 in wanted.items():
        _put(store, snapshot, name, sha256)
    found = verify.hash_snapshot(snapshot, dict.fromkeys(wanted, verify.SHA256))
    wrong = tuple(name for name in sorted(wanted) if found[name] != f"{verify.SHA256}:{wanted[name]}")
    for name in wrong:
        store.remove(wanted[name])
        remove_file(snapshot, name)
    return LinkedFiles({name: text for name, text in found.items() if name not in wrong}, wrong)


def wrong_text(store: Store, snapshot: Snapshot, wrong: Sequence[str]) -> str:
    """Return in words what was wrong in the store."""
    rest = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return (
        f"{wrong[0]}{rest} of {snapshot.repo} no longer had the content in {store.root} that was received. "
        "It was removed "
        "there, and was downloaded again. Check this node's disk and memory (dmesg)."
    )


def _put(store: Store, snapshot: Snapshot, name: str, sha256: str) -> None:
    """Give a blob its name in the cache, and the snapshot a link to it."""
    repository, place = snapshot.repository, snapshot.place(name)
    remove_file(snapshot, name)
    # The hub's client names a small file by its git hash, and a large one by its SHA-256.
    kind, _unused, text = snapshot.hashes.get(name, "").partition(":")
    blob = text if kind == verify.GIT else sha256
    top = repository.place
    with (
        open_blob(store.path(sha256)) as file,
        directory_below(snapshot.cache_dir, f"{top}/blobs", True) as inside,
    ):
        give_name(file, inside, blob)
    with directory_below(snapshot.cache_dir, f"{top}/{os.path.dirname(place)}", make=True) as inside:
        target = os.path.relpath(f"blobs/{blob}", os.path.dirname(place))
        os.symlink(target, os.path.basename(place), dir_fd=inside)
