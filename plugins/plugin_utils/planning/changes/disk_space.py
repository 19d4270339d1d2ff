# SPDX-License-Identifier: Apache-2.0
"""Check that there is room for pulls and downloads, before anything changes."""

from __future__ import annotations

from collections.abc import Iterable

from ....module_utils.common.errors import Problem
from ....module_utils.common.paths import DATA_DIR, DOCKER_ROOT, UNPACK_FACTOR
from ....module_utils.content.transfer_names import model_name
from ..desired.actions import size
from ..desired.fleet import Host
from ..observed.node_state import Disk
from ..pins.lockfile import Lock
from .actions import ImageStep, ModelStep
from .removable import removable_directories


def check_disk(
    host: Host,
    images: Iterable[ImageStep],
    models: Iterable[ModelStep],
    arriving: Iterable[tuple[str, int]],
    lock: Lock,
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Return a problem for each file system that is too small, and warnings for what could not be checked.

    arriving: names and bytes of models that come from other hosts of the fleet.
    """
    if host.state is None:
        return (), ()
    needs: list[tuple[str, int, str]] = []
    warnings: list[str] = []
    root = host.state.docker_root or DOCKER_ROOT
    for image in images:
        if image.bytes is not None:
            needs.append((root, image.bytes * UNPACK_FACTOR, f"image {image.ref}"))
    for model in models:
        left = 0 if is_linked(host, model) else max(0, model.bytes - _partial(host, model))
        needs.append((model.cache_dir, left, f"weights of {model.repo}"))
    needs.extend((DATA_DIR, amount, what) for what, amount in arriving)
    by_device: dict[int, list[tuple[str, int, str]]] = {}
    disks: dict[int, Disk] = {}
    for path, amount, what in needs:
        disk = disk_of(host.state.disks, path)
        if disk is None:
            warnings.append(f"the free space of {path} is unknown; {what} needs {size(amount)} there")
            continue
        disks[disk.device] = disk
        by_device.setdefault(disk.device, []).append((path, amount, what))
    problems: list[Problem] = []
    for device, entries in sorted(by_device.items()):
        need, free = sum(amount for _path, amount, _what in entries), disks[device].free_bytes
        if need <= free:
            continue
        paths = " and ".join(dict.fromkeys(path for path, *_unused in entries))
        parts = ", ".join(f"{what} {size(amount)}" for _path, amount, what in entries)
        spare = removable_directories(host, lock)
        gain = sum(amount for path, amount in spare if _device(host.state.disks, path) == device)
        freed = f"; prune.yml would free at most {size(gain)}" if gain else ""
        what = f"not enough disk space for {paths}: {size(need)} are needed ({parts}), {size(free)} are free{freed}."
        problems.append(Problem((), what, _fix(host, entries, root, bool(gain)), (host.name,)))
    return tuple(problems), tuple(warnings)


def is_linked(host: Host, model: ModelStep) -> bool:
    """Return whether the content store has the files on the cache's file system, where links take no space."""
    state = host.state
    if state is None or not state.stored or not model.files:
        return False
    store, cache = disk_of(state.disks, DATA_DIR), disk_of(state.disks, model.cache_dir)
    if store is None or cache is None or store.device != cache.device:
        return False
    return model_name(model.repo, model.commit, model.files) in state.stored


def _fix(host: Host, entries: Iterable[tuple[str, int, str]], root: str, prune: bool) -> str:
    paths = {path for path, *_unused in entries}
    ways = [f"remove what nothing uses (prune.yml --limit {host.name} lists it)"] if prune else []
    if root in paths:
        ways.append("move Docker's data-root to a larger file system")
    if paths - {root, DATA_DIR}:
        ways.append("point hf_model_cache_dir at a larger file system")
    if DATA_DIR in paths:
        ways.append(f"mount a larger file system at {DATA_DIR}")
    return f"Make room: {', or '.join(ways)}."


def _device(disks: Iterable[Disk], path: str) -> int | None:
    disk = disk_of(disks, path)
    return disk.device if disk else None


def _partial(host: Host, model: ModelStep) -> int:
    """Return the bytes that an interrupted download of this repository left in the cache."""
    if host.state is None:
        return 0
    return sum(
        item.bytes
        for item in host.state.fetching
        if (item.cache_dir.rstrip("/"), item.repo) == (model.cache_dir, model.repo)
    )


def disk_of(disks: Iterable[Disk], path: str) -> Disk | None:
    """Return the entry for this path, or for the nearest directory above it."""
    above = [disk for disk in disks if path == disk.path or path.startswith(disk.path.rstrip("/") + "/")]
    return max(above, key=lambda disk: len(disk.path), default=None)
