# SPDX-License-Identifier: Apache-2.0
"""Look up licences of models by the names that cards give them, and which must be accepted (licenses.yml)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..rules.repositories import matches_pattern

REPOSITORY = "repo:"
"""The prefix of a repository whose terms are accepted as a whole, as are those of licences without an identifier."""
NAMELESS = ("other", "unknown")
"""What a card says of a licence that the hub has no identifier for."""


@dataclass(frozen=True)
class License:
    """A licence of a repository.

    key: what accepts it: its identifier, or repo:NAME. needed: it must be accepted. link, asks: "" if unknown.
    """

    key: str
    title: str
    needed: bool
    link: str = ""
    asks: str = ""


class LicenseBook:
    """The licences of the catalogue, and those of well-known models."""

    def __init__(self, data: Mapping[str, Any], models: Mapping[str, Any]) -> None:
        self._free = frozenset(data["free"])
        self._known: Mapping[str, Mapping[str, Any]] = data["licenses"]
        self._names = {name: key for key, item in self._known.items() for name in item.get("names", ())}
        self._models = models["licenses"]

    @property
    def keys(self) -> frozenset[str]:
        """Return the identifiers of all known licences."""
        return self._free | self._known.keys()

    def stated(self, repo: str, ids: Iterable[str], name: str = "", link: str = "") -> tuple[License, ...]:
        """Return the licences that a repository's card states. name, link: of a licence without an identifier."""
        return tuple(self._license(repo, key.lower(), name, link) for key in ids)

    def _license(self, repo: str, key: str, name: str, link: str) -> License:
        if key in NAMELESS:
            plain = name.strip().lower().replace(" ", "-")
            key = self._names.get(plain) or (plain if plain in self._free else "")
        if key in self._free:
            return License(key, key, False, link)
        known = self._known.get(key)
        if known:
            return License(key, known["title"], True, link or known.get("link", ""), known["asks"])
        if key:
            return License(key, f"{key}, which the catalogue does not know", True, link)
        return License(f"{REPOSITORY}{repo}", name or "a licence of its own", True, link)

    def by_name(self, repo: str) -> tuple[License, ...]:
        """Return the licences that models with this name have, that of a known base included; empty if unknown."""
        found = next((item for item in self._models if matches_pattern(repo, item["repositories"])), None)
        if not found:
            return ()
        return self.stated(repo, [found["license"], *([found["base"]] if "base" in found else ())])


def is_accepted(license: License, repos: Iterable[str], accepting: Iterable[str]) -> bool:
    """Return whether a licence needs no acceptance or has it. repos: those whose acceptance as a whole includes it."""
    keys = {license.key, *(f"{REPOSITORY}{repo}" for repo in repos)}
    return not license.needed or not keys.isdisjoint(accepting)
