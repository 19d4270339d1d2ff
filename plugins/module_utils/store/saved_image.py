# SPDX-License-Identifier: Apache-2.0
"""Put an image that this node has built from its engine into the content store, for other nodes.

What `docker save` writes is the image's config, whose hash is the image's id, and its layers as the config
names them (rootfs.diff_ids). So the blobs and their manifest follow from the image alone: every node that has it offers
the same ones. The layers are not compressed: between hosts that takes longer than it saves.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import shutil
import tarfile
from dataclasses import dataclass
from typing import IO, Any

from ..common.abandoned import leave_if_abandoned
from ..common.disk_space import free_bytes, human_size
from ..common.hashing import canonical
from ..common.module_main import NodeError
from ..content.transfer_names import build_name
from ..docker import image_api
from ..docker.client import DockerClient
from .blobs import Store
from .built_image import CONFIG, MANIFEST, stored_build
from .image_source import DISK_MARGIN
from .manifest import Manifest, ManifestFile, manifest_of

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_TYPE = "application/vnd.docker.image.rootfs.diff.tar"
_CHUNK = 4 * 2**20
_LIMIT = 600.0  # seconds in which docker save writes nothing


@dataclass(frozen=True)
class _File:
    path: str
    size: int
    sha256: str


def export_image(store: Store, client: DockerClient, tag: str) -> Manifest:
    """Put an image of the engine into the store, and return its manifest. Raise NodeError."""
    image = image_api.image(client, tag)
    if image is None:
        raise NodeError(
            f"The engine has no image {tag}, which other nodes should get from here. Run again to build it."
        )
    digest, size = str(image["Id"]).partition(":")[2], int(image.get("Size") or 0)
    free = free_bytes(store.root)
    if free < size + DISK_MARGIN:
        raise NodeError(
            f"Not enough disk to pass on {tag}: {store.root} has {human_size(free)} free, and "
            f"{human_size(size + DISK_MARGIN)} "
            "are needed. Free some space (playbooks/prune.yml), and run again."
        )
    directory = store.workspace(f"export-{digest}")
    try:
        manifest = _saved(store, client, str(image["Id"]), tag, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    store.record(manifest)
    for other in [item for item in store.manifests() if item.name == manifest.name and item != manifest]:
        store.drop(other)  # of an earlier build; what both have stays
    return manifest


def exported_layers(store: Store, client: DockerClient, tag: str) -> Manifest | None:
    """Return the manifest if the store has all of the image that the engine has by this tag."""
    image = image_api.image(client, tag)
    return None if image is None else stored_build(store, tag, str(image["Id"]))


def _saved(store: Store, client: DockerClient, image_id: str, tag: str, directory: str) -> Manifest:
    """Take what docker save writes, and return the manifest."""
    files, links = _unpack(client, image_id, directory)
    try:
        with open(files["manifest.json"].path, encoding="utf-8") as stream:
            listed = json.load(stream)[0]
        config = files[listed["Config"]]
        layers = [files[_target(name, links)] for name in listed["Layers"]]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise NodeError(
            f"docker save of {tag} has an unknown form ({type(error).__name__}: {error}). Update Docker on this node."
        ) from error
    if f"sha256:{config.sha256}" != image_id:
        raise NodeError(
            f"Docker of this node keeps images in containerd, where {tag} has an id that depends on the node, so it "
            'cannot be passed on as it is. Set "features": {"containerd-snapshotter": false} in '
            "/etc/docker/daemon.json, restart Docker, and run again; or push the image to a registry, and name it as "
            "image."
        )
    content = canonical(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _entry(CONFIG_TYPE, config),
            "layers": [_entry(LAYER_TYPE, item) for item in layers],
        }
    ).encode()
    sha256 = hashlib.sha256(content).hexdigest()
    store.put(content, sha256)
    for item in {item.sha256: item for item in (config, *layers)}.values():
        store.add(item.path, item.sha256, item.size, move=True, hashed=True)
    found = [ManifestFile(MANIFEST, len(content), sha256), ManifestFile(CONFIG, config.size, config.sha256)]
    found += [ManifestFile(f"layer {at:03d}", item.size, item.sha256) for at, item in enumerate(layers)]
    return manifest_of(build_name(tag), found)


def _entry(kind: str, item: _File) -> dict[str, Any]:
    return {"mediaType": kind, "size": item.size, "digest": f"sha256:{item.sha256}"}


def _unpack(client: DockerClient, image_id: str, directory: str) -> tuple[dict[str, _File], dict[str, str]]:
    """Write the files of docker save, hashed as they come; return them by name, and the links among them."""
    files: dict[str, _File] = {}
    links: dict[str, str] = {}
    response = client.respond("GET", f"/images/{image_id}/get", timeout=_LIMIT)
    try:
        with tarfile.open(fileobj=response, mode="r|") as archive:
            for member in archive:
                if member.issym() or member.islnk():  # a layer that is there twice
                    base = posixpath.dirname(member.name) if member.issym() else ""
                    links[member.name] = posixpath.normpath(posixpath.join(base, member.linkname))
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None:
                    path = os.path.join(directory, str(len(files)))
                    files[member.name] = _written(content, path)
    except (tarfile.TarError, OSError) as error:
        raise NodeError(f"docker save of {image_id} broke off: {error}. Run again.") from error
    finally:
        client.close()
    return files, links


def _written(content: IO[bytes], path: str) -> _File:
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        while True:
            part = content.read(_CHUNK)
            if not part:
                break
            file.write(part)
            digest.update(part)
            size += len(part)
            leave_if_abandoned()
        file.flush()
        os.fsync(file.fileno())
    return _File(path, size, digest.hexdigest())


def _target(name: str, links: dict[str, str]) -> str:
    while name in links and links[name] != name:
        name = links[name]
    return name
