# SPDX-License-Identifier: Apache-2.0
"""Check that the nodes may download what they need, at registries and hubs, before anything changes.

A pin identifies content but does not grant access, which an account may have lost in the meantime. Control node only;
imported only if there is something to download.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Callable

from ....module_utils.common.errors import FleetError, Problem
from ....module_utils.content.image_names import mirror_ref
from ....module_utils.content.image_ref import parse_ref
from ..fetching.pins import RequiredImage, RequiredModel
from ..pins.lockfile import Lock, model_key
from .registry import HUB, NOT_FOUND, UNREACHABLE, ResolveError, image_access, model_access, registry_of

REFRESH = "It no longer exists: run playbooks/plan.yml -e refresh=true to pin the current one."


@dataclass(frozen=True)
class AccessCheck:
    """A request to a registry or hub (`where`); hosts with the same request have the same key."""

    key: tuple[object, ...]
    where: str
    host: str
    ask: Callable[[], None]


def check_access(
    images: Iterable[RequiredImage],
    models: Iterable[RequiredModel],
    lock: Lock,
    token: Callable[[str], str | None],
) -> tuple[str, ...]:
    """Check the access to the pinned images and models, each once per account.

    `token` returns a host's token for the hub. Raise FleetError with all refusals. Return warnings for checks that were
    impossible from this machine, as the nodes may still be able to download.
    """
    problems: list[Problem] = []
    warnings: list[str] = []
    tokens: dict[str, str | None] = {}
    kept: list[RequiredModel] = []
    for need in models:
        name = need.host.name
        try:
            if name not in tokens:
                tokens[name] = token(name)
            kept.append(need)
        except FleetError as error:
            problems.extend(replace(problem, hosts=(name,)) for problem in error.problems)
    questions: dict[tuple[object, ...], AccessCheck] = {}
    for question in (*_of_images(images, lock), *_of_models(kept, lock, tokens)):
        questions.setdefault(question.key, question)
    silent: set[str] = set()
    for question in questions.values():
        if question.where in silent:
            continue
        try:
            question.ask()
        except ResolveError as error:
            if error.kind == UNREACHABLE:
                silent.add(question.where)
                why = error.problem.what
                warnings.append(f"could not check whether nodes may download from {question.where}: {why}")
                continue
            fix = REFRESH if error.kind == NOT_FOUND else error.problem.fix
            problems.append(replace(error.problem, fix=fix, hosts=(question.host,)))
    if problems:
        raise FleetError(problems)
    return tuple(warnings)


def _of_images(needs: Iterable[RequiredImage], lock: Lock) -> Iterator[AccessCheck]:
    for need in needs:
        ref = mirror_ref(parse_ref(need.ref), need.host.settings.overrides)
        pin = lock.image(need.ref)
        if pin:
            access = registry_of(ref, need.host.settings.registries)
            ask = partial(image_access, ref, pin.digest, need.path, access)
            yield AccessCheck((ref.repository, pin.digest, access), ref.registry, need.host.name, ask)


def _of_models(
    needs: Iterable[RequiredModel], lock: Lock, tokens: dict[str, str | None]
) -> Iterator[AccessCheck]:
    for need in needs:
        endpoint, token = need.host.settings.endpoint, tokens[need.host.name]
        pin = lock.model(endpoint, need.repo, need.revision)
        if pin:
            ask = partial(model_access, need.repo, pin, need.path, endpoint, token)
            key = (model_key(endpoint, need.repo, pin.commit), token)
            yield AccessCheck(key, endpoint or HUB, need.host.name, ask)
