# SPDX-License-Identifier: Apache-2.0
"""Estimate what prune.yml would free on a host, from what a plan has already read of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ....module_utils.common.paths import DOCKER_ROOT
from ....module_utils.content.prune import IMAGE, FoundImage, FoundThings, FoundWeights, Roots, removals
from ..desired.fleet import Host
from ..pins.lockfile import Lock
from ..pins.prune_roots import kept_images, kept_weights, pushed_repositories


def removable_directories(host: Host, lock: Lock) -> list[tuple[str, int]]:
    """Return directories of images and of weights, each with the bytes there that nothing uses.

    It is an upper bound: images share layers, and weights share files; only the host knows other tools' containers.
    """
    state = host.state
    if state is None:
        return []
    found = FoundThings(
        images=tuple(
            FoundImage(item.id, (*item.tags, *item.digests), item.bytes, probed=item.software is not None)
            for item in state.images
        ),
        weights=tuple(
            FoundWeights(item.cache_dir, item.repo, item.commit, item.bytes) for item in state.models
        ),
    )
    root = state.docker_root or DOCKER_ROOT
    return [
        (root if item.kind == IMAGE else item.name.partition("|")[0], item.bytes)
        for item in removals(found, _roots(host, lock))
    ]


def _roots(host: Host, lock: Lock) -> Roots:
    histories = host.state.generations if host.state else ()
    kept = [item for history in histories for item in history.kept]
    weights = (text.partition("@") for text in kept_weights(lock))
    return Roots(
        images=frozenset((*kept_images(lock, ()), *_wanted(host), *(item.image for item in kept))),
        overrides=host.settings.overrides,
        pushed=frozenset(pushed_repositories(lock, _builds(host))),
        weights=frozenset(
            [
                *((repo, commit) for repo, _unused, commit in weights),
                *(pair for item in kept for pair in item.weights),
            ]
        ),
        fetching=frozenset(item.repo for item in host.state.fetching) if host.state else frozenset(),
    )


def _wanted(host: Host) -> Iterator[str]:
    for item in host.deployments:
        yield item.image
        if item.build:
            yield item.build.tag


def _builds(host: Host) -> list[dict[str, dict[str, str]]]:
    return [{"build": {"push_to": item.build.push_to}} for item in host.deployments if item.build]
