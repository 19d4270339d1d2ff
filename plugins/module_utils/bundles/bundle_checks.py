# SPDX-License-Identifier: Apache-2.0
"""Refuse a bundle that is not whole, not the wanted one, or made for another lock, before anything is read from it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ..common.disk_space import human_size
from ..common.files import read_text
from ..common.hashing import text_hash
from ..common.module_main import NodeError
from ..store.blobs import Store
from .bundle_index import BundleIndex, Volume, different_pins
from .bundle_write import LOCK

NAMED = 5
"""Wrong things that a message names."""


def refuse_other_bundle(index: BundleIndex, wanted: str, directory: str) -> None:
    """Raise NodeError if the bundle has another id than the wanted one; "" wants any."""
    if wanted and index.id != wanted:
        raise NodeError(
            f"The bundle in {directory} has the id {index.id}, but {wanted} was expected: it is another bundle, or its "
            "content was altered. Nothing was read from it. Ask whoever made it for the id, by another "
            "way than this disk."
        )


def absent_volume(volume: Volume, directory: str) -> list[str]:
    """Return in words what is missing of a volume."""
    path = os.path.join(directory, volume.name)
    if not os.path.exists(path):
        return [f"{volume.name} is missing ({human_size(volume.size)})"]
    size = os.path.getsize(path)
    return [] if size == volume.size else [f"{volume.name} has {size} bytes instead of {volume.size}"]


def lock_problems(index: BundleIndex, directory: str) -> list[str]:
    """Return in words whether the lock file in the bundle is missing or differs."""
    text = read_text(os.path.join(directory, LOCK))
    if text is None:
        return [f"{LOCK} is missing"]
    return [] if text_hash(text) == index.lock else [f"{LOCK} has different content"]


def refuse_other_lock(index: BundleIndex, pins: Mapping[str, Mapping[str, str]], directory: str) -> None:
    """Raise NodeError if the lock next to the inventory pins other content."""
    different = different_pins(index.pins, pins)
    if different:
        raise NodeError(
            f"The bundle in {directory} was made for another lock than the {LOCK} next to the inventory: "
            f"{first_items(different)}. Put the bundle's own lock file there "
            f"({os.path.join(directory, LOCK)} on this host), "
            "or load the bundle that was made with yours."
        )


def refuse_without_base(index: BundleIndex, missing: Mapping[str, int], store: Store) -> None:
    """Raise NodeError if the store does not have what an earlier bundle must have put there."""
    lacking = sorted(missing.keys() - index.carried)
    if lacking:
        names = [item.name for item in index.manifests if not item.blobs.keys().isdisjoint(lacking)]
        raise NodeError(
            f"This bundle adds to an earlier one, and {store.root} is missing {len(lacking)} blobs of that one "
            f"(of {first_items(names)}). Load the earlier bundle {index.base[:12]} first, then this one."
        )


def first_items(items: Sequence[str]) -> str:
    """Return the first items for a message, and how many more there are."""
    more = f"; and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return "; ".join(items[:NAMED]) + more
