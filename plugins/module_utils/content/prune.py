# SPDX-License-Identifier: Apache-2.0
"""Decide what of the toolkit's own on a node nothing refers to any more. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .image_names import FROM_STORE, Override, all_names, of_one_repository
from .transfer_names import CONTROL_FILES

IMAGE, WEIGHTS = "image", "weights"
CACHE, BENCH, DATASET = "cache", "bench", "dataset"  # also the names of their directories
STORED, PROBE = "stored", "probe"
TEXTS, JOB = "calibration", "quantize-job"


@dataclass(frozen=True)
class FoundImage:
    """An image of the node's Docker.

    names: its tags and digests, as Docker has them. built, probed: the toolkit built it, or has read its software, as
    it does with each image that it pulls. used: a container has it, whoever made that, running or not.
    """

    id: str
    names: tuple[str, ...]
    bytes: int
    built: bool = False
    probed: bool = False
    used: bool = False


@dataclass(frozen=True)
class FoundWeights:
    """A commit of a model that the toolkit fetched; bytes: of files that no other commit shares."""

    cache_dir: str
    repo: str
    commit: str
    bytes: int

    @property
    def name(self) -> str:
        """Return an id."""
        return f"{self.cache_dir}|{self.repo}|{self.commit}"


@dataclass(frozen=True)
class FoundBlobs:
    """Blobs of the content store: of a manifest, complete or received in part, or of none.

    name: what they are, as content/transfer_names.py forms it. bytes: of those that nothing else has. receiving: a
    program works on them.
    """

    id: str
    name: str
    bytes: int
    receiving: bool = False

    def needed(self, roots: Roots) -> bool:
        """Return whether something refers to the image or model, so that other nodes may want it from here."""
        if self.receiving or self.name == CONTROL_FILES:  # a bundle is made of these, or contained them
            return True
        kind, _unused, rest = self.name.partition(" ")
        if kind == "image":
            return any(name.endswith(f"@{rest}") for name in roots.images)
        if kind == "build":
            return rest in roots.images
        if kind == "caches":
            return rest in roots.cache_keys
        repo, _unused, commit = rest.partition(" ")[0].partition("@")
        return (repo, commit) in roots.weights or commit in roots.commits or repo in roots.fetching


@dataclass(frozen=True)
class FoundThings:
    """What is on a node. caches, benches, datasets: bytes of directories by instance, measurement, and content.

    probes: bytes of what was read of images that are gone, by file. texts: of calibration data, which a run that was
    killed left. jobs: of quantizations that were killed.
    """

    images: tuple[FoundImage, ...] = ()
    weights: tuple[FoundWeights, ...] = ()
    caches: Mapping[str, int] = field(default_factory=dict)
    benches: Mapping[str, int] = field(default_factory=dict)
    datasets: Mapping[str, int] = field(default_factory=dict)
    stored: tuple[FoundBlobs, ...] = ()
    probes: Mapping[str, int] = field(default_factory=dict)
    texts: Mapping[str, int] = field(default_factory=dict)
    jobs: Mapping[str, int] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[tuple[str, str]]:
        """Return kind and id of everything."""
        return frozenset(
            [
                *((IMAGE, item.id) for item in self.images),
                *((WEIGHTS, item.name) for item in self.weights),
                *((STORED, item.id) for item in self.stored),
                *((PROBE, name) for name in self.probes),
                *((CACHE, name) for name in self.caches),
                *((BENCH, name) for name in self.benches),
                *((DATASET, name) for name in self.datasets),
                *((TEXTS, name) for name in self.texts),
                *((JOB, name) for name in self.jobs),
            ]
        )


@dataclass(frozen=True)
class Roots:
    """What must stay.

    images: names. overrides, pushed: what else the toolkit calls images (image_names.py); the content store's names
    always count. weights: (repository, commit). commits: of any repository, as files of instances name them.
    fetching: repositories that a download works on. shared_caches: caches of weights that others' containers mount.
    instances: names of instances that exist or that a kept generation has. cache_keys: of what their caches hold.
    measuring: a benchmark runs. quantizing: a quantization runs, or is being prepared.
    """

    images: frozenset[str] = frozenset()
    overrides: tuple[Override, ...] = ()
    pushed: frozenset[str] = frozenset()
    weights: frozenset[tuple[str, str]] = frozenset()
    commits: frozenset[str] = frozenset()
    fetching: frozenset[str] = frozenset()
    shared_caches: frozenset[str] = frozenset()
    instances: frozenset[str] = frozenset()
    cache_keys: frozenset[str] = frozenset()
    measuring: bool = False
    quantizing: bool = False


@dataclass(frozen=True)
class Leftover:
    """Something to remove; name: its id for whoever removes it, target: its name for people."""

    kind: str
    name: str
    target: str
    bytes: int


def removals(found: FoundThings, roots: Roots) -> tuple[Leftover, ...]:
    """Return what nothing refers to, the largest of each kind first."""
    order = (IMAGE, PROBE, STORED, WEIGHTS, CACHE, BENCH, DATASET, TEXTS, JOB)
    return tuple(
        sorted(_removals(found, roots), key=lambda item: (order.index(item.kind), -item.bytes, item.target))
    )


def _removals(found: FoundThings, roots: Roots) -> Iterator[Leftover]:
    overrides = (FROM_STORE, *roots.overrides)
    wanted = frozenset(own for name in roots.images for own in (name, *all_names(name, overrides)))
    for image in found.images:
        names = frozenset(own for name in image.names for own in all_names(name, overrides))
        if not image.used and image.id not in wanted and wanted.isdisjoint(names) and _ours(image, roots):
            yield Leftover(IMAGE, image.id, image.names[0] if image.names else image.id[:19], image.bytes)
    for name, size in found.probes.items():
        yield Leftover(PROBE, name, name[:12], size)
    for item in found.weights:
        kept = (item.repo, item.commit) in roots.weights or item.commit in roots.commits
        if not kept and item.repo not in roots.fetching and item.cache_dir not in roots.shared_caches:
            yield Leftover(WEIGHTS, item.name, f"{item.repo}@{item.commit[:12]}", item.bytes)
    for blobs in found.stored:
        if not blobs.needed(roots):
            yield Leftover(STORED, blobs.id, " ".join(blobs.name.split(" ")[:2]), blobs.bytes)
    for name, size in found.caches.items():
        if name not in roots.instances:
            yield Leftover(CACHE, name, name, size)
    temporary = (
        *(() if roots.measuring else ((BENCH, found.benches), (DATASET, found.datasets))),
        *(() if roots.quantizing else ((TEXTS, found.texts), (JOB, found.jobs))),
    )
    for kind, sizes in temporary:
        yield from (Leftover(kind, name, name, size) for name, size in sizes.items())


def _ours(image: FoundImage, roots: Roots) -> bool:
    """Return whether the toolkit brought an image, and nobody gave it a name of their own."""
    return (image.built or image.probed) and of_one_repository(
        image.names, (FROM_STORE, *roots.overrides), roots.pushed
    )
