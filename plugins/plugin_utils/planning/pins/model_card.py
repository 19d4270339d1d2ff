# SPDX-License-Identifier: Apache-2.0
"""What a hub says of a model besides its files: licences, gates, what it was made from, its scan of the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GATES = {"auto": "granted at once", "manual": "granted by hand"}
"""How access is granted to a gated repository."""


@dataclass(frozen=True)
class CardTerms:
    """The terms of one repository, as its card states them.

    licenses: identifiers; none if the card names none. name, link: of a licence without an identifier. gate: "" for
    none, else one of GATES. eu: whether its publisher offers it in the European Union.
    """

    repo: str
    licenses: tuple[str, ...] = ()
    name: str = ""
    link: str = ""
    gate: str = ""
    eu: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return it in the form of fleet.lock.json."""
        found: dict[str, Any] = {"licenses": list(self.licenses)}
        found |= {key: text for key in ("name", "link", "gate") if (text := getattr(self, key))}
        return found if self.eu else {**found, "eu": False}

    @classmethod
    def from_json(cls, repo: str, data: Mapping[str, Any]) -> CardTerms:
        """Build it from what to_json returned. Raise KeyError, TypeError or AttributeError for other data."""
        name, link, gate = (str(data.get(key, "")) for key in ("name", "link", "gate"))
        return cls(repo, tuple(map(str, data["licenses"])), name, link, gate, bool(data.get("eu", True)))


@dataclass(frozen=True)
class ModelCard:
    """What a hub said of a model when it was pinned.

    base: the terms of the models that it was made from, and of those that they were made from. unread: those of them
    whose card could not be read. scanned: whether the hub's scan of the files is complete; None if it says nothing.
    issues: the files that the scan reports, with its word for each.
    """

    own: CardTerms
    base: tuple[CardTerms, ...] = ()
    unread: tuple[str, ...] = ()
    scanned: bool | None = None
    issues: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it in the form of fleet.lock.json, which names the repository next to it."""
        found = self.own.to_json()
        if self.base:
            found["base"] = {item.repo: item.to_json() for item in self.base}
        if self.unread:
            found["base_unread"] = list(self.unread)
        if self.scanned is not None:
            found["scanned"] = self.scanned
        return {**found, "issues": dict(self.issues)} if self.issues else found

    @classmethod
    def from_json(cls, repo: str, data: Mapping[str, Any]) -> ModelCard:
        """Build it from what to_json returned. Raise KeyError, TypeError or AttributeError for other data."""
        base = data.get("base", {})
        scanned, issues = data.get("scanned"), data.get("issues", {})
        return cls(
            CardTerms.from_json(repo, data),
            tuple(CardTerms.from_json(name, item) for name, item in base.items()),
            tuple(map(str, data.get("base_unread", ()))),
            None if scanned is None else bool(scanned),
            tuple(sorted((str(path), str(word)) for path, word in issues.items())),
        )
