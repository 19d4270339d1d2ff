# SPDX-License-Identifier: Apache-2.0
"""What the control node still refers to, so that pruning keeps it: the lock file's pins, and the deployments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ....module_utils.content.image_ref import parse_ref
from ..observed.local_repositories import is_local_repository
from .lockfile import Lock


def kept_images(lock: Lock, deployments: Iterable[Any]) -> list[str]:
    """Return the names of images: by reference, and by digest as Docker lists them."""
    found = {*lock.images, *lock.builds}
    for ref, pin in lock.images.items():
        found.add(f"{parse_ref(ref).repository}@{pin.digest}")
    found |= {pin.pushed for pin in lock.builds.values() if pin.pushed}
    for item in deployments:
        if isinstance(item, Mapping):
            build = item.get("build")
            tag = build.get("tag") if isinstance(build, Mapping) else None
            found |= {str(name) for name in (item.get("image"), tag) if name}
    return sorted(found)


def pushed_repositories(lock: Lock, deployments: Iterable[Any]) -> list[str]:
    """Return the repositories to which the toolkit pushes images that hosts have built."""
    found = {pin.pushed for pin in lock.builds.values()}
    for item in deployments:
        build = item.get("build") if isinstance(item, Mapping) else None
        found.add(str((build.get("push_to") if isinstance(build, Mapping) else None) or ""))
    return sorted({parse_ref(name).repository for name in found if name})


def kept_weights(lock: Lock, deployments: Iterable[Any] = ()) -> list[str]:
    """Return the commits of models, org/name@commit, and of local repositories, with their directories for names."""
    found = {f"{key.partition('|')[2].partition('@')[0]}@{pin.commit}" for key, pin in lock.models.items()}
    for item in deployments:
        model = str(item.get("model") or "").rstrip("/") if isinstance(item, Mapping) else ""
        if is_local_repository(model):
            found.add("@".join(model.rsplit("/", 1)))
    return sorted(found)
