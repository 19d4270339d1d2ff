# SPDX-License-Identifier: Apache-2.0
"""Find everything that the deployments of a fleet need from registries and hubs, whatever hosts already have. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ....module_utils.common.errors import FleetError, Problem
from ....module_utils.content.image_ref import parse_ref
from ..changes.actions import images, models
from ..desired.deployment import Deployment
from ..desired.fleet import Fleet, Host
from ..fetching.transfers import name_of, offer_of
from ..observed.local_repositories import display_name, is_local_repository
from ..pins.lockfile import LOCK, Lock, ModelPin, model_key
from ..tuning.companion_models import required_repositories

TERMS = re.compile(r"(.*/)?(LICEN[CS]E|NOTICE|USE_POLICY|COPYING)[^/]*", re.IGNORECASE)
"""Files of a repository with the terms of its use."""


@dataclass
class Closure:
    """What deployments need. images, models: arguments of blob_fetch by name; repositories: by path, of models made on
    the fleet. pins: as the lock has them. licenses: by repository, with the files that have their text. warnings: what
    is not part of it.
    """

    deployments: dict[str, None] = field(default_factory=dict)
    images: dict[str, dict[str, Any]] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    pins: dict[str, dict[str, str]] = field(default_factory=lambda: {"images": {}, "models": {}})
    licenses: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as bundle_content returns it."""
        return {
            "images": list(self.images.values()),
            "models": list(self.models.values()),
            "repositories": list(self.repositories.values()),
            "pins": self.pins,
            "about": {"deployments": sorted(self.deployments), "licenses": self.licenses},
        }


def closure(fleet: Fleet, lock: Lock, cache_dir: str) -> Closure:
    """Return the images and models of all deployments, by the lock.

    cache_dir: of the host that has the models. Raise FleetError for what the lock does not pin.
    """
    found, problems = Closure(), []
    for host in fleet.hosts:
        problems += list(_unpinned(host, lock))
    if problems:
        raise FleetError(problems)
    for host in fleet.hosts:
        for deployment in host.deployments:
            found.deployments[deployment.name] = None
            _pin(found, host, deployment, lock)
            if is_local_repository(deployment.model):
                path = deployment.model.rstrip("/")
                found.repositories[path] = {"what": display_name(path), "repository": {"path": path}}
            found.warnings.update(dict.fromkeys(_omitted(deployment, lock)))
        empty = replace(host, state=None)
        for image, _action in images(empty, lock):
            if not image.build:
                found.images[name_of(image)] = {"what": image.ref, **offer_of(image)}
        for model, _action in models(empty, lock, {item.name: item.image_ref for item in host.deployments}):
            given = replace(model, cache_dir=cache_dir)
            found.models[name_of(given)] = {"what": given.called, **offer_of(given)}
    return found


def lock_pins(lock: Lock) -> dict[str, dict[str, str]]:
    """Return the digests and commits of a whole lock, with which those of a bundle are compared."""
    builds = {tag: digest for tag, pin in lock.builds.items() if (digest := parse_ref(pin.pushed).digest)}
    return {
        "images": {**{ref: pin.digest for ref, pin in lock.images.items()}, **builds},
        "models": {key: pin.commit for key, pin in lock.models.items()},
    }


def _unpinned(host: Host, lock: Lock) -> Iterator[Problem]:
    for item in host.deployments:
        pin = None if item.build else lock.image(item.image)
        if not item.build and (pin is None or pin.bytes is None):
            yield _not_pinned((*item.path, "image"), item.image, host)
        for wanted in required_repositories(item):
            model = lock.model(host.settings.endpoint, wanted.repo, wanted.revision)
            if model is None or model.files is None:
                yield _not_pinned(wanted.path, f"{wanted.repo}@{wanted.revision}", host)


def _not_pinned(path: Iterable[Any], what: str, host: Host) -> Problem:
    fix = f"Deploy it where registry and hub are (or run plan.yml there), which writes {LOCK}."
    return Problem(
        tuple(path), f"{what} is not pinned in {LOCK}, so no bundle can have it.", fix, (host.name,)
    )


def _pin(found: Closure, host: Host, deployment: Deployment, lock: Lock) -> None:
    image = None if deployment.build else lock.image(deployment.image)
    digest = image.digest if image else parse_ref(_pushed(deployment, lock)).digest
    if digest:
        found.pins["images"][deployment.image_ref] = digest
    for wanted in required_repositories(deployment):
        key = model_key(host.settings.endpoint, wanted.repo, wanted.revision)
        pin = lock.model(host.settings.endpoint, wanted.repo, wanted.revision)
        if pin:
            found.pins["models"][key] = pin.commit
            found.licenses[wanted.repo] = _terms(pin, wanted.files(pin))


def _terms(pin: ModelPin, files: Mapping[str, int]) -> dict[str, Any]:
    """Return the licences that a card states, of what the model was made from too, and the files with their texts."""
    cards = [pin.card.own, *pin.card.base] if pin.card else []
    stated = {text for card in cards for text in (*card.licenses, *((card.name,) if card.name else ()))}
    return {"licenses": sorted(stated), "files": sorted(name for name in files if TERMS.fullmatch(name))}


def _pushed(deployment: Deployment, lock: Lock) -> str:
    """Return the name in a registry of an image that is built, "" if it is in none."""
    built = lock.builds.get(deployment.build.tag) if deployment.build else None
    return built.pushed_at(deployment.build.push_to) if built and deployment.build else ""


def _omitted(deployment: Deployment, lock: Lock) -> Iterator[str]:
    """Yield what a deployment needs that comes from no registry or hub."""
    if deployment.build and not _pushed(deployment, lock):
        yield (
            f"deployment {deployment.name} builds its image, which is in no registry and so not in the bundle: set "
            "build.push_to, and run build.yml"
        )
    if deployment.local_model and not is_local_repository(deployment.model):
        yield (
            f"deployment {deployment.name} serves {deployment.model}, which you must copy to each of its hosts "
            "yourself"
        )
