# SPDX-License-Identifier: Apache-2.0
"""Define pins: the digest of an image reference and the commit of a model revision when they were resolved.

Pins are stored in fleet.lock.json next to the inventory, so that every run and every host uses the same bytes and a run
without changes needs neither a registry nor a hub. The caller reads and writes the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from ....module_utils.content.image_ref import ImageSoftware, parse_ref
from .model_card import ModelCard

LOCK = "fleet.lock.json"
"""The file, next to the inventory."""
SCHEMA = 1
PLATFORM = "linux/amd64"
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class ImagePin:
    """An image's digest (of its manifest or manifest list) and the size of a pull in bytes; None if not resolved.

    software: what a node found when it probed the image of this digest.
    """

    digest: str
    bytes: int | None = None
    software: ImageSoftware | None = None


@dataclass(frozen=True)
class BuildPin:
    """An image that a host has built, of which all hosts get the same bytes.

    image_id: the hash of its config. inputs: the hash of what it was built from: repository, commit, Dockerfile,
    target, arguments, base images. bases: the digests of these by name. bytes: unpacked. software: as probed. pushed:
    its name at the operator's registry, repository@digest, "" if it is in none; pushed_bytes: of a pull from there.
    """

    image_id: str
    inputs: str
    commit: str
    bases: tuple[tuple[str, str], ...] = ()
    bytes: int | None = None
    software: ImageSoftware | None = None
    pushed: str = ""
    pushed_bytes: int | None = None

    def pushed_at(self, repository: str) -> str:
        """Return its name in a repository of a registry, "" if it is not known to be there."""
        there = repository and parse_ref(self.pushed).repository == parse_ref(repository).repository
        return self.pushed if self.pushed and there else ""

    def to_json(self) -> dict[str, Any]:
        """Return an entry of `builds` in fleet.lock.json."""
        return {
            "image_id": self.image_id,
            "inputs": self.inputs,
            "commit": self.commit,
            "bases": dict(self.bases),
            "bytes": self.bytes,
            **({"software": self.software.to_json()} if self.software else {}),
            **({"pushed": {"image": self.pushed, "bytes": self.pushed_bytes}} if self.pushed else {}),
        }

    @classmethod
    def from_json(cls, pin: Mapping[str, Any]) -> BuildPin:
        """Build it from what to_json returned. Raise KeyError or TypeError for other data."""
        software, pushed = pin.get("software"), pin.get("pushed") or {}
        return cls(
            pin["image_id"],
            pin["inputs"],
            pin["commit"],
            tuple(sorted(pin["bases"].items())),
            pin["bytes"],
            ImageSoftware.from_json(software) if software else None,
            pushed.get("image", ""),
            pushed.get("bytes"),
        )


@dataclass(frozen=True)
class ModelPin:
    """A model's commit, with every file of the repository and config.json; files is None if not resolved.

    hashes: of the files' content, "sha256:…" or "git-sha1:…"; none if an earlier version resolved it. card: None if
    an earlier version resolved it, which did not keep it.
    """

    commit: str
    files: tuple[tuple[str, int], ...] | None = None
    config: Mapping[str, Any] | None = None
    hashes: tuple[tuple[str, str], ...] = ()
    card: ModelCard | None = None

    def selection(self, exclude: Iterable[str], include: Iterable[str]) -> dict[str, int]:
        """Return the files that a download with these patterns fetches, with their sizes in bytes."""
        exclude, include = _patterns(exclude), _patterns(include)
        return {
            path: size
            for path, size in self.files or ()
            if (not include or any(fnmatchcase(path, pattern) for pattern in include))
            and not any(fnmatchcase(path, pattern) for pattern in exclude)
        }


def _patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns as huggingface_hub's filter_repo_objects reads them: "dir/" means everything in it."""
    return tuple(pattern + "*" if pattern.endswith("/") else pattern for pattern in patterns)


@dataclass(frozen=True)
class Lock:
    """All pins: images by reference as configured, models by model_key(), builds by the image's tag."""

    images: Mapping[str, ImagePin] = field(default_factory=dict)
    models: Mapping[str, ModelPin] = field(default_factory=dict)
    builds: Mapping[str, BuildPin] = field(default_factory=dict)

    def image(self, ref: str) -> ImagePin | None:
        """Return the pin of a reference; a reference with a digest is its own pin."""
        pin = self.images.get(ref)
        digest = parse_ref(ref).digest
        if digest and (pin is None or pin.digest != digest):
            return ImagePin(digest)
        return pin

    def model(self, endpoint: str, repo: str, revision: str) -> ModelPin | None:
        """Return the pin of a model's revision; a commit is its own pin."""
        pin = self.models.get(model_key(endpoint, repo, revision))
        if pin is None and _COMMIT.fullmatch(revision):
            return ModelPin(revision)
        return pin

    def merged(self, newer: Lock) -> Lock:
        """Return this lock updated with newer pins; facts about a digest are kept when it is pinned again."""
        images = dict(self.images)
        for ref, pin in newer.images.items():
            known = images.get(ref)
            same = known is not None and known.digest == pin.digest and pin.software is None
            images[ref] = replace(pin, software=known.software) if known and same else pin
        return Lock(images, {**self.models, **newer.models}, {**self.builds, **newer.builds})

    def rebased(self, read: Lock, changed: Lock, refresh: bool) -> Lock:
        """Return this lock with what a run changed between the one that it read and `changed`.

        A pin that another run wrote in the meantime is kept, unless this run refreshes pins.
        """
        return Lock(
            _rebased(self.images, read.images, changed.images, refresh, _joined_pin),
            _rebased(self.models, read.models, changed.models, refresh, _later_pin),
            _rebased(self.builds, read.builds, changed.builds, refresh, _built_pin),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the content of fleet.lock.json."""
        return {
            "schema": SCHEMA,
            "images": {
                ref: {
                    "digest": pin.digest,
                    "bytes": pin.bytes,
                    "platform": PLATFORM,
                    **({"software": pin.software.to_json()} if pin.software else {}),
                }
                for ref, pin in sorted(self.images.items())
            },
            "models": {
                key: {
                    "commit": pin.commit,
                    "files": dict(pin.files or ()),
                    "config": pin.config,
                    **({"hashes": dict(pin.hashes)} if pin.hashes else {}),
                    **({"card": pin.card.to_json()} if pin.card else {}),
                }
                for key, pin in sorted(self.models.items())
            },
            **(
                {"builds": {tag: pin.to_json() for tag, pin in sorted(self.builds.items())}}
                if self.builds
                else {}
            ),
        }


_Pin = TypeVar("_Pin")


def _rebased(
    now: Mapping[str, _Pin],
    read: Mapping[str, _Pin],
    changed: Mapping[str, _Pin],
    refresh: bool,
    join: Callable[[_Pin, _Pin, bool], _Pin],
) -> dict[str, _Pin]:
    """Return `now` with the entries in which `changed` differs from `read`; join entries that others changed too."""
    found = dict(now)
    for key, pin in changed.items():
        if pin == read.get(key):
            continue
        other = now.get(key)
        found[key] = pin if other is None or other == read.get(key) else join(other, pin, refresh)
    return found


def _joined_pin(other: ImagePin, mine: ImagePin, refresh: bool) -> ImagePin:
    if other.digest == mine.digest:
        return replace(mine, software=mine.software or other.software)
    return mine if refresh else other


def _later_pin(other: ModelPin, mine: ModelPin, refresh: bool) -> ModelPin:
    return mine if refresh or other.commit == mine.commit else other


def _built_pin(_other: BuildPin, mine: BuildPin, _refresh: bool) -> BuildPin:
    return mine  # what hosts have


def _image_pin(pin: Mapping[str, Any]) -> ImagePin:
    software = pin.get("software")
    return ImagePin(pin["digest"], pin["bytes"], ImageSoftware.from_json(software) if software else None)


def _model_pin(key: str, pin: Mapping[str, Any]) -> ModelPin:
    files, hashes = pin["files"].items(), (pin.get("hashes") or {}).items()
    card = pin.get("card")
    read = None if card is None else ModelCard.from_json(repository_of(key), card)
    return ModelPin(pin["commit"], tuple(sorted(files)), pin["config"], tuple(sorted(hashes)), read)


def model_key(endpoint: str, repo: str, revision: str) -> str:
    """Return the key of a model in the lock; an empty endpoint is the public hub."""
    return f"{endpoint}|{repo}@{revision}"


def repository_of(key: str) -> str:
    """Return the repository of a key of model_key()."""
    return key.rpartition("|")[2].partition("@")[0]


def parse_lock(data: Any) -> Lock:
    """Build a Lock from a lock file's content. Raise ValueError with the reason if it is malformed."""
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        raise ValueError(f'it is not a lock file of this version ("schema": {SCHEMA} is expected)')
    try:
        return Lock(
            {ref: _image_pin(pin) for ref, pin in data["images"].items()},
            {key: _model_pin(key, pin) for key, pin in data["models"].items()},
            {tag: BuildPin.from_json(pin) for tag, pin in data.get("builds", {}).items()},
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"an entry is incomplete: {error!r}") from error
