# SPDX-License-Identifier: Apache-2.0
"""Read what a hub's answer says of a model's terms and of its scan, and of the models that it was made from.

Texts of a card are its publisher's: they are cut, and bad characters are replaced, before they reach a lock or a plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ...base.text import printable
from ..desired.deployment import REPO
from ..pins.model_card import GATES, CardTerms, ModelCard

LONGEST = 200
"""Characters of a card's text that are kept."""
MOST_BASES = 8
"""Models that are asked about; a card may name many, and each of them others."""


def read_card(repo: str, info: Any, ask: Callable[[str], Any]) -> ModelCard:
    """Return the card of a model. info: the hub's answer about it. ask: returns that about another, or raises."""
    base: list[CardTerms] = []
    unread: list[str] = []
    seen, queue = {repo}, _bases(info)
    while queue and len(seen) <= MOST_BASES:
        name = queue.pop(0)
        if name in seen:
            continue
        seen.add(name)
        try:
            found = ask(name)
        except Exception:  # whatever the reason: the plan says that it could not be read
            unread.append(name)
            continue
        base.append(_terms(name, found))
        queue += _bases(found)
    unread += [name for name in dict.fromkeys(queue) if name not in seen]
    scanned, issues = _scan(info)
    return ModelCard(_terms(repo, info), tuple(base), tuple(unread), scanned, issues)


def _terms(repo: str, info: Any) -> CardTerms:
    card = _card(info)
    gate = getattr(info, "gated", None)
    return CardTerms(
        repo,
        tuple(text.lower() for text in _texts(card.get("license"))),
        _text(card.get("license_name")),
        _text(card.get("license_link")),
        gate if gate in GATES else "manual" if gate else "",
        card.get("extra_gated_eu_disallowed") is not True,
    )


def _bases(info: Any) -> list[str]:
    return [name for name in _texts(_card(info).get("base_model")) if re.fullmatch(REPO, name)]


def _card(info: Any) -> Mapping[str, Any]:
    data = getattr(info, "card_data", None)
    if data is None:
        return {}
    found = data.to_dict() if hasattr(data, "to_dict") else data
    return found if isinstance(found, Mapping) else {}


def _texts(value: Any) -> list[str]:
    items = value if isinstance(value, list) else [value]
    return [text for text in map(_text, items) if text]


def _text(value: Any) -> str:
    return printable(value.strip()[:LONGEST]).replace("\n", " ") if isinstance(value, str) else ""


def _scan(info: Any) -> tuple[bool | None, tuple[tuple[str, str], ...]]:
    status = getattr(info, "security_repo_status", None)
    if not isinstance(status, Mapping):
        return None, ()
    found = status.get("filesWithIssues")
    issues = [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []
    words = {_text(item.get("path")): _text(item.get("level")).lower() or "reported" for item in issues}
    return bool(status.get("scansDone")), tuple(sorted((path, word) for path, word in words.items() if path))
