# SPDX-License-Identifier: Apache-2.0
"""Refuse a bundle that is not whole, not the wanted one, or made for another lock, before anything is read of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ..common.disk_space import sized
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
            f"The bundle in {directory} has the id {index.id}, and {wanted} is expected: it is another bundle, or its "
            "content was altered. Nothing was read of it. Get the id, by another way than the disk, from who made it."
        )


def absent_volume(volume: Volume, directory: str) -> list[str]:
    """Say what of a volume is not there."""
    path = os.path.join(directory, volume.name)
    if not os.path.exists(path):
        return [f"{volume.name} is missing ({sized(volume.size)})"]
    size = os.path.getsize(path)
    return [] if size == volume.size else [f"{volume.name} has {size} bytes instead of {volume.size}"]


def lock_problems(index: BundleIndex, directory: str) -> list[str]:
    """Say whether the lock file in the bundle is missing or another one."""
    text = read_text(os.path.join(directory, LOCK))
    if text is None:
        return [f"{LOCK} is missing"]
    return [] if text_hash(text) == index.lock else [f"{LOCK} has other content"]


def refuse_other_lock(index: BundleIndex, pins: Mapping[str, Mapping[str, str]], directory: str) -> None:
    """Raise NodeError if the lock beside the inventory pins other content."""
    different = different_pins(index.pins, pins)
    if different:
        raise NodeError(
            f"The bundle in {directory} is for another lock than the {LOCK} beside the inventory: "
            f"{listed(different)}. Put the bundle's own there ({os.path.join(directory, LOCK)} on this host), "
            "or load the bundle that was made with yours."
        )


def refuse_without_base(index: BundleIndex, missing: Mapping[str, int], store: Store) -> None:
    """Raise NodeError if the store lacks what an earlier bundle has to have brought."""
    lacking = sorted(missing.keys() - index.carried)
    if lacking:
        names = [item.name for item in index.manifests if not item.blobs.keys().isdisjoint(lacking)]
        raise NodeError(
            f"This bundle has only what an earlier one lacks, and {store.root} lacks {len(lacking)} blobs of that "
            f"(of {listed(names)}). Load the earlier bundle {index.base[:12]} first, then this one."
        )


def listed(items: Sequence[str]) -> str:
    """Return the first items for a message, and how many more there are."""
    more = f"; and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return "; ".join(items[:NAMED]) + more
