# SPDX-License-Identifier: Apache-2.0
"""Weights in the caches, what the content store has for other nodes, and space on the disks."""

from __future__ import annotations

import json
import os

from .held_bytes import network_devices
from .source import Source, listing

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any


def size_of(directory: str) -> int:
    """Return the bytes of a directory's files. Files may vanish at any time: a download renames them."""
    size = 0
    for name in listing(directory):
        try:
            size += os.stat(os.path.join(directory, name)).st_size
        except FileNotFoundError:
            continue
    return size


def regular_text(path: str, limit: int = 1 << 26) -> str:
    """Return a file's text. Raise OSError for a link, ValueError for a pipe and the like: containers write there."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_mode & 0o170000 != 0o100000:
            raise ValueError("not a regular file")
        return os.read(fd, min(found.st_size, limit)).decode("utf-8")
    finally:
        os.close(fd)


def read_model(path: str, cache_dir: str) -> dict[str, Any]:
    """Check one marker's files by their sizes. Raise OSError, ValueError or KeyError for a broken marker."""
    marker = json.loads(regular_text(path))
    snapshot = os.path.join(os.path.dirname(os.path.dirname(path)), "snapshots", marker["commit"])
    complete = True
    for name, size in marker["files"].items():
        try:
            complete = complete and os.stat(os.path.join(snapshot, name)).st_size == size
        except FileNotFoundError:
            complete = False
    return {
        "cache_dir": cache_dir,
        "repo": marker["repo"],
        "commit": marker["commit"],
        "complete": complete,
        "bytes": marker["bytes"],
        "files": len(marker["files"]),
        "exclude": marker["exclude"],
        "include": marker["include"],
        "verified": bool(marker.get("verified")),
    }


def read_models(source: Source, cache_dirs: list[str]) -> tuple[list[Any], list[Any]]:
    """Return (weights with a marker, repositories without one and what they contain so far) of every cache."""
    models: list[dict[str, Any]] = []
    fetching: list[dict[str, Any]] = []
    for cache_dir in cache_dirs:
        hub = os.path.join(cache_dir, "hub")
        for repo in (name for name in listing(hub) if name.startswith("models--")):
            markers = os.path.join(hub, repo, ".instinct-fleet")
            names = [name for name in listing(markers) if name.endswith(".json")]
            if not names:
                name = repo[len("models--") :].replace("--", "/")
                size = size_of(os.path.join(hub, repo, "blobs"))
                fetching.append({"cache_dir": cache_dir, "repo": name, "bytes": size})
            for name in names:
                path = os.path.join(markers, name)
                try:
                    models.append(read_model(path, cache_dir))
                except FileNotFoundError:  # removed meanwhile
                    continue
                except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                    source.problem(path, f"broken marker: {type(error).__name__}: {error}")
    return models, fetching


def read_store(source: Source, data_dir: str) -> list[str]:
    """Return the names of what the content store has complete: a manifest is there only as long as its blobs are."""
    directory = os.path.join(data_dir, "store", "manifests")
    found = []
    for name in listing(directory):
        if not name.endswith(".json"):
            continue
        path = os.path.join(directory, name)
        try:
            with open(path, encoding="utf-8") as file:
                found.append(str(json.load(file)["name"]))
        except FileNotFoundError:  # removed meanwhile
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            source.problem(path, f"broken manifest: {type(error).__name__}: {error}")
    return sorted(found)


def read_disk(source: Source, paths: list[str]) -> list[dict[str, Any]]:
    """Return the space for each path, on the file system of its nearest existing parent."""
    found = []
    network = network_devices(source)
    for path in dict.fromkeys(paths):
        place = path
        while not os.path.exists(place) and os.path.dirname(place) != place:
            place = os.path.dirname(place)
        try:
            space, device = os.statvfs(place), os.stat(place).st_dev
        except OSError as error:
            source.problem(path, error)
            continue
        found.append({
            "path": path,
            "free_bytes": space.f_bavail * space.f_frsize,
            "total_bytes": space.f_blocks * space.f_frsize,
            "device": device,
            **_network(network.get(f"{os.major(device)}:{os.minor(device)}")),
        })  # fmt: skip
    return found


def _network(kind: str | None) -> dict[str, str]:
    return {"network": kind} if kind else {}
