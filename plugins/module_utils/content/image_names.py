# SPDX-License-Identifier: Apache-2.0
"""Further names that the toolkit itself gives to an image: at an operator's mirror, and in the content store. Pure.

The inventory, the lock and the plan name an image by its own registry. Docker knows it by where it was pulled from.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from .image_ref import STORE_REGISTRY, ImageRef, parse_ref


@dataclass(frozen=True)
class Override:
    """Images below `origin`, registry or registry/path, are pulled from below `mirror`."""

    origin: str
    mirror: str


FROM_STORE = Override("", STORE_REGISTRY)
"""Images come from the node's own content store, whatever their registry: that becomes a part of the path, with _ for
the colon, which a path must not have."""


def mirror_ref(ref: ImageRef, overrides: Iterable[Override]) -> ImageRef:
    """Return where an image is pulled from; the reference itself if no rule concerns it."""
    full = f"{ref.registry}/{ref.path}"
    for rule in overrides:
        if rule == FROM_STORE:
            return replace(ref, registry=rule.mirror, path=full.replace(":", "_", 1).lower())
        if full.startswith(f"{rule.origin}/"):
            registry, _slash, prefix = rule.mirror.partition("/")
            rest = full[len(rule.origin) + 1 :]
            return replace(ref, registry=registry, path=f"{prefix}/{rest}" if prefix else rest)
    return ref


def canonical_name(name: str) -> str:
    """Return an image's name as Docker lists it: repository@digest, or repository:tag without a digest."""
    ref = parse_ref(name)
    return f"{ref.repository}@{ref.digest}" if ref.digest else f"{ref.repository}:{ref.tag}"


def own_names(name: str, overrides: Iterable[Override]) -> list[str]:
    """Return the names at its own registry of an image that is known by the name of a mirror; [] for any other.

    Of several rules with one mirror, each may have been the one.
    """
    ref = parse_ref(name)
    full = f"{ref.registry}/{ref.path}"
    found = []
    for rule in overrides:
        if full.startswith(f"{rule.mirror}/"):
            rest = full[len(rule.mirror) + 1 :]
            if rule == FROM_STORE:
                registry, _slash, path = rest.partition("/")
                rest = re.sub(r"_([0-9]+)$", r":\1", registry) + f"/{path}"
            else:
                rest = f"{rule.origin}/{rest}"
            found.append(canonical_name(rest + (f"@{ref.digest}" if ref.digest else f":{ref.tag}")))
    return list(dict.fromkeys(found))


def all_names(name: str, overrides: Iterable[Override]) -> frozenset[str]:
    """Return every name by which an image may be meant that has this one."""
    return frozenset((canonical_name(name), *own_names(name, overrides)))


def of_one_repository(
    names: Iterable[str], overrides: Collection[Override], pushed: Collection[str] = ()
) -> bool:
    """Return whether all names of an image may be the toolkit's: of one repository, where it is mirrored or pushed to.

    pushed: repositories to which the toolkit pushes what hosts have built.
    """
    found = [{parse_ref(item).repository for item in all_names(name, overrides)} for name in names]
    repositories = [own for own in found if own.isdisjoint(pushed)]
    return not repositories or bool(set.intersection(*repositories))
