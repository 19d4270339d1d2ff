# SPDX-License-Identifier: Apache-2.0
"""Load an image from the content store into this node's engine.

An engine lists an image under the name by which it was pulled, and starts containers by that name only. So its layers
come from the loopback interface, under a temporary name, and a pull by the right name then finds them all there: it
gets only the manifest from the registry. In a network without registries, the store itself is the registry that it
pulls from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from urllib.parse import quote

from ..common.disk_space import human_size
from ..common.module_main import NodeError
from ..content.image_ref import STORE_REGISTRY
from ..content.transfer_names import image_name
from ..docker import image_api
from ..docker.client import DockerClient, DockerError, NotFound
from ..docker.images import ImagePull
from .blobs import Store
from .local_registry import serve_image
from .manifest import Manifest


class StoredImage:
    """An image of which the store has every blob. keep: it stays there, for other nodes."""

    def __init__(self, store: Store, manifest: Manifest, want: ImagePull, keep: bool) -> None:
        self._store, self._manifest, self._want, self._keep = store, manifest, want, keep

    @property
    def action(self) -> str:
        """Return what is done before the pull by name."""
        return f"load the layers of {self._want.pulled} from {self._store.root} ({human_size(self._manifest.bytes)})"

    @contextlib.contextmanager
    def loaded(self, client: DockerClient) -> Iterator[list[str]]:
        """Have the layers in the engine during the block, in which the image gets its name; yield warnings.

        A failure is such a warning: the pull by name then loads the layers. Blobs that are wrong are removed.
        """
        if self._want.pull.registry == STORE_REGISTRY:
            with self._served():
                yield []
            self._drop()
            return
        repository = name = ""
        warnings: list[str] = []
        with serve_image(self._store, self._manifest) as address:
            repository = f"{address}/{self._want.pull.path}"
            name = f"{repository}@{self._want.pull.digest}"
            try:
                for _progress in image_api.pull(client, repository, self._want.pull.digest):
                    pass
            except DockerError as error:
                warnings.append(self._explain(str(error)))
        try:
            yield warnings
        finally:
            with contextlib.suppress(NotFound):
                client.json("DELETE", f"/images/{quote(name, safe='/:@')}")
        self._drop()

    @contextlib.contextmanager
    def _served(self) -> Iterator[None]:
        """Be the registry that the image is pulled from. Raise NodeError, with what is wrong in the store if it is."""
        with serve_image(self._store, self._manifest, int(STORE_REGISTRY.rpartition(":")[2])):
            try:
                yield
            except NodeError as error:
                wrong = self._store.remove_wrong(self._manifest)
                if not wrong:
                    raise
                raise NodeError(
                    f"{len(wrong)} of {len(self._manifest.blobs)} blobs of {self._want.pulled} no longer "
                    "have the content in "
                    f"{self._store.root} that was loaded: sha256:{', sha256:'.join(wrong)}. They were "
                    "removed. Load the "
                    "bundle again (bundle_load.yml). Check this node's disk and memory (dmesg)."
                ) from error

    def _drop(self) -> None:
        if not self._keep:
            self._store.drop(self._manifest)

    def _explain(self, message: str) -> str:
        """Say why the engine refused, and remove what is wrong in the store."""
        wrong = self._store.remove_wrong(self._manifest)
        registry = self._want.pull.registry
        if wrong:
            return (
                f"{len(wrong)} of {len(self._manifest.blobs)} blobs of {self._want.pulled} no longer had "
                "the content in "
                f"{self._store.root} that was received: sha256:{', sha256:'.join(wrong)}. They were removed there, and "
                f"the image was pulled from {registry}. Check this node's disk and memory (dmesg)."
            )
        return (
            f"The engine did not take {self._want.pulled} from {self._store.root} over the loopback interface, so it "
            f"was pulled from {registry}. (Docker says: {message})"
        )


def stored_image(root: str, want: ImagePull, keep: bool) -> StoredImage | None:
    """Return the image if the store has all of it."""
    store = Store(root)
    manifest = store.manifest(image_name(want.pull.digest))
    if manifest is None or store.missing(manifest):
        return None
    return StoredImage(store, manifest, want, keep)
