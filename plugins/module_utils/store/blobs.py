# SPDX-License-Identifier: Apache-2.0
"""The content store of a node: blobs by their SHA-256, each complete and checked when it gets its name.

    blobs/sha256/<hex>     content, readable for all but files of the control node; the cache of weights has hard links
    manifests/<id>.json    the manifests of which every blob is there
    incoming/<id>/<hex>    what is being received; nothing here counts as present
    incoming/<id>/manifest.json    the whole that it is part of

A blob gets its name last, and a manifest after its blobs; they are removed in the opposite order.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable

from ..common import paths
from ..common.disk_space import existing_parent
from ..common.files import read_text, sync_directory, write_atomic
from ..common.module_main import NodeError
from .blob_files import give_name, hash_file, hash_files, open_blob
from .manifest import HEX, Manifest, parse_manifest

MANIFEST = "manifest.json"  # of what is being received


class WrongContent(NodeError):
    """Content does not match the hash in its name; nothing of it is in the store."""


class Store:
    """A node's content store; `root` is its directory. private: blobs that only root may read, while they are added."""

    def __init__(self, root: str = paths.STORE) -> None:
        self.root = root
        self.private: frozenset[str] = frozenset()

    # ---- names -------------------------------------------------------------------------------------------

    def path(self, sha256: str) -> str:
        """Return the path of a blob, which exists if has()."""
        return os.path.join(self.root, "blobs", "sha256", sha256)

    def incoming(self, manifest: Manifest) -> str:
        """Return the directory in which a manifest's blobs are received, made if it is missing; only root reads it."""
        path = self.workspace(manifest.id)
        name = os.path.join(path, MANIFEST)
        if not os.path.exists(name):
            write_atomic(name, manifest.text + "\n", 0o600)
        return path

    def workspace(self, name: str) -> str:
        """Return a directory of incoming/ for content of which no manifest is known yet; prune.yml removes it."""
        path = os.path.join(self.root, "incoming", name)
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        return path

    def manifest_path(self, manifest_id: str) -> str:
        """Return the path of a complete manifest."""
        return os.path.join(self.root, "manifests", f"{manifest_id}.json")

    def beside(self, path: str) -> bool:
        """Return whether a path is on the store's file system, so that files can have a name in both."""
        return os.stat(existing_parent(path)).st_dev == os.stat(existing_parent(self.root)).st_dev

    # ---- reading -----------------------------------------------------------------------------------------

    def size(self, sha256: str) -> int | None:
        """Return the size of a blob in bytes; None if it is not there."""
        try:
            return os.stat(self.path(sha256)).st_size
        except FileNotFoundError:
            return None

    def has(self, sha256: str, size: int) -> bool:
        """Return whether the blob is there with its size; verify() compares content."""
        return self.size(sha256) == size

    def missing(self, manifest: Manifest) -> dict[str, int]:
        """Return the blobs that are not there, with their sizes."""
        return {sha256: size for sha256, size in manifest.blobs.items() if not self.has(sha256, size)}

    def manifests(self) -> list[Manifest]:
        """Return the complete manifests; one whose content does not match its id does not count as present."""
        names = sorted(_listing(os.path.join(self.root, "manifests")))
        found = [_read_manifest(os.path.join(self.root, "manifests", name)) for name in names]
        return [item for item, name in zip(found, names) if item and f"{item.id}.json" == name]

    def unfinished(self) -> dict[str, Manifest | None]:
        """Return what has been received in part, by the names in incoming/; None where it is unknown what it is."""
        return {
            name: _read_manifest(os.path.join(self.root, "incoming", name, MANIFEST))
            for name in sorted(_listing(os.path.join(self.root, "incoming")))
        }

    def manifest(self, name: str) -> Manifest | None:
        """Return the complete manifest of this name."""
        return next((item for item in self.manifests() if item.name == name), None)

    def blobs(self) -> list[str]:
        """Return the SHA-256 of every blob."""
        return sorted(
            name for name in _listing(os.path.join(self.root, "blobs", "sha256")) if HEX.fullmatch(name)
        )

    # ---- adding ------------------------------------------------------------------------------------------

    def add(self, source: str, sha256: str, size: int, move: bool = False, hashed: bool = False) -> None:
        """Take a file: as a hard link, or as a copy from another file system; with `move` the source is removed.

        It is hashed first, unless the caller has just done so. Raise WrongContent if it is not what its hash says.
        """
        if not self.has(sha256, size):
            with open_blob(source) as file:
                self.add_open(file, source, sha256, size, hashed)
        if move:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(source)

    def add_open(self, file: int, source: str, sha256: str, size: int, hashed: bool = False) -> None:
        """Do what add() does with an open file, whatever has its name by now. source: its path, for messages."""
        if self.has(sha256, size):
            return
        self._prepare()
        name = f"{sha256}.{os.getpid()}.{threading.get_ident()}"
        temporary = os.path.join(self.root, "incoming", name)
        directory = os.open(os.path.dirname(temporary), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            linked = give_name(file, directory, name)
            self._take(temporary, sha256, size, source, hashed and linked)
        finally:
            os.close(directory)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def put(self, content: bytes, sha256: str) -> None:
        """Take content that is in memory. Raise WrongContent if it is not what its hash says."""
        self._prepare()
        descriptor, temporary = tempfile.mkstemp(dir=os.path.join(self.root, "incoming"))
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            self._take(temporary, sha256, len(content), "memory")
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def adopt(self, manifest: Manifest) -> list[str]:
        """Take the blobs received in incoming(manifest.id), named by their hashes; return those that are wrong.

        A wrong one is removed, so that it is received again.
        """
        directory, wrong = self.incoming(manifest), []
        for sha256, size in self.missing(manifest).items():
            received = os.path.join(directory, sha256)
            if not os.path.exists(received):
                continue
            try:
                self.add(received, sha256, size, move=True)
            except WrongContent:
                wrong.append(sha256)
                os.unlink(received)
        return wrong

    def record(self, manifest: Manifest) -> None:
        """Record a manifest of which every blob is there, and drop what was received for it. Raise NodeError."""
        missing = self.missing(manifest)
        if missing:
            raise NodeError(
                f"{manifest.name} is incomplete in {self.root}: {len(missing)} of {len(manifest.blobs)} blobs are "
                f"missing, such as sha256:{next(iter(sorted(missing)))}. Run again to fetch them."
            )
        self._prepare()
        write_atomic(self.manifest_path(manifest.id), manifest.text + "\n", 0o644)
        sync_directory(os.path.join(self.root, "manifests"))
        shutil.rmtree(os.path.join(self.root, "incoming", manifest.id), ignore_errors=True)

    def _prepare(self) -> None:
        for name in ("blobs/sha256", "incoming", "manifests"):
            os.makedirs(os.path.join(self.root, name), mode=0o755, exist_ok=True)

    def _take(self, temporary: str, sha256: str, size: int, source: str, hashed: bool = False) -> None:
        """Hash a file of incoming/, bring it to disk, and give it its name."""
        found = os.stat(temporary).st_size
        actual = (sha256 if hashed else hash_file(temporary)) if found == size else ""
        if actual != sha256:
            what = f"SHA-256 {actual}" if actual else f"{found} bytes instead of {size}"
            raise WrongContent(f"{source} is not the blob sha256:{sha256}: it has {what}.")
        os.chmod(temporary, 0o600 if sha256 in self.private else 0o644)
        os.replace(temporary, self.path(sha256))
        sync_directory(os.path.dirname(self.path(sha256)))

    # ---- checking and removing ---------------------------------------------------------------------------

    def verify(self, wanted: Iterable[str] | None = None) -> dict[str, str]:
        """Hash blobs, all if none are named; return those whose content is wrong with the hash that they have."""
        names = [name for name in (self.blobs() if wanted is None else wanted) if self.size(name) is not None]
        found = hash_files({name: self.path(name) for name in names})
        return {name: actual for name, actual in sorted(found.items()) if actual != name}

    def remove_wrong(self, manifest: Manifest) -> list[str]:
        """Remove the blobs of a manifest whose content is wrong, and return them."""
        wrong = list(self.verify(manifest.blobs))
        for sha256 in wrong:
            self.remove(sha256)
        return wrong

    def remove(self, sha256: str) -> list[str]:
        """Remove a blob, after the manifests that it makes incomplete; return the names of these."""
        broken = [item for item in self.manifests() if sha256 in item.blobs]
        for item in broken:
            self._forget(item)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(sha256))
        return [item.name for item in broken]

    def drop(self, manifest: Manifest) -> None:
        """Remove a manifest, and the blobs that no other one has."""
        self._forget(manifest)
        self.sweep(manifest.blobs)

    def abandon(self, name: str) -> None:
        """Remove what was received in part, by its name in incoming/, and its blobs that nothing else has."""
        path = os.path.join(self.root, "incoming", name)
        manifest = _read_manifest(os.path.join(path, MANIFEST))
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
        self.sweep(manifest.blobs if manifest else ())

    def sweep(self, names: Iterable[str]) -> None:
        """Remove those blobs that no manifest has, complete or being received."""
        for sha256 in set(names) - self.used():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(sha256))

    def used(self) -> set[str]:
        """Return the SHA-256 of the blobs of every manifest, complete or being received."""
        begun = (item for item in self.unfinished().values() if item)
        return {sha256 for item in (*self.manifests(), *begun) for sha256 in item.blobs}

    def _forget(self, manifest: Manifest) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.manifest_path(manifest.id))
            sync_directory(os.path.join(self.root, "manifests"))


def _read_manifest(path: str) -> Manifest | None:
    """Return the manifest of a file; None if it is missing or malformed."""
    try:
        return parse_manifest(json.loads(read_text(path) or ""))
    except (ValueError, NodeError, NotADirectoryError):
        return None


def _listing(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
