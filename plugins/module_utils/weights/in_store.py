# SPDX-License-Identifier: Apache-2.0
"""A snapshot in the node's content store: what it has, and how it gets there, hashed on the way."""

from __future__ import annotations

import contextlib
import os

from ..content.transfer_names import model_name
from ..store.blobs import Store
from ..store.manifest import Manifest, ManifestFile, manifest_of
from . import verify
from .snapshot import Snapshot


def manifest_name(snapshot: Snapshot) -> str:
    """Return the name of the snapshot's manifest."""
    return model_name(snapshot.repo, snapshot.commit, snapshot.files)


def stored_snapshot(store: Store, snapshot: Snapshot) -> Manifest | None:
    """Return the store's manifest of the snapshot; None if there is none, or it has other files than the lock says."""
    found = store.manifest(manifest_name(snapshot))
    if found is None or store.missing(found):
        return None
    if {item.path: item.size for item in found.files} != dict(snapshot.files):
        return None
    hashes = {item.path: f"{verify.SHA256}:{item.sha256}" for item in found.files}
    stated = {name: text for name, text in snapshot.hashes.items() if text.startswith(verify.SHA256)}
    return found if all(hashes.get(name, text) == text for name, text in stated.items()) else None


def share(store: Store, snapshot: Snapshot) -> Manifest:
    """Put the files of a complete snapshot into the store, after a comparison of their content.

    Raise NodeError if a file is missing, or wrong; a wrong one is removed from the cache.
    """
    verify.check_sizes(snapshot)
    hashes = verify.check_content(snapshot, f"the cache {snapshot.cache_dir}", True)
    known = {name: text.partition(":")[2] for name, text in hashes.items() if text.startswith(verify.SHA256)}
    rest = {name: verify.SHA256 for name in snapshot.files if name not in known}
    known |= {name: text.partition(":")[2] for name, text in verify.hash_snapshot(snapshot, rest).items()}
    manifest = manifest_of(
        manifest_name(snapshot),
        [ManifestFile(name, size, known[name]) for name, size in snapshot.files.items()],
    )
    for item in manifest.files:
        with snapshot.repository.opened(snapshot.place(item.path)) as file:
            with contextlib.suppress(FileNotFoundError):
                if not os.path.samestat(os.stat(store.path(item.sha256)), os.fstat(file.fileno())):
                    store.remove(item.sha256)  # of unknown condition, while the cache's has just been hashed
            store.add_open(file.fileno(), f"{snapshot.path}/{item.path}", item.sha256, item.size, hashed=True)
    store.record(manifest)
    return manifest
