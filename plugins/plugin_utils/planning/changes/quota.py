# SPDX-License-Identifier: Apache-2.0
"""Check that what a host fetches stays within its store_quota, before anything changes. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ....module_utils.common.errors import Problem
from ....module_utils.common.paths import UNPACK_FACTOR
from ..desired.actions import size
from ..desired.fleet import Host
from ..observed.node_state import NodeState
from ..pins.lockfile import Lock
from .actions import ImageStep, ModelStep
from .disk_space import disk_of, is_linked
from .removable import removable_directories


def image_bytes(state: NodeState) -> int:
    """Return the bytes of the images that the toolkit built or inspected, as Docker lists them unpacked."""
    return sum(item.bytes for item in state.images if item.build or item.software is not None)


def check_quota(
    host: Host,
    images: Iterable[ImageStep],
    models: Iterable[ModelStep],
    arriving: Iterable[tuple[str, int]],
    lock: Lock,
) -> tuple[Problem, ...]:
    """Return a problem if images and weights that the host still needs would exceed its quota.

    arriving: names and bytes of models that come from other hosts of the fleet.
    """
    state, quota = host.state, host.settings.quota
    if state is None or not quota:
        return ()
    needs = [(f"image {item.ref}", item.bytes * UNPACK_FACTOR) for item in images if item.bytes]
    needs += [(f"weights of {item.repo}", item.bytes) for item in models if _own(host, state, item)]
    needs += arriving
    need, own = sum(amount for _what, amount in needs), image_bytes(state)
    have = own + state.held_bytes
    if not need or have + need <= quota:
        return ()
    gain = min(have, sum(amount for _path, amount in removable_directories(host, lock)))
    parts = ", ".join(f"{what} {size(amount)}" for what, amount in needs)
    what = (
        f"store_quota allows {size(quota)}: {size(need)} are needed ({parts}), the toolkit has {size(have)} (images "
        f"{size(own)}, weights and content store {size(state.held_bytes)}); prune.yml would free at most {size(gain)}."
    )
    enough = have + need - gain <= quota
    prune = (
        f"run prune.yml --limit {host.name} -e apply=true (without apply it only lists what it would remove)"
    )
    other = "raise store_quota, or give this host fewer deployments."
    ways = f"Make room: {prune}; or {other}" if enough else f"{other[0].upper()}{other[1:]}"
    return (Problem((), what, ways, (host.name,)),)


def _own(host: Host, state: NodeState, model: ModelStep) -> bool:
    """Return whether a download takes space on this host: not if it is linked, or on a file system of the network."""
    disk = disk_of(state.disks, model.cache_dir)
    return not is_linked(host, model) and not (disk and disk.network)
