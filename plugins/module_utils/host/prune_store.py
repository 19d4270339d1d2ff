# SPDX-License-Identifier: Apache-2.0
"""What the content store has and prune.py judges: by manifest, complete or received in part, and of no manifest."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator

from ..content.prune import FoundBlobs
from ..disk.tree_bytes import tree_bytes
from ..observe.source import listing
from ..store.blobs import Store
from ..swarm.swarm_member import transferring

LOOSE = "loose"  # the id of blobs of no manifest
INCOMING = "incoming/"  # begins the id of what was received in part
DAMAGED = "manifests/"  # begins the id of a file that is not a manifest: left by a write that was killed, or damaged


def found_stored(store: Store) -> Iterator[FoundBlobs]:
    """Yield what the content store has.

    What a program moves counts as being received, and so does what it writes next to it.
    """
    complete, begun = store.manifests(), store.unfinished()
    moved = {name for name in (*begun, *(item.id for item in complete)) if transferring(name)}
    whole = [*complete, *(item for item in begun.values() if item)]
    users = Counter(sha256 for item in {item.id: item for item in whole}.values() for sha256 in item.blobs)
    for item in complete:
        own = [name for name in item.blobs if users[name] == 1]
        yield FoundBlobs(item.id, item.name, _own_bytes(store, own), item.id in moved)
    for name, part in begun.items():
        own = [sha256 for sha256 in part.blobs if users[sha256] == 1] if part and part not in complete else []
        path = os.path.join(store.root, "incoming", name)
        active = name in moved or (bool(moved) and not os.path.isdir(path))
        what = part.name if part else "unfinished-transfer"
        yield FoundBlobs(f"{INCOMING}{name}", what, tree_bytes(path) + _own_bytes(store, own), active)
    known = {f"{item.id}.json" for item in complete}
    for name in listing(f"{store.root}/manifests"):
        if name not in known:
            size = tree_bytes(f"{store.root}/manifests/{name}")
            yield FoundBlobs(f"{DAMAGED}{name}", "damaged-manifest", size)
    loose = [name for name in store.blobs() if name not in users]
    if loose:
        yield FoundBlobs(LOOSE, "blobs-of-no-manifest", _own_bytes(store, loose))


def remove_stored(store: Store, name: str) -> None:
    """Remove what has this id in found_stored(), and the blobs that nothing else has."""
    if name == LOOSE:
        store.sweep(store.blobs())
    elif name.startswith(INCOMING):
        store.abandon(name[len(INCOMING) :])
    elif name.startswith(DAMAGED):
        os.unlink(os.path.join(store.root, name))
    else:
        for item in store.manifests():
            if item.id == name:
                store.drop(item)


def _own_bytes(store: Store, names: Iterable[str]) -> int:
    """Return the size of blobs that are not also in a cache of weights."""
    size = 0
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            found = os.stat(store.path(name))
            size += found.st_size if found.st_nlink == 1 else 0
    return size
