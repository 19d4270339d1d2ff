# SPDX-License-Identifier: Apache-2.0
"""What the first start of an instance compiled, for starts of equal instances: packed here, restored elsewhere.

Everything is best effort: what cannot be restored is compiled again, and the result says why.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from ..common import paths
from ..common.disk_space import free_bytes, human_size
from ..common.files import make_private
from ..common.module_main import NodeError
from ..content.transfer_names import caches_name
from ..engines.names import NAME
from ..store.blob_files import hash_file
from ..store.blobs import Store, WrongContent
from ..store.export import export_copy
from ..store.manifest import ManifestFile, manifest_of
from .cache_files import check_archive, pack, unpack
from .cache_marker import KEY, mark, warm_key

PREFIX = "caches "
THREADS = 8  # instances that are restored at once
BROKEN = (NodeError, OSError, tarfile.TarError, EOFError, zlib.error)
_HEADROOM = 2**30


@dataclass(frozen=True)
class CachedInstance:
    """An instance, and the key of what its caches depend on."""

    name: str
    key: str

    @property
    def directory(self) -> str:
        """Return its cache directory."""
        return paths.cache_dir(self.name)


@dataclass(frozen=True)
class CacheBundle:
    """A bundle, as the control node recorded it. content: bytes of the files in it."""

    sha256: str
    bytes: int
    content: int


def parse_instances(items: Sequence[Mapping[str, Any]]) -> list[CachedInstance]:
    """Return the instances of the module's parameters. Raise NodeError."""
    found = [CachedInstance(str(item.get("name")), str(item.get("cache_key"))) for item in items]
    for item in found:
        if not NAME.fullmatch(item.name) or not KEY.fullmatch(item.key):
            raise NodeError(
                f"instances: {item.name!r} with cache_key {item.key!r} is not an instance of the plan. Take both from "
                "its servers: fleet_host_plan.servers."
            )
    return found


def parse_bundles(items: Mapping[str, Mapping[str, Any]]) -> dict[str, CacheBundle]:
    """Return the bundles of the module's parameters, by key. Raise NodeError."""
    try:
        return {
            key: CacheBundle(str(item["sha256"]), int(item["bytes"]), int(item["content"]))
            for key, item in items.items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise NodeError(f"bundles: each needs sha256, bytes and content ({error!r}).") from error


def _record(store: Store, key: str, sha256: str, size: int) -> None:
    store.record(manifest_of(caches_name(key), [ManifestFile("caches.tar.gz", size, sha256)]))


# ---- packing -----------------------------------------------------------------------------------------


def pack_caches(
    instances: Sequence[CachedInstance], limit: int, export: str, check: bool, store: Store | None = None
) -> dict[str, Any]:
    """Pack the caches of instances, one of each key; copy the bundles to the directory `export`, if given."""
    store = store or Store()
    result: dict[str, Any] = {"changed": False, "actions": [], "bundles": {}, "warnings": []}
    for instance in {item.key: item for item in reversed(instances)}.values():
        if check:  # it is not known yet what there will be
            continue
        try:
            found = _pack(instance, limit, export, store)
        except (NodeError, OSError) as error:
            result["warnings"].append(
                f"{instance.name}: its caches were not kept for other instances: {error}. They start cold."
            )
            continue
        result["bundles"][instance.key] = found
        if found["files"]:
            result["actions"].append(
                f"pack {instance.directory} ({found['files']} files, {human_size(found['bytes'])})"
            )
            result["changed"] = True
    return result


def _pack(instance: CachedInstance, limit: int, export: str, store: Store) -> dict[str, Any]:
    os.makedirs(paths.DATA_DIR, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".caches.", dir=os.path.dirname(store.root))
    try:
        with os.fdopen(descriptor, "wb") as stream:
            packed = pack(instance.directory, stream, limit)
        if packed.files:
            store.add(temporary, packed.sha256, packed.bytes)
            _record(store, instance.key, packed.sha256, packed.bytes)
            mark(instance.directory, instance.key, packed.sha256)
            if export:
                export_copy(temporary, os.path.join(export, packed.sha256))
    finally:
        os.unlink(temporary)
    return asdict(packed)


# ---- restoring ---------------------------------------------------------------------------------------


def restore_caches(
    instances: Sequence[CachedInstance],
    bundles: Mapping[str, CacheBundle],
    files: Mapping[str, str],
    check: bool,
    store: Store | None = None,
) -> dict[str, Any]:
    """Restore bundles into caches of instances that do not have them. files: bundles that were sent here, by SHA-256.

    `missing` of the result: what must be sent here first. Names that are there already stay as they are.
    """
    store = store or Store()
    result: dict[str, Any] = {
        "changed": False,
        "actions": [],
        "warm": [],
        "missing": [],
        "warnings": [],
    }
    lacking = [item for item in instances if item.key in bundles and warm_key(item.directory) != item.key]
    fetched: dict[str, bool | str] = {}
    for key in dict.fromkeys(item.key for item in lacking):
        try:
            fetched[key] = _fetched(key, bundles[key], files, check, store)
        except BROKEN as error:
            fetched[key] = str(error)
    result["missing"] = sorted({bundles[key].sha256 for key, there in fetched.items() if there is False})
    todo = [item for item in lacking if fetched[item.key] is True]

    def restore(instance: CachedInstance) -> int | str:
        try:
            return 0 if check else _restore(instance, bundles[instance.key], store)
        except BROKEN as error:
            return str(error)

    with ThreadPoolExecutor(max(1, min(THREADS, len(todo)))) as pool:
        ends = dict(zip(todo, pool.map(restore, todo)))
    for item in lacking:
        end = ends.get(item, fetched[item.key])
        if isinstance(end, str):
            result["warnings"].append(f"{item.name} starts cold: its caches cannot be restored: {end}.")
        elif item in ends:
            result["actions"].append(f"restore {item.directory} from {bundles[item.key].sha256[:12]}")
            result["warm"].append(item.name)
            result["changed"] = True
    return result


def _fetched(key: str, bundle: CacheBundle, files: Mapping[str, str], check: bool, store: Store) -> bool:
    """Return whether the store has the bundle, with the right content. Take what was sent, which check mode assumes."""
    if check:
        return True
    if store.has(bundle.sha256, bundle.bytes):
        if hash_file(store.path(bundle.sha256)) == bundle.sha256:
            check_archive(store.path(bundle.sha256))
            return True
        store.remove(bundle.sha256)
    if bundle.sha256 not in files:
        return False
    try:
        store.add(files[bundle.sha256], bundle.sha256, bundle.bytes)
    except WrongContent as error:
        raise NodeError(f"what arrived here differs from what was recorded: {error}") from error
    check_archive(store.path(bundle.sha256))
    _record(store, key, bundle.sha256, bundle.bytes)
    return True


def _restore(instance: CachedInstance, bundle: CacheBundle, store: Store) -> int:
    if free_bytes(instance.directory) < bundle.content + _HEADROOM:
        raise NodeError(f"{instance.directory} has no space for {human_size(bundle.content)}")
    make_private(os.path.dirname(instance.directory))
    os.makedirs(instance.directory, mode=0o755, exist_ok=True)
    count = unpack(store.path(bundle.sha256), instance.directory)
    mark(instance.directory, instance.key, bundle.sha256)
    return count
