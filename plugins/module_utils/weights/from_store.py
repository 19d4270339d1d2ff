# SPDX-License-Identifier: Apache-2.0
"""Weights between a node's cache and its content store: one file under two names, hashed on the way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..common.transfer_names import model_name
from ..store.blobs import Store, hash_files, link_or_copy
from ..store.manifest import Manifest, ManifestFile, manifest_of
from . import cache, verify
from .cache import Snapshot


@dataclass(frozen=True)
class Linked:
    """What came out of the store: the hashes of good files, and the names of those that were wrong there."""

    hashes: Mapping[str, str]
    wrong: tuple[str, ...]


NOTHING = Linked({}, ())


def manifest_name(snapshot: Snapshot) -> str:
    """Return the name of the snapshot's manifest."""
    return model_name(snapshot.repo, snapshot.commit, snapshot.files)


def stored(store: Store, snapshot: Snapshot) -> Manifest | None:
    """Return the store's manifest of the snapshot; None if it lacks that, or has other files than the lock says."""
    found = store.manifest(manifest_name(snapshot))
    if found is None or store.missing(found):
        return None
    if {item.path: item.size for item in found.files} != dict(snapshot.files):
        return None
    hashes = {item.path: f"{verify.SHA256}:{item.sha256}" for item in found.files}
    stated = {name: text for name, text in snapshot.hashes.items() if text.startswith(verify.SHA256)}
    return found if all(hashes.get(name, text) == text for name, text in stated.items()) else None


def link(store: Store, snapshot: Snapshot, manifest: Manifest, names: Iterable[str]) -> Linked:
    """Put files of the store into the cache, as the hub's client would, and hash them.

    Those that are wrong are removed from the cache and from the store, so that they are fetched elsewhere.
    """
    wanted = {item.path: item.sha256 for item in manifest.files}
    paths = {name: _put(store, snapshot, name, wanted[name]) for name in names}
    found = hash_files(paths)
    wrong = tuple(name for name in sorted(paths) if found[name] != wanted[name])
    for name in wrong:
        store.remove(wanted[name])
        cache.remove_file(snapshot, name)
    good = {name: f"{verify.SHA256}:{text}" for name, text in found.items() if name not in wrong}
    return Linked(good, wrong)


def wrong_text(store: Store, snapshot: Snapshot, wrong: Sequence[str]) -> str:
    """Say what was wrong in the store."""
    rest = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return (
        f"{wrong[0]}{rest} of {snapshot.repo} had other content in {store.root} than was received. It is removed "
        "there, and was downloaded again. Check this node's disk and memory (dmesg)."
    )


def share(store: Store, snapshot: Snapshot) -> Manifest:
    """Put the files of a complete snapshot into the store, after a comparison of their content.

    Raise NodeError if a file is missing, or wrong; a wrong one is removed from the cache.
    """
    verify.check_sizes(snapshot)
    hashes = verify.check_content(snapshot, f"the cache {snapshot.cache_dir}", True)
    paths = {name: os.path.realpath(os.path.join(snapshot.path, name)) for name in snapshot.files}
    known = {
        name: text.partition(":")[2] for name, text in hashes.items() if text.startswith(f"{verify.SHA256}:")
    }
    known.update(hash_files({name: path for name, path in paths.items() if name not in known}))
    manifest = manifest_of(
        manifest_name(snapshot),
        [ManifestFile(name, size, known[name]) for name, size in snapshot.files.items()],
    )
    for item in manifest.files:
        if store.has(item.sha256, item.size) and not os.path.samefile(
            store.path(item.sha256), paths[item.path]
        ):
            store.remove(item.sha256)  # of unknown condition, while the cache's has just been hashed
        store.add(paths[item.path], item.sha256, item.size, hashed=True)
    store.record(manifest)
    return manifest


def _put(store: Store, snapshot: Snapshot, name: str, sha256: str) -> str:
    """Give a blob its name in the cache, and the snapshot a link to it; return the blob's path there."""
    path = os.path.join(snapshot.path, name)
    if os.path.lexists(path):
        cache.remove_file(snapshot, name)
    # The hub's client names a small file by its git hash, and a large one by its SHA-256.
    kind, _unused, text = snapshot.hashes.get(name, "").partition(":")
    blob = os.path.join(snapshot.repo_dir, "blobs", text if kind == verify.GIT else sha256)
    for directory in (os.path.dirname(blob), os.path.dirname(path)):
        os.makedirs(directory, mode=0o755, exist_ok=True)
    link_or_copy(store.path(sha256), blob)
    os.symlink(os.path.relpath(blob, os.path.dirname(path)), path)
    return blob
