# SPDX-License-Identifier: Apache-2.0
"""Ask registries and hubs for what a run needs; the clients are imported only when there is something to ask."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

from ....module_utils.common.errors import FleetError, Path, Problem, natural
from ..desired.fleet import Fleet, Host
from ..fetching.air_gap import refuse_unpinned
from ..fetching.pins import absent_images, absent_models, required_pins
from ..fetching.pushes import pinned_pushes
from ..pins.lockfile import ImagePin, Lock, model_key

Token = Callable[[str], "str | None"]
"""Gives a host's token for the hub; raises FleetError."""


def resolve_pins(fleet: Fleet, lock: Lock, refresh: bool, token: Token) -> Lock:
    """Return pins that are missing, or all with `refresh`. Raises FleetError with the problems of all of them."""
    images, models = required_pins(fleet, lock, refresh)
    if not images and not models:
        return Lock()
    refuse_unpinned(images, models, refresh)
    from .registry import ResolveError, image_pin, model_pin

    problems: list[Problem] = []
    found_images = {}
    found_models = {}
    for need in images:
        try:
            found_images[need.ref] = image_pin(
                need.ref, need.path, need.host.settings.registries, need.host.settings.overrides
            )
        except ResolveError as error:
            problems.append(replace(error.problem, hosts=(need.host.name,)))
    tokens: dict[str, str | None] = {}
    for item in models:
        name, endpoint = item.host.name, item.host.settings.endpoint
        try:
            if name not in tokens:
                tokens[name] = token(name)
            pin = model_pin(item.repo, item.revision, item.path, endpoint, tokens[name])
            found_models[model_key(endpoint, item.repo, item.revision)] = pin
        except ResolveError as error:
            problems.append(replace(error.problem, hosts=(name,)))
        except FleetError as error:
            problems.extend(replace(problem, hosts=(name,)) for problem in error.problems)
    if problems:
        raise FleetError(
            sorted(set(problems), key=lambda problem: [natural(str(part)) for part in problem.path])
        )
    return Lock(found_images, found_models)


def confirm_pushes(fleet: Fleet, lock: Lock, check: bool) -> Lock:
    """Return the lock with what registries have of built images. Raise FleetError for a registry that does not say."""
    return pinned_pushes(fleet, lock, check, _pushed)


def _pushed(name: str, path: Path, host: Host) -> ImagePin | None:
    from .registry import NOT_FOUND, ResolveError, image_pin

    try:
        return image_pin(name, path, host.settings.registries)
    except ResolveError as error:
        if error.kind == NOT_FOUND:
            return None
        raise FleetError([replace(error.problem, hosts=(host.name,))]) from None


def access_warnings(fleet: Fleet, lock: Lock, fresh: Lock, token: Token) -> tuple[str, ...]:
    """Return warnings where it is uncertain that hosts may fetch what they need.

    `fresh` was resolved by this run, so hosts may fetch it. Raises FleetError with all refusals.
    """
    images = [
        need
        for need in absent_images(fleet, lock)
        if need.ref not in fresh.images and not need.host.settings.air_gap
    ]
    models = [
        need
        for need in absent_models(fleet, lock)
        if model_key(need.host.settings.endpoint, need.repo, need.revision) not in fresh.models
        and not need.host.settings.air_gap
    ]
    if not images and not models:
        return ()
    from .access import check_access

    return check_access(images, models, lock, token)
