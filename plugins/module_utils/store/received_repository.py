# SPDX-License-Identifier: Apache-2.0
"""Give a received local repository its path: put together in a staging directory, hashed, and renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from ..common.disk_space import human_size
from ..common.files import read_text, sync_directory
from ..common.module_main import NodeError
from ..content.model_manifest import (
    BESIDE,
    MANIFEST,
    SIGNATURE,
    difference,
    hash_directory,
    remember_hashes,
)
from .blob_files import link_or_copy
from .blobs import Store
from .manifest import Manifest
from .repository import LocalRepository, listed_files


@dataclass(frozen=True)
class StoredRepository:
    """A repository that the store has completely: its files, the text of its manifest, and of its signature."""

    manifest: Manifest
    files: Mapping[str, str]
    statement: str
    signature: str


def stored_repository(store: Store, repository: LocalRepository, name: str) -> StoredRepository:
    """Return what the store has received. Raise NodeError if it is not there, or does not belong to this path."""
    manifest = next(
        (item for item in store.manifests() if item.name == name and not store.missing(item)), None
    )
    if manifest is None:
        raise NodeError(
            f"{repository.path} was to come from another host, and did not arrive: it is not in "
            f"{store.root}. What failed "
            "there, or on the way, is reported above. Nothing of it is visible here. Run again: what arrived is kept."
        )
    hashes = {item.path: item.sha256 for item in manifest.files}
    texts = {item: read_text(store.path(hashes[item])) or "" if item in hashes else "" for item in BESIDE}
    files = listed_files(texts[MANIFEST], repository)
    if files != {item: sha256 for item, sha256 in hashes.items() if item not in BESIDE}:
        store.drop(manifest)
        raise NodeError(
            f"{name} arrived with other files than its own {MANIFEST} lists. Nothing of it is kept."
        )
    return StoredRepository(manifest, files, texts[MANIFEST], texts[SIGNATURE])


def is_placed(repository: LocalRepository, stored: StoredRepository) -> bool:
    """Return whether the directory is as the store's, by hashes that were found since its files changed."""
    texts = {MANIFEST: stored.statement, SIGNATURE: stored.signature}
    if any((read_text(os.path.join(repository.path, item)) or "") != text for item, text in texts.items()):
        return False
    cache = repository.hashes(stored.statement)
    try:
        return not difference(stored.files, hash_directory(repository.path, cache, links=False))
    except NodeError:  # a link, or what cannot be read: both are replaced
        return False


def is_as_named(repository: LocalRepository, name: str) -> bool:
    """Return whether the directory has the manifest and signature of this name, and the files of that manifest."""
    text = read_text(os.path.join(repository.path, MANIFEST))
    if not text or repository.name != name:
        return False
    try:
        return not difference(listed_files(text, repository), hash_directory(repository.path, links=False))
    except NodeError:
        return False


def place_repository(store: Store, repository: LocalRepository, stored: StoredRepository) -> str:
    """Give the store's files their names in the directory, all at once. Return what was done. Raise NodeError."""
    staging, path = repository.staging, repository.path
    _clear(staging)
    for item in stored.manifest.files:
        target = os.path.join(staging, item.path)
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        link_or_copy(store.path(item.sha256), target)
    found = hash_directory(staging, links=False)
    wrong = difference(stored.files, found)
    if wrong:
        for name in (*wrong.changed, *wrong.missing):
            store.remove(stored.files[name])
        _clear(staging)
        raise NodeError(
            f"{path} was received, but {store.root} no longer has that content: {wrong}. It was removed. Run again, "
            "and check this node's disk and memory (dmesg).",
            changed=True,
        )
    for top, _names, _files in os.walk(staging):
        sync_directory(top)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    remember_hashes(repository.hashes(stored.statement), staging, found)
    old = f"{staging}.old"
    _clear(old)
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, old)
    os.rename(staging, path)
    sync_directory(os.path.dirname(path))
    _clear(old)
    return f"place {path} ({len(stored.files)} files, {human_size(stored.manifest.bytes)})"


def _clear(directory: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)
