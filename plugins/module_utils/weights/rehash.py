# SPDX-License-Identifier: Apache-2.0
"""Read again everything that a node keeps of images and weights, and remove what has changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.disk_space import human_size
from ..common.module_main import NodeError
from ..content.model_manifest import MANIFEST
from ..disk.beneath import names_below
from ..disk.hub_files import MARKERS, HubRepository
from ..store.blobs import Store
from ..store.repository import LocalRepository
from ..store.repository_check import local_repositories, reread
from . import verify
from .snapshot import VERIFIED, Snapshot, check_snapshot, remove_file, sizes

_NAMED = 5  # wrong files that a message names


@dataclass(frozen=True)
class WrongFile:
    """A file with other content than it once had. used: instances may have loaded it."""

    text: str
    used: bool


def rehash(store: Store, caches: Sequence[str], models: str, check: bool) -> dict[str, Any]:
    """Hash all blobs, snapshots and local repositories. models: where these are.

    Raise NodeError with what is wrong; unless `check`, that is removed.
    """
    snapshots = [item for directory in caches for item in _snapshots(directory)]
    unknown = [item.repo for item in snapshots if not item.hashes]
    blobs = store.blobs()
    size = sum(store.size(name) or 0 for name in blobs)
    # Before the store, whose blobs are the same files: what is wrong has two names, and both are removed.
    wrong = [*_made(models, check), *_stored(store, check), *_cached(snapshots, check)]
    amount = size + sum(item.bytes for item in snapshots)
    result: dict[str, Any] = {
        "changed": bool(wrong) and not check,
        "bytes": amount,
        "blobs": len(blobs),
        "snapshots": len(snapshots),
        "wrong": [item.text for item in wrong],
        "actions": [f"remove {item.text}" for item in wrong],
        "warnings": _unhashed(unknown),
    }
    if wrong:
        raise NodeError(_explain(wrong, amount, check), **result)
    return result


def _stored(store: Store, check: bool) -> Iterator[WrongFile]:
    for sha256, found in store.verify().items():
        parts = [item.name for item in store.manifests() if sha256 in item.blobs]
        if not check:
            store.remove(sha256)
        of = f" of {', '.join(parts)}" if parts else ""
        yield WrongFile(f"{store.path(sha256)}{of} (it has SHA-256 {found})", False)


def _made(models: str, check: bool) -> Iterator[WrongFile]:
    for path in local_repositories(models):
        try:
            different = reread(LocalRepository(path))
        except NodeError as error:  # its manifest is unusable
            yield WrongFile(str(error).partition(". ")[0], True)
            continue
        for name in (*different.changed, *different.added):
            if not check:
                os.unlink(os.path.join(path, name))
            yield WrongFile(f"{name} of {path} (it is not what {MANIFEST} says)", True)


def _cached(snapshots: Iterable[Snapshot], check: bool) -> Iterator[WrongFile]:
    for snapshot in snapshots:
        found = verify.hash_snapshot(snapshot, _there(snapshot))
        for name, text in sorted(found.items()):
            if text != snapshot.hashes[name]:
                if not check:
                    remove_file(snapshot, name)
                what = f"{name} of {snapshot.repo}@{snapshot.commit[:12]} in {snapshot.cache_dir}"
                yield WrongFile(f"{what} (it is {text}, expected {snapshot.hashes[name]})", True)


def _there(snapshot: Snapshot) -> dict[str, str]:
    """Return how the files that are there are hashed; a missing one is the next deploy's."""
    found = sizes(snapshot)
    return {
        name: text.partition(":")[0] for name, text in snapshot.hashes.items() if found.get(name) is not None
    }


def _snapshots(cache_dir: str) -> Iterator[Snapshot]:
    """Yield the snapshots that a download has completed, with the hashes that it found."""
    for repo in names_below(cache_dir, "hub"):
        repository = HubRepository(cache_dir, repo)
        for name in repository.names(MARKERS) if repo.startswith("models--") else ():
            text = repository.read(f"{MARKERS}/{name}") if name.endswith(".json") else None
            if text is not None:
                yield _snapshot(repository, f"{MARKERS}/{name}", text)


def _snapshot(repository: HubRepository, place: str, text: str) -> Snapshot:
    path, cache_dir = os.path.join(repository.cache_dir, repository.place, place), repository.cache_dir
    try:
        marker: Mapping[str, Any] = json.loads(text)
        names = (cache_dir, marker["repo"], marker["revision"], marker["commit"], marker["files"])
        hashes = {
            name: str(text) for name, text in (marker.get(VERIFIED) or {}).items() if name in marker["files"]
        }
        snapshot = Snapshot(*names, (), (), hashes)
        check_snapshot(snapshot)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NodeError(
            f"{path} is broken ({type(error).__name__}: {error}). Delete it; the next deploy verifies the files again."
        ) from error
    return snapshot


def _unhashed(repos: Sequence[str]) -> list[str]:
    if not repos:
        return []
    return [
        f"{', '.join(sorted(set(repos)))}: no hashes are recorded. Run playbooks/deploy.yml -e verify=true once."
    ]


def _explain(wrong: Sequence[WrongFile], amount: int, check: bool) -> str:
    named = "; ".join(item.text for item in wrong[:_NAMED])
    more = f"; and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    done = (
        "They would be removed"
        if check
        else "They were removed: run playbooks/deploy.yml to fetch them again"
    )
    text = (
        f"Wrong content in {len(wrong)} files of {human_size(amount)} that were read: {named}{more}. "
        f"{done}. Check this "
        "node's disk and memory (dmesg)."
    )
    if any(item.used for item in wrong):
        text += (
            " Instances that loaded them give wrong answers until they load good ones: playbooks/restart.yml."
        )
    return text
