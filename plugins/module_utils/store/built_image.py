# SPDX-License-Identifier: Apache-2.0
"""Load an image that another node has built from the content store into this node's engine."""

from __future__ import annotations

import contextlib

from ..common.module_main import NodeError
from ..content.image_ref import parse_ref
from ..content.transfer_names import build_name
from ..docker import image_api
from ..docker.client import DockerClient, DockerError, Json, NotFound
from .blobs import Store
from .local_registry import serve_image
from .manifest import Manifest

CONFIG, MANIFEST = "config", "manifest"
"""Paths in a manifest of the store, in addition to the layers."""

REPOSITORY = "instinct-fleet/built"


def stored_build(store: Store, tag: str, image_id: str) -> Manifest | None:
    """Return the complete manifest of a build. image_id: of which image, "" for any."""
    for manifest in store.manifests():
        if (
            manifest.name == build_name(tag)
            and image_id in ("", f"sha256:{hash_of(manifest, CONFIG)}")
            and not store.missing(manifest)
        ):
            return manifest
    return None


def hash_of(manifest: Manifest, path: str) -> str:
    """Return the hash of a file of the manifest, "" if it has none."""
    return {item.path: item.sha256 for item in manifest.files}.get(path, "")


class ReceivedImage:
    """An image that another node has built and that this node's store may have. keep: it stays there afterwards."""

    def __init__(self, store: Store, tag: str, image_id: str, keep: bool) -> None:
        self._store, self._tag, self._id, self._keep = store, tag, image_id, keep

    @property
    def action(self) -> str:
        """Return what is done to load it."""
        return f"load {self._tag} from {self._store.root}, as another node has built it"

    def load(self, client: DockerClient) -> None:
        """Pull it from the loopback interface, give it its tag, and compare its id. Raise NodeError."""
        manifest = stored_build(self._store, self._tag, self._id)
        if manifest is None:
            raise NodeError(
                f"{self._tag} is built on another node, and did not arrive here: it is not in {self._store.root}. What "
                "failed there, or on the way, is reported above. Run again: what was built and received is kept."
            )
        image_id = f"sha256:{hash_of(manifest, CONFIG)}"
        digest = f"sha256:{hash_of(manifest, MANIFEST)}"
        named = parse_ref(self._tag)
        with serve_image(self._store, manifest) as address:
            name = f"{address}/{REPOSITORY}@{digest}"
            try:
                for _progress in image_api.pull(client, f"{address}/{REPOSITORY}", digest):
                    pass
                image_api.tag(client, name, named.repository, named.tag)
            except DockerError as error:
                raise NodeError(self._explain(manifest, str(error))) from error
            finally:
                with contextlib.suppress(NotFound):
                    client.json("DELETE", f"/images/{name}")
        found: Json = image_api.image(client, self._tag) or {}
        if found.get("Id") != image_id:
            raise NodeError(
                f"{self._tag} was loaded, and the engine gives it the id {found.get('Id')} instead of {image_id}. "
                'Docker of this node keeps images in containerd: set "features": {"containerd-snapshotter": false} in '
                "/etc/docker/daemon.json, restart Docker, and run again.",
                changed=True,
            )
        if not self._keep:
            self._store.drop(manifest)

    def _explain(self, manifest: Manifest, message: str) -> str:
        """Say why the engine refused, and remove what is wrong in the store."""
        wrong = self._store.remove_wrong(manifest)
        what = f"The engine did not take {self._tag} from {self._store.root} over the loopback interface"
        if wrong:
            return (
                f"{what}: sha256:{', sha256:'.join(wrong)} no longer had the content that was received. It "
                "was removed: "
                "run again to receive it again, and check this node's disk and memory (dmesg)."
            )
        return f"{what}. (Docker says: {message}) Run again."
