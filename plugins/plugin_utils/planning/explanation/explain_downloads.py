# SPDX-License-Identifier: Apache-2.0
"""Format what a plan downloads: licences, gates, the hub's scan, pickles and remote code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...base.text import plural
from ..changes.downloads import DownloadTerms, StatedLicense
from ..desired.actions import size
from ..pins.model_card import GATES, CardTerms
from .text import titled_paragraph

HASH_SHOWN = 21
"""Characters of a hash, its kind included, where not all of it is printed."""


def download_lines(downloads: Iterable[DownloadTerms], full: bool) -> list[str]:
    """Return the terms of everything that is downloaded; full: with the hash of every Python file."""
    lines = []
    for item in downloads:
        uses = ", ".join(f"{role} of {name}" for role, name in item.uses)
        lines.append(f"  {item.repo}@{item.revision} ({uses})")
        for title, text in _facts(item, full):
            lines += titled_paragraph(f"  {title}", text)
    return ["", "Terms of the downloads", *lines] if lines else []


def _facts(item: DownloadTerms, full: bool) -> Iterator[tuple[str, str]]:
    yield "licence", _licenses(item)
    if item.gates:
        yield "gate", "; ".join(_gate(terms) for terms in item.gates)
    elif item.known:
        yield "gate", "none"
    if item.known:
        yield "scan", f"of the hub: {item.scan}"
    count, total = item.omitted
    if count:
        yield (
            "left out",
            f"{plural(count, 'pickle')}, {size(total)} (weights_formats: any would load or keep them)",
        )
    if item.loaded:
        yield "pickles", f"{', '.join(item.loaded)}: loading them can run any code (weights_formats: any)"
    if item.code:
        names = (f"{path} {text if full else text[:HASH_SHOWN]}".rstrip() for path, text in item.code)
        yield "code", f"{', '.join(names)}: run in its containers (trust_remote_code)"


def _licenses(item: DownloadTerms) -> str:
    found = "; ".join(_license(one, item.repo) for one in item.licenses)
    text = found or ("the card names none" if item.known else "unknown")
    if not item.known:
        text += ", by its name: no card was read yet" if found else ": no card was read yet"
    if item.unread:
        text += f"; that of {', '.join(item.unread)}, from which it was made, could not be read"
    return text


def _license(item: StatedLicense, repo: str) -> str:
    text = item.license.key + (f" of {item.of.repo}" if item.of.repo != repo else "")
    if item.license.needed:
        text += ", accepted" if item.accepted else ", NOT accepted"
    return text + (f", {item.license.link}" if item.license.link else "")


def _gate(terms: CardTerms) -> str:
    parts = [f"access is {GATES[terms.gate]}"] if terms.gate else []
    parts += ["its publisher does not offer it in the EU"] if not terms.eu else []
    return f"{terms.repo}: {', '.join(parts)}"
