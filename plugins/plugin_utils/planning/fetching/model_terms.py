# SPDX-License-Identifier: Apache-2.0
"""Judge what a plan downloads before the first byte: licences, the hub's scan, pickles and remote code. Pure.

Only downloads are judged. Weights that are on a host are still served, whatever the inventory accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ....module_utils.common.errors import Path, Problem
from ...knowledge.catalog.licenses import LicenseBook
from ..changes.downloads import Download, DownloadTerms, JudgedDownloads, first_names, names_of
from ..desired.deployment import Deployment
from ..desired.fleet import Host
from ..desired.weights_formats import SAFE, loaded_pickles, pickles
from ..pins.lockfile import Lock, ModelPin
from .license_checks import judge_licenses, stated_licenses, unknown_licenses

UNSAFE = ("unsafe", "infected", "malicious", "dangerous")
"""Words of the hub's scan for files that are not downloaded; others are only shown."""
PICKLE_LOADERS = ("pt", "npcache")
"""Load formats of vLLM that read *.bin and *.pt only (vllm/model_executor/model_loader/default_loader.py)."""


def judge_downloads(
    downloads: Iterable[Download], hosts: Iterable[Host], lock: Lock, book: LicenseBook
) -> JudgedDownloads:
    """Judge all downloads of a plan; equal ones of many hosts are judged once."""
    alike: dict[tuple[object, ...], list[Download]] = {}
    for item in downloads:
        wanted, deployment = item.wanted, item.deployment
        patterns = wanted.exclude, wanted.include, wanted.any_format
        where = item.host.settings.endpoint, wanted.repo, wanted.revision
        key = (*where, *patterns, _trusted(deployment), _pickle_loader(deployment))
        alike.setdefault(key, []).append(item)
    groups = {_terms(group, book): group for group in alike.values()}
    problems = [problem for terms, group in groups.items() for problem in _refusals(terms, group)]
    refused, warnings = judge_licenses(groups)
    warnings += [text for group in alike.values() for text in _code_elsewhere(group[0])]
    problems += [*refused, *unknown_licenses(hosts, groups, lock, book)]
    return JudgedDownloads(tuple(groups), tuple(problems), tuple(dict.fromkeys(warnings)))


def _terms(group: Sequence[Download], book: LicenseBook) -> DownloadTerms:
    wanted, pin = group[0].wanted, group[0].pin or ModelPin("")
    files, card = wanted.files(pin), pin.card
    asked = pin.selection(wanted.exclude, wanted.include)
    left = [count for path, count in asked.items() if path not in files]
    hashes, trusted = dict(pin.hashes), _trusted(group[0].deployment)
    everything = (card.own, *card.base) if card else ()
    return DownloadTerms(
        wanted.repo,
        wanted.revision,
        pin.commit,
        tuple(dict.fromkeys((item.wanted.use, item.deployment.name) for item in group)),
        names_of(group),
        card is not None,
        stated_licenses(group, card, book),
        tuple(item for item in everything if item.gate or not item.eu),
        card.unread if card else (),
        _scan_text(pin, files),
        (len(left), sum(left)),
        tuple(loaded_pickles(files)),
        tuple((path, hashes.get(path, "")) for path in files if path.endswith(".py")) if trusted else (),
    )


def _refusals(terms: DownloadTerms, group: Sequence[Download]) -> Iterator[Problem]:
    wanted, pin, deployment = group[0].wanted, group[0].pin or ModelPin(""), group[0].deployment
    hosts, files = names_of(group), wanted.files(pin)
    unsafe = [
        path for path, word in (pin.card.issues if pin.card else ()) if word in UNSAFE and path in files
    ]
    if unsafe:
        what = f"the hub's scan calls {first_names(unsafe)} of {wanted.repo} unsafe."
        fix = "Use another repository or revision; or leave the file out with exclude, if nothing needs it."
        yield Problem(wanted.path, what, fix, hosts)
    if wanted.any_format:
        return
    fix = "if you trust its publisher, set weights_formats: any in the deployment."
    if terms.loaded:
        names = first_names(terms.loaded)
        what = f"{wanted.repo} has its weights only as pickles ({names}), and loading one can run any code."
        yield Problem(wanted.path, what, f"Use a repository or revision with safetensors; {fix}", hosts)
    elif _pickle_loader(deployment) and pickles(pin.selection((), ())):
        path: Path = (*deployment.path, "engine_args", "load_format")
        what = f"{_pickle_loader(deployment)} loads pickles, and weights_formats: {SAFE} downloads none."
        yield Problem(path, what, f"Remove it; or, {fix}", hosts)


def _pickle_loader(deployment: Deployment) -> str:
    """Return the load format by which a server reads only pickles; "" for others."""
    given = str(dict(deployment.engine_args).get("load_format") or "")
    return given if given in PICKLE_LOADERS else ""


def _trusted(deployment: Deployment) -> bool:
    """Return whether the deployment runs code of its repositories."""
    given = {**dict(deployment.settings), **dict(deployment.engine_args)}
    return given.get("trust_remote_code") not in (None, False)


def _code_elsewhere(item: Download) -> Iterator[str]:
    """Yield a warning if a model's code is in another repository, which config.json names as REPOSITORY--MODULE."""
    config = item.pin.config if item.pin else None
    classes = (config or {}).get("auto_map")
    if not _trusted(item.deployment) or not isinstance(classes, Mapping):
        return
    named = (text for value in classes.values() for text in (value if isinstance(value, list) else [value]))
    others = sorted({text.partition("--")[0] for text in named if isinstance(text, str) and "--" in text})
    if others:
        yield (
            f"{item.wanted.repo} runs code of {first_names(others)}, which is neither pinned nor downloaded: without a "
            "network its server does not start. Use a repository that holds its code"
        )


def _scan_text(pin: ModelPin, files: Mapping[str, int]) -> str:
    card = pin.card
    if card is None or card.scanned is None:
        return "unknown"
    issues = [f"{path} ({word})" for path, word in card.issues if path in files]
    state = "" if card.scanned else "not complete, "
    if issues:
        return f"{state}reports {first_names(issues)}"
    others = f" in what is downloaded ({len(card.issues)} elsewhere)" if card.issues else ""
    return f"{state}nothing found{others}"
