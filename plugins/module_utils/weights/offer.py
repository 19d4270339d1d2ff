# SPDX-License-Identifier: Apache-2.0
"""Put an image or a model into the content store of a node from which others get it."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from typing import Any

from ..common.disk_space import human_size
from ..common.module_main import NodeError
from ..content import proxies
from ..content.image_ref import ImageRef, parse_ref
from ..content.transfer_names import image_name
from ..docker.client import DockerClient
from ..docker.connect import connect
from ..leases.run_lock import run_lock
from ..store import saved_image
from ..store.blobs import Store
from ..store.image_source import fetch_blobs, list_image
from ..store.manifest import Manifest
from ..store.registry_client import RegistryAccess, RegistryClient
from ..store.repository import LocalRepository, take_repository
from . import in_store, verify
from .snapshot import Snapshot, check_snapshot, missing_files, sizes

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def offer(params: Mapping[str, Any], check: bool) -> dict[str, Any]:
    """Do what the module's parameters say, and return its result. Raise NodeError."""
    store = Store(params["store"])
    with contextlib.nullcontext() if check else run_lock("blob_fetch", params["timeout"]):
        if params["image"]:
            return _image(store, params, check)
        if params["built"]:
            return _built(store, params["built"], connect(params["docker_socket"], check), check)
        if params["repository"]:
            return _repository(store, params["repository"], check)
        return _model(store, _snapshot(params["model"]), check)


def _image(store: Store, params: Mapping[str, Any], check: bool) -> dict[str, Any]:
    given, started = params["image"], time.monotonic()
    ref = parse_ref(given["pull"])
    if not _DIGEST.fullmatch(ref.digest):
        raise NodeError(f"image.pull: {given['pull']!r} does not end in @sha256:<64 hex digits>.")
    if bool(given["username"]) != bool(given["password"]):
        raise NodeError("image: username and password belong together: give both, or none.")
    known = _checked(store, image_name(ref.digest), check)
    what = f"fetch {_name(ref)} from {ref.registry} into {store.root}"
    if known or check:
        return _result(known, [] if known else [what], 0, started)
    access = RegistryAccess(
        given["username"] or "",
        given["password"] or "",
        given["insecure"],
        proxies.environment(params["proxy"]),
        proxies.check_ca_file(params["ca_file"]),
    )
    client = RegistryClient(ref, access)
    manifest = list_image(store, client)
    fetched = fetch_blobs(store, client, manifest)
    store.record(manifest)
    return _result(
        manifest, [f"{what} ({human_size(fetched)} of {human_size(manifest.bytes)})"], fetched, started
    )


def _built(store: Store, tag: str, client: DockerClient, check: bool) -> dict[str, Any]:
    started = time.monotonic()
    found = saved_image.exported_layers(store, client, tag)
    known = _right(store, found, check) if found else None
    what = f"save {tag} from the engine into {store.root}"
    if known or check:
        return _result(known, [] if known else [what], 0, started)
    manifest = saved_image.export_image(store, client, tag)
    return _result(manifest, [f"{what} ({human_size(manifest.bytes)})"], manifest.bytes, started)


def _repository(store: Store, given: Mapping[str, Any], check: bool) -> dict[str, Any]:
    started = time.monotonic()
    repository = LocalRepository(given["path"].rstrip("/"))
    name = given["name"] or repository.name
    what = f"link {repository.path} into {store.root}"
    if check:
        return _result(None, [what], 0, started)
    there = store.manifest(name)
    taken = take_repository(store, repository, name, given["offered"])
    changed = given["offered"] and taken.manifest != there
    result = _result(taken.manifest, [what] if changed else [], 0, started)
    if taken.wrong:
        text = f"{repository.path} is not what its manifest says: {taken.wrong}. It is received again from another host"
        result["warnings"] = [f"{text}. Check this node's disk and memory (dmesg)."]
    return result


def _model(store: Store, snapshot: Snapshot, check: bool) -> dict[str, Any]:
    started = time.monotonic()
    known = _checked(store, in_store.manifest_name(snapshot), check)
    if known and in_store.stored_snapshot(store, snapshot) is None:
        known = None
    what = f"link {snapshot.repo}@{snapshot.commit} from {snapshot.cache_dir} into {store.root}"
    what += f" ({len(snapshot.files)} files, {human_size(snapshot.bytes)})"
    if known or check:
        return _result(known, [] if known else [what], 0, started)
    absent = missing_files(snapshot, sizes(snapshot))
    if absent:
        raise NodeError(
            f"{snapshot.cache_dir} is missing {len(absent)} of {len(snapshot.files)} files of "
            f"{snapshot.repo}@{snapshot.commit} (such as {absent[0]}), so this host cannot give it to others. "
            "Deploy it here, which downloads it (deploy.yml with --limit), and run again."
        )
    return _result(in_store.share(store, snapshot), [what], 0, started)


def _checked(store: Store, name: str, check: bool) -> Manifest | None:
    """Return a manifest that the store has; what is wrong in it is removed, as others would get it from here."""
    known = store.manifest(name)
    return None if known is None or store.missing(known) else _right(store, known, check)


def _right(store: Store, known: Manifest, check: bool) -> Manifest | None:
    return None if not check and store.remove_wrong(known) else known


def _snapshot(given: Mapping[str, Any]) -> Snapshot:
    for path, text in given["hashes"].items():
        if not verify.HASH.fullmatch(str(text)):
            raise NodeError(f"hashes: {text!r} of {path} is neither sha256:… nor git-sha1:… in hex digits.")
    files = {str(path): int(size) for path, size in given["files"].items()}
    names = (given["cache_dir"], given["repo"], given["revision"], given["commit"])
    snapshot = Snapshot(
        *names, files, (), (), {str(path): str(text) for path, text in given["hashes"].items()}
    )
    check_snapshot(snapshot)
    return snapshot


def _result(manifest: Manifest | None, actions: list[str], fetched: int, started: float) -> dict[str, Any]:
    return {
        "changed": bool(actions),
        "actions": actions,
        "fetched": fetched,
        "seconds": round(time.monotonic() - started, 1),
        "manifest": manifest.to_json() if manifest else None,
        **({"manifest_id": manifest.id} if manifest else {}),
        "diff": {"before": {"complete": not actions}, "after": {"complete": True}},
    }


def _name(ref: ImageRef) -> str:
    return f"{ref.repository}@{ref.digest}"
