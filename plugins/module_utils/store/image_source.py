# SPDX-License-Identifier: Apache-2.0
"""Fetch an image from its registry into the content store, each blob hashed as it arrives."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from ..common.abandoned import leave_if_abandoned
from ..common.disk_space import free_bytes, human_size
from ..common.module_main import NodeError
from ..content.transfer_names import image_name
from .blobs import Store
from .manifest import HEX, Manifest, ManifestFile, manifest_of
from .registry_client import PAUSES, CutAnswer, RegistryClient, RegistryError

PLATFORM = {"os": "linux", "architecture": "amd64"}
THREADS = 4  # blobs fetched at once
DISK_MARGIN = 16 * 2**20
_POLL_SECONDS = 1.0


def list_image(store: Store, client: RegistryClient) -> Manifest:
    """Return the manifest of an image's blobs, with its own manifests in the store. Raise NodeError."""
    digest = client.ref.digest
    found = [_manifest(store, client, digest, "manifest")]
    content = _content(store, found[0])
    if "manifests" in content:
        entries = [item for item in content["manifests"] if _fits(item.get("platform") or {})]
        if not entries:
            raise NodeError(f"{_shown(client)} has no manifest for linux/amd64. Choose another image.")
        found.append(_manifest(store, client, str(entries[0]["digest"]), "manifest of linux/amd64"))
        content = _content(store, found[-1])
    try:
        layers = list(content["layers"])
        found.append(_blob("config", content["config"]))
        # A layer that is there twice is one blob.
        found += [_blob(f"layer {number:03d}", item) for number, item in enumerate(layers)]
    except (KeyError, TypeError, ValueError) as error:
        raise NodeError(
            f"The manifest of {_shown(client)} has an unknown format ({content.get('mediaType')}). Push the image "
            "again with a current Docker release."
        ) from error
    return manifest_of(image_name(digest), found)


def fetch_blobs(store: Store, client: RegistryClient, manifest: Manifest) -> int:
    """Fetch the blobs that are not in the store, continuing what an earlier run began; return the bytes received."""
    missing = store.missing(manifest)
    directory = store.incoming(manifest)
    have = sum(_begun(directory, sha256) for sha256 in missing)
    need, free = sum(missing.values()) - have + DISK_MARGIN, free_bytes(store.root)
    if missing and free < need:
        raise NodeError(
            f"Not enough disk for {_shown(client)}: {store.root} has {human_size(free)} free, and "
            f"{human_size(need)} are needed. "
            "Free some space (playbooks/prune.yml), and run again."
        )
    stop = threading.Event()
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            order = sorted(missing, key=lambda sha256: -missing[sha256])
            futures = [
                pool.submit(_fetch, store, client, directory, name, missing[name], stop) for name in order
            ]
            while wait(futures, _POLL_SECONDS).not_done:
                leave_if_abandoned()
            return sum(future.result() for future in futures)
        finally:
            stop.set()  # the threads end before the pool does


def _fetch(
    store: Store, client: RegistryClient, directory: str, sha256: str, size: int, stop: threading.Event
) -> int:
    """Fetch one blob, and return the bytes received. Drop wrong content, so that no run continues from it."""
    path = os.path.join(directory, sha256)
    with open(path, "ab+") as file:
        blob = _PartialBlob(file)
        if not _complete(blob, client, sha256, size, stop):
            return blob.came
        file.flush()
        os.fsync(file.fileno())
    if blob.have != size or blob.digest.hexdigest() != sha256:
        os.unlink(path)
        raise RegistryError(
            f"Registry {client.ref.registry} sent wrong content for blob sha256:{sha256} of {client.ref.path}: "
            f"{blob.have} of {size} bytes, SHA-256 {blob.digest.hexdigest()}. It was dropped. Run again; if it is "
            "wrong again, a mirror or proxy on the way alters it, or this node's disk or memory does (dmesg)."
        )
    store.add(path, sha256, size, move=True, hashed=True)
    return blob.came


def _complete(
    blob: _PartialBlob, client: RegistryClient, sha256: str, size: int, stop: threading.Event
) -> bool:
    """Fetch the rest of a blob, again where an answer is cut; return whether it was not stopped."""
    pauses: list[float] = list(PAUSES)
    while blob.have < size:
        before = blob.have
        try:
            if not blob.extend(client.blob(f"sha256:{sha256}", before), size, stop):
                return False
        except CutAnswer as error:
            if blob.have > before:
                pauses = list(PAUSES)
            if not pauses:
                raise client.unreachable(str(error)) from error
            time.sleep(pauses.pop(0))
    return True


class _PartialBlob:
    """A blob's file as an earlier run left it, and what came since."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.digest, self.have = _hashed(file)
        self.came = 0

    def extend(self, answer: Iterable[bytes], size: int, stop: threading.Event) -> bool:
        """Append an answer, as far as the blob's size; return whether it was not stopped. Raise CutAnswer if empty."""
        before = self.have
        for part in answer:
            if stop.is_set():
                return False
            self.file.write(part)
            self.digest.update(part)
            self.have += len(part)
            self.came += len(part)
            if self.have > size:
                break
        if self.have == before:
            raise CutAnswer("it sends nothing")
        return True


def _hashed(file: Any) -> tuple[Any, int]:
    """Return the hash and the length of what an earlier run left of a blob."""
    digest, have = hashlib.sha256(), 0
    file.seek(0)
    while True:
        part = file.read(2**20)
        if not part:
            return digest, have
        digest.update(part)
        have += len(part)


def _begun(directory: str, sha256: str) -> int:
    try:
        return os.stat(os.path.join(directory, sha256)).st_size
    except FileNotFoundError:
        return 0


def _manifest(store: Store, client: RegistryClient, digest: str, path: str) -> ManifestFile:
    sha256 = digest.partition(":")[2]
    if not digest.startswith("sha256:") or not HEX.fullmatch(sha256):
        raise NodeError(f"{_shown(client)} names a manifest {digest}, which is not sha256:<64 hex digits>.")
    size = store.size(sha256)
    if size is None or store.verify([sha256]):
        content = client.manifest(digest)
        store.put(content, sha256)
        size = len(content)
    return ManifestFile(path, size, sha256)


def _content(store: Store, item: ManifestFile) -> Mapping[str, Any]:
    with open(store.path(item.sha256), encoding="utf-8") as file:
        try:
            content = json.load(file)
        except ValueError:
            content = None
    return content if isinstance(content, dict) else {}


def _fits(platform: Mapping[str, Any]) -> bool:
    return all(platform.get(key) == value for key, value in PLATFORM.items())


def _blob(path: str, item: Mapping[str, Any]) -> ManifestFile:
    digest = str(item["digest"])
    if not digest.startswith("sha256:") or not HEX.fullmatch(digest[7:]):
        raise ValueError(digest)
    return ManifestFile(path, int(item["size"]), digest[7:])


def _shown(client: RegistryClient) -> str:
    return f"{client.ref.repository}@{client.ref.digest}"
