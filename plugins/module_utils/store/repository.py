# SPDX-License-Identifier: Apache-2.0
"""Put local repositories (models that quantize.yml made) into the content store; both have the same files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from ..common.files import read_text
from ..common.hashing import text_hash
from ..common.module_main import NodeError
from ..common.paths import DATA_DIR
from ..content.model_manifest import (
    BESIDE,
    MANIFEST,
    MODEL_HASHES,
    REPAIR,
    REPOSITORY,
    SIGNATURE,
    BadManifest,
    ManifestDifference,
    commit_of,
    difference,
    forget_hashes,
    hash_directory,
    hashes_file,
    parse_statement,
)
from ..content.transfer_names import repository_name
from .blob_files import hash_file
from .blobs import Store
from .manifest import Manifest, ManifestFile, manifest_of


@dataclass(frozen=True)
class LocalRepository:
    """A directory models/NAME/COMMIT of the node."""

    path: str

    @property
    def commit(self) -> str:
        """Return the commit that its path says."""
        return os.path.basename(self.path)

    @property
    def staging(self) -> str:
        """Return where it is put together; no name of a model begins with a dot."""
        return os.path.join(self._models, ".work", f"received-{self.commit}")

    @property
    def name(self) -> str:
        """Return the name of its manifest in the store, as plans form it from node_state."""
        signature = read_text(os.path.join(self.path, SIGNATURE))
        return repository_name(self.path, text_hash(signature)[:12] if signature else "")

    @property
    def _models(self) -> str:
        return os.path.dirname(os.path.dirname(self.path))

    def hashes(self, manifest: str) -> str:
        """Return the file that remembers the hashes of its files, next to models/."""
        top = os.path.join(os.path.dirname(self._models), os.path.relpath(MODEL_HASHES, DATA_DIR))
        return hashes_file(self.path, manifest, top)


@dataclass(frozen=True)
class TakenRepository:
    """What the store took of a directory. manifest: None unless all of it was right. wrong: how it differs."""

    manifest: Manifest | None
    wrong: ManifestDifference


def repositories_of(names: Iterable[str]) -> dict[str, str]:
    """Return the paths of the local repositories among the names of manifests, with the names."""
    found = {}
    for name in names:
        path = name.partition(" ")[2].rpartition(" ")[0].replace("@", "/")
        if REPOSITORY.fullmatch(path) and name.startswith("model "):
            found[path] = name
    return found


def take_repository(store: Store, repository: LocalRepository, name: str, whole: bool) -> TakenRepository:
    """Hash a directory, and put what is right of it into the store; what the store has wrong of it is removed.

    whole: others are to get it from here. Raise NodeError then if anything differs from its manifest.
    """
    path, text = repository.path, read_text(os.path.join(repository.path, MANIFEST))
    if text is None:
        if whole and not os.path.isdir(path):
            raise NodeError(
                f"{path} is not on this host, so it cannot give it to others. Name a host that has it (--limit), or "
                "deploy it here first (deploy.yml)."
            )
        if whole:
            raise NodeError(f"{path} has no {MANIFEST}, so this host cannot give it to others. {REPAIR}")
        return TakenRepository(None, ManifestDifference())
    cache = repository.hashes(text)
    forget_hashes(cache)
    try:
        files, found = listed_files(text, repository), hash_directory(path, cache, links=False)
    except NodeError:
        if whole:
            raise
        return TakenRepository(None, ManifestDifference((MANIFEST,)))
    wrong = difference(files, found)
    _remove_wrong(store, {files[item] for item in (*wrong.changed, *wrong.missing)})
    right = {item: sha256 for item, sha256 in files.items() if found.get(item) == sha256}
    entries = [_add(store, path, item, sha256) for item, sha256 in right.items()]
    if not whole:
        return TakenRepository(None, wrong)
    if wrong:
        raise NodeError(f"{path} is not what its manifest says: {wrong}. It is not passed on. {REPAIR}")
    for item in BESIDE:
        if os.path.exists(os.path.join(path, item)):
            entries.append(_add(store, path, item, hash_file(os.path.join(path, item))))
    manifest = manifest_of(name, entries)
    store.record(manifest)
    return TakenRepository(manifest, wrong)


def listed_files(text: str, repository: LocalRepository) -> dict[str, str]:
    """Return the files of a manifest, by which the directory has its name. Raise NodeError."""
    try:
        files = parse_statement(text)
    except BadManifest as error:
        raise NodeError(f"{repository.path}/{MANIFEST} cannot be used: {error}. {REPAIR}") from error
    if commit_of(files) != repository.commit:
        raise NodeError(
            f"{repository.path}/{MANIFEST} lists the files of commit {commit_of(files)}, but the path says "
            f"{repository.commit}. It was changed, or copied to a wrong path. {REPAIR}"
        )
    return files


def _add(store: Store, path: str, name: str, sha256: str) -> ManifestFile:
    """Put a file into the store that was hashed just now, in place of one of unknown condition there."""
    file = os.path.join(path, name)
    size = os.stat(file).st_size
    if store.has(sha256, size) and not os.path.samefile(store.path(sha256), file):
        _remove_wrong(store, {sha256})
    store.add(file, sha256, size, hashed=True)
    return ManifestFile(name, size, sha256)


def _remove_wrong(store: Store, blobs: Iterable[str]) -> None:
    for sha256 in store.verify(blobs):
        store.remove(sha256)
