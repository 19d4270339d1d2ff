# SPDX-License-Identifier: Apache-2.0
"""What the toolkit stores on a host: records, caches, and, removed only on request, weights, content store and images.

Weights are removed as prune.yml does: commits with the toolkit's marker, and nothing that another tool put there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ..common.disk_space import human_size
from ..content.image_names import Override
from ..content.prune import IMAGE, WEIGHTS, FoundThings, Leftover, Roots, removals
from ..disk.beneath import names_below, remove_below
from ..disk.tree_bytes import tree_bytes
from ..docker.client import DockerClient, Json
from ..observe.held_bytes import network_devices
from ..observe.source import Source
from .forget_parts import Part, tree_parts
from .prune_node import PrunePaths, found_things, mounted_by_others, remove_leftover

STORED = ("models", "store", "quantize/hashes")
"""What takes long to make again, in addition to the caches of weights."""
PROBES = "images"
"""What was read of images, by which prune.yml recognises the toolkit's own."""


@dataclass(frozen=True)
class ForgetRequest:
    """What is removed in addition to all that site.yml alone makes again.

    overrides, pushed: what else the toolkit calls its images.
    """

    weights: bool = False
    images: bool = False
    overrides: tuple[Override, ...] = ()
    pushed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class HostData:
    """A host's data. others: containers of other tools. things: what is there now."""

    client: DockerClient
    node: PrunePaths
    wanted: ForgetRequest
    others: Sequence[Json]
    things: FoundThings

    @property
    def sharing(self) -> dict[str, str]:
        """Return the caches of weights that stay, each with the reason."""
        network, found = network_devices(Source()), {}
        for cache in self.node.caches:
            if not os.path.isdir(cache):
                continue
            device = os.stat(cache).st_dev
            kind = network.get(f"{os.major(device)}:{os.minor(device)}")
            if kind:
                found[cache] = f"is on a network file system ({kind}), which other hosts may use"
            elif mounted_by_others(cache, self.others):
                found[cache] = "is mounted by a container of another tool"
        return found

    def parts(self) -> Iterator[Part]:
        """Yield what is removed: weights and images before the records by which they are known as the toolkit's."""
        sharing = self.sharing
        yield from (self._leftover(item) for item in self._removable())
        for cache in self.node.caches if self.wanted.weights else ():
            if cache not in sharing:
                yield from self._emptied(cache)
        yield from tree_parts(self.node.state_dir, ())
        yield from tree_parts(self.node.data_dir, self._kept())

    def left(self) -> Iterator[str]:
        """Yield what stays, with its size and what removes it."""
        sharing = self.sharing
        for cache in self.node.caches:
            size = tree_bytes(cache) if os.path.isdir(cache) and cache not in sharing else 0
            if cache in sharing:
                yield f"weights in {cache}, which {sharing[cache]}"
            elif size:
                why = "of another tool, or incomplete" if self.wanted.weights else "-e forget_weights=true"
                yield f"weights in {cache} ({human_size(size)}): {why}"
        for name in () if self.wanted.weights else STORED:
            size = tree_bytes(f"{self.node.data_dir}/{name}")
            if size:
                yield f"{self.node.data_dir}/{name} ({human_size(size)}): -e forget_weights=true"
        images = self._images()
        if images and not self.wanted.images:
            total = human_size(sum(item.bytes for item in images))
            yield f"{len(images)} images of the toolkit ({total}): -e forget_images=true"

    def _kept(self) -> list[str]:
        inside = [
            os.path.relpath(cache, self.node.data_dir)
            for cache in self.node.caches
            if f"{cache}/".startswith(f"{self.node.data_dir}/") and self._stays(cache)
        ]
        stored = () if self.wanted.weights else STORED
        return [*inside, *stored, *(() if self.wanted.images else (PROBES,))]

    def _stays(self, cache: str) -> bool:
        """Return whether something of a cache is kept."""
        if not self.wanted.weights or cache in self.sharing:
            return True
        return any(self._others(cache, name) for name in _repositories(cache))

    def _roots(self) -> Roots:
        return Roots(
            overrides=self.wanted.overrides, pushed=self.wanted.pushed, shared_caches=frozenset(self.sharing)
        )

    def _images(self) -> list[Leftover]:
        return [item for item in removals(self.things, self._roots()) if item.kind == IMAGE]

    def _removable(self) -> list[Leftover]:
        kinds = {WEIGHTS: self.wanted.weights, IMAGE: self.wanted.images}
        return [item for item in removals(self.things, self._roots()) if kinds.get(item.kind)]

    def _leftover(self, item: Leftover) -> Part:
        text = f"remove {item.kind} {item.target} ({human_size(item.bytes)})"
        return Part(text, partial(remove_leftover, self.client, self.node, item))

    def _emptied(self, cache: str) -> Iterator[Part]:
        """Yield the repositories of a cache in which the toolkit has all commits."""
        ours = {item.repo for item in self.things.weights if item.cache_dir == cache}
        for name in _repositories(cache):
            if name[len("models--") :].replace("--", "/") in ours and not self._others(cache, name):
                yield Part(f"remove {cache}/hub/{name}", partial(remove_below, cache, f"hub/{name}"))

    def _others(self, cache: str, name: str) -> bool:
        """Return whether a repository has commits without the toolkit's marker."""
        marked = {os.path.splitext(item)[0] for item in names_below(cache, f"hub/{name}/.instinct-fleet")}
        return not set(names_below(cache, f"hub/{name}/snapshots")) <= marked


def _repositories(cache: str) -> list[str]:
    """Return the names of the repositories in a cache; of data sets, too."""
    return [name for name in names_below(cache, "hub") if "--" in name] if os.path.isdir(cache) else []


def host_data(
    client: DockerClient, node: PrunePaths, wanted: ForgetRequest, others: Sequence[Json]
) -> HostData:
    """Return a host's data as they are now."""
    return HostData(client, node, wanted, others, found_things(client, node, others))
