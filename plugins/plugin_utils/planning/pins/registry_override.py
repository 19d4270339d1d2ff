# SPDX-License-Identifier: Apache-2.0
"""Names of images at an operator's mirrors: what a reference is pulled as, and what that is. Pure.

The inventory, the lock and the plan name an image by its own registry; a mirror has the same bytes under its digest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ....module_utils.content.image_names import Override, mirror_ref, own_names
from ....module_utils.content.image_ref import DEFAULT_REGISTRY, ImageRef
from ...base.checker import Checker
from ..observed.node_state import Image, NodeState

VARIABLE = "registry_override"
_REGISTRY = r"(?=[^/]*[.:]|localhost)[A-Za-z0-9.-]+(:[0-9]{1,5})?"
_PLACE = rf"{_REGISTRY}(/[a-z0-9]+([._/-]+[a-z0-9]+)*)?"


def parse_overrides(check: Checker, value: Any) -> tuple[Override, ...]:
    """Return the rules, the most specific first."""
    path = (VARIABLE,)
    found = []
    for origin, mirror in check.mapping(value, path).items():
        for text in (origin, mirror):
            if not isinstance(text, str) or not re.fullmatch(_PLACE, text):
                what = "is not a registry." if text is origin else "is not pulled from a registry."
                fix = "Write HOST:PORT or HOST/PATH on both sides, without a scheme: docker.io: mirror.example/hub."
                check.wrong((*path, origin), what, fix)
                break
        else:
            found.append(Override(_plain(origin), mirror))
    return tuple(sorted(found, key=lambda item: (-len(item.origin), item.origin)))


def _plain(origin: str) -> str:
    host, slash, rest = origin.partition("/")
    return (DEFAULT_REGISTRY if host in ("index.docker.io", "registry-1.docker.io") else host) + slash + rest


def pulled_name(ref: ImageRef, digest: str, overrides: Iterable[Override], state: NodeState | None) -> str:
    """Return the repository@digest by which a host's Docker knows, or will know, a pinned image.

    Instances keep an image that came from its own registry before there was a rule: it has the same bytes.
    """
    own, there = (f"{item.repository}@{digest}" for item in (ref, mirror_ref(ref, overrides)))
    names = {
        name for image in (state.images if state else ()) for name in image.digests if name in (own, there)
    }
    return own if own in names and there not in names else there


def add_own_names(state: NodeState, overrides: tuple[Override, ...]) -> NodeState:
    """Return a host's state in which images that came from a mirror also have their own names."""
    if not overrides or not any(_own_names(image, overrides) for image in state.images):
        return state
    images = tuple(
        replace(image, digests=(*image.digests, *_own_names(image, overrides))) for image in state.images
    )
    return replace(state, images=images)


def _own_names(image: Image, overrides: tuple[Override, ...]) -> list[str]:
    found = [own for name in image.digests for own in own_names(name, overrides)]
    return [name for name in dict.fromkeys(found) if name not in image.digests]
