# SPDX-License-Identifier: Apache-2.0
"""Take files of the control node into the content store of the node that makes a bundle, and give them back.

They may be the users' own texts and settings, so only root reads them there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from ..common.disk_space import free_bytes, human_size
from ..common.module_main import NodeError
from ..content.transfer_names import CONTROL_FILES
from ..store.blobs import Store
from ..store.export import export_copy
from ..store.manifest import Manifest
from .bundle_write import DISK_MARGIN


def take_files(store: Store, manifest: Manifest, received: Mapping[str, str], check: bool) -> dict[str, Any]:
    """Take what was received, by SHA-256, and return the module's result with what the store does not have.

    Without anything received, what the store has is hashed again. Raise NodeError for other content.
    """
    if not received and not check:
        store.remove_wrong(manifest)
    store.private = private_blobs([manifest, *store.manifests()])
    workspace = store.workspace("control-files") if received else ""
    try:
        for sha256, path in received.items():
            if sha256 not in manifest.blobs:
                raise NodeError(f"{path} is not a file of the manifest.")
            own = os.path.join(workspace, sha256)
            shutil.copyfile(path, own)  # a link would still be the remote user's
            os.unlink(path)
            store.add(own, sha256, manifest.blobs[sha256], move=True)
    finally:
        if workspace:
            shutil.rmtree(workspace, ignore_errors=True)
    missing = store.missing(manifest)
    need, free = sum(missing.values()) + DISK_MARGIN, free_bytes(store.root)
    if missing and free < need:
        raise NodeError(
            f"Not enough disk for the files of the control node: {store.root} has {human_size(free)} free, and "
            f"{human_size(need)} are needed. Make room (playbooks/prune.yml), and run again."
        )
    known = any(item == manifest for item in store.manifests())
    if not missing and not known and not check:
        store.record(manifest)
        for other in [item for item in store.manifests() if item.name == CONTROL_FILES and item != manifest]:
            store.drop(other)
    if not check:
        hide(store)
    count, size = len(missing), human_size(sum(missing.values()))
    actions = (
        []
        if known and not missing
        else [f"take {len(manifest.files)} files of the control node into {store.root}"]
    )
    return {
        "changed": bool(actions),
        "actions": actions,
        "missing": missing,
        "manifest": None if missing else manifest.to_json(),
        "diff": {
            "before": {"missing": f"{count} files, {size}" if count else "nothing"},
            "after": {"missing": "nothing"},
        },
    }


def private_blobs(manifests: Iterable[Manifest]) -> frozenset[str]:
    """Return the blobs that are files of the control node, and nothing else."""
    own, others = set[str](), set[str]()
    for item in manifests:
        (own if item.name == CONTROL_FILES else others).update(item.blobs)
    return frozenset(own - others)


def hide(store: Store) -> None:
    """Let only root read the private blobs that are there, also those that an earlier version left readable."""
    for sha256 in store.private:
        with contextlib.suppress(FileNotFoundError):
            os.chmod(store.path(sha256), 0o600)


def export_files(store: Store, wanted: Mapping[str, str]) -> dict[str, Any]:
    """Copy files to where the connection's user reads them. wanted: paths by SHA-256. Raise NodeError."""
    own = {sha256 for item in store.manifests() if item.name == CONTROL_FILES for sha256 in item.blobs}
    for sha256, path in wanted.items():
        if sha256 not in own or store.size(sha256) is None:
            raise NodeError(
                f"{store.root} has no file sha256:{sha256} of a control node. Run bundle_load.yml again."
            )
        export_copy(store.path(sha256), path)
    return {"changed": False, "actions": []}


def files_of(manifests: Iterable[Manifest]) -> list[dict[str, Any]]:
    """Return the files of the control node among a bundle's manifests, as the module control_files takes them."""
    return [data for item in manifests if item.name == CONTROL_FILES for data in item.to_json()["files"]]
