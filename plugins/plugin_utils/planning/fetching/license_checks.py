# SPDX-License-Identifier: Apache-2.0
"""Compare the licences of what is downloaded with those that the inventory accepts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ....module_utils.common.errors import Problem, nearest, suggest
from ...knowledge.catalog.licenses import REPOSITORY, LicenseBook, is_accepted
from ..changes.downloads import Download, DownloadTerms, StatedLicense, names_of
from ..desired.fleet import Host
from ..pins.lockfile import Lock
from ..pins.model_card import CardTerms, ModelCard

VARIABLE = "licenses_accepted"
Groups = Mapping[DownloadTerms, Sequence[Download]]


def stated_licenses(
    group: Sequence[Download], card: ModelCard | None, book: LicenseBook
) -> tuple[StatedLicense, ...]:
    """Return the licences of a download: its own, and those of the models that it was made from, each once.

    Where no card states one, it is that of the catalogue, by the repository's name.
    """
    repo = group[0].wanted.repo
    accepting = dict.fromkeys(item.host.settings.licenses for item in group)
    found: dict[str, StatedLicense] = {}
    unread = (CardTerms(name) for name in (card.unread if card else ()))
    for terms in (card.own if card else CardTerms(repo), *(card.base if card else ()), *unread):
        stated = book.stated(terms.repo, terms.licenses, terms.name, terms.link)
        for item in stated or book.by_name(terms.repo):
            everywhere = all(is_accepted(item, (repo, terms.repo), keys) for keys in accepting)
            found.setdefault(item.key, StatedLicense(item, terms, everywhere))
    return tuple(found.values())


def judge_licenses(groups: Groups) -> tuple[list[Problem], list[str]]:
    """Return the downloads whose licences are not accepted, as problems, and as warnings what is not refused yet."""
    problems, warnings = [], []
    later: dict[tuple[str, str, bool], list[str]] = {}
    for terms, group in groups.items():
        missing = [item for item in terms.licenses if not item.accepted]
        if not missing:
            continue
        line = _line_to_add(groups, group)
        names = "; ".join(_text(item, terms.repo) for item in missing)
        if terms.known and any(item.host.state for item in group):
            what = (
                f"{terms.repo} would be downloaded, but the inventory does not accept its licence: {names}."
            )
            fix = f"Read it; to accept it, write in the inventory: {line}"
            without = [item for item in group if not _accepts(item, missing)]
            problems.append(Problem(group[0].wanted.path, what, fix, names_of(without)))
        else:
            old = not terms.known and bool(terms.commit)
            later.setdefault((names, line, old), []).append(terms.repo)
    for (names, line, old), repos in later.items():
        text = "a download is refused unless the licence is accepted"
        if old:
            text = (
                "pinned by an earlier release, which read no licence; a download is refused once -e refresh=true has "
                "read it, unless it is accepted. By the name it is"
            )
        warnings.append(f"{', '.join(repos)}: {text}: {names}. To accept it, write in the inventory: {line}")
    return problems, warnings


def _accepts(item: Download, missing: Iterable[StatedLicense]) -> bool:
    keys = item.host.settings.licenses
    return all(is_accepted(one.license, (item.wanted.repo, one.of.repo), keys) for one in missing)


def _text(item: StatedLicense, repo: str) -> str:
    license = item.license
    parts = [license.title if license.key in license.title else f"{license.key}, {license.title}"]
    parts += [f"of {item.of.repo}, from which it was made"] if item.of.repo != repo else []
    parts += [license.link] if license.link else []
    text = ", ".join(parts)
    return f"{text} ({license.asks.strip().rstrip('.')})" if license.asks else text


def _line_to_add(groups: Groups, group: Sequence[Download]) -> str:
    """Return the line that accepts all that the plan needs and what the hosts of a download accept already."""
    given = [key for item in group for key in item.host.settings.licenses]
    missing = [one.license.key for terms in groups for one in terms.licenses if not one.accepted]
    quoted = (f'"{key}"' if ":" in key else key for key in dict.fromkeys((*given, *missing)))
    return f"{VARIABLE}: [{', '.join(quoted)}]"


def unknown_licenses(
    hosts: Iterable[Host], judged: Iterable[DownloadTerms], lock: Lock, book: LicenseBook
) -> Iterator[Problem]:
    """Yield the accepted licences that nobody knows: a misspelled one accepts nothing."""
    given: dict[tuple[str, ...], list[str]] = {}
    for host in hosts:
        if host.settings.licenses:
            given.setdefault(host.settings.licenses, []).append(host.name)
    if not given:
        return
    missing = [item.license.key for terms in judged for item in terms.licenses if not item.accepted]
    cards = [pin.card for pin in lock.models.values() if pin.card]
    known = {*book.keys, *missing}
    for terms in (one for card in cards for one in (card.own, *card.base)):
        known |= {item.key for item in book.stated(terms.repo, terms.licenses, terms.name, terms.link)}
    for keys, names in given.items():
        for index, key in enumerate(keys):
            fix = _correction(key, missing, known)
            if fix:
                what = f"{key!r} is not a licence that the catalogue or this plan knows."
                yield Problem((VARIABLE, index), what, fix, tuple(names))


def _correction(key: str, missing: Iterable[str], known: Iterable[str]) -> str:
    """Return how to correct an entry; "" if it needs none, such as a repository that is no longer used."""
    if key in known:
        return ""
    if key.startswith(REPOSITORY):
        near = nearest(key, (item for item in missing if item.startswith(REPOSITORY)))
        return f"Did you mean {near}?" if near else ""
    near = nearest(key, missing) or nearest(key, known)
    own = f"Write identifiers of the hub, such as llama3.1, or {REPOSITORY}ORGANISATION/NAME."
    return f"Did you mean {near}?" if near else suggest(key, missing) or own
