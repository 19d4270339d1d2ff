# SPDX-License-Identifier: Apache-2.0
"""Find the pins that a run still requires, and what it will download by those that it has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ....module_utils.common.errors import Path
from ....module_utils.content.image_ref import parse_ref
from ..changes.actions import has_weights
from ..desired.actions import has_build, has_image
from ..desired.deployment import Deployment
from ..desired.fleet import Fleet, Host
from ..pins.lockfile import Lock
from ..tuning.companion_models import ModelRepository, required_repositories


@dataclass(frozen=True)
class RequiredImage:
    """An image reference to resolve."""

    ref: str
    path: Path
    host: Host


@dataclass(frozen=True)
class RequiredModel:
    """The revision of a repository of the hub to resolve."""

    repo: str
    revision: str
    path: Path
    host: Host


def required_pins(
    fleet: Fleet, lock: Lock, refresh: bool = False
) -> tuple[tuple[RequiredImage, ...], tuple[RequiredModel, ...]]:
    """Return what registries and hubs must resolve, each once, with the first deployment and host that needs it.

    A digest or a commit that every host has needs no pin, as sizes matter only for downloads.
    """
    images: dict[str, RequiredImage] = {}
    models: dict[tuple[str, str, str], RequiredModel] = {}
    for host in fleet.hosts:
        for deployment in sorted(host.deployments, key=lambda item: item.index):
            if (
                not deployment.build
                and deployment.image not in images
                and (refresh or _image_missing(host, deployment, lock))
            ):
                images[deployment.image] = RequiredImage(deployment.image, (*deployment.path, "image"), host)
            for wanted in required_repositories(deployment):
                key = (host.settings.endpoint, wanted.repo, wanted.revision)
                if key not in models and (refresh or _model_missing(host, wanted, lock)):
                    models[key] = RequiredModel(wanted.repo, wanted.revision, wanted.path, host)
    return tuple(images.values()), tuple(models.values())


def absent_images(fleet: Fleet, lock: Lock) -> Iterator[RequiredImage]:
    """Yield pinned images that hosts do not have, for each host and deployment."""
    for host in fleet.hosts:
        for deployment in host.deployments:
            built = lock.builds.get(deployment.build.tag) if deployment.build else None
            pushed = built.pushed_at(deployment.build.push_to) if built and deployment.build else ""
            if built and pushed and not has_build(host.state, deployment.image_ref, built.image_id):
                yield RequiredImage(pushed, (*deployment.path, "build", "push_to"), host)
            pin = None if deployment.build else lock.image(deployment.image)
            name = f"{parse_ref(deployment.image).repository}@{pin.digest}" if pin else ""
            if pin and not has_image(host.state, name):
                yield RequiredImage(deployment.image, (*deployment.path, "image"), host)


def absent_models(fleet: Fleet, lock: Lock) -> Iterator[RequiredModel]:
    """Yield pinned models and companions whose files hosts do not have, for each host and deployment."""
    for host in fleet.hosts:
        for deployment in host.deployments:
            for wanted in required_repositories(deployment):
                pin = lock.model(host.settings.endpoint, wanted.repo, wanted.revision)
                if pin and not has_weights(host, wanted, pin):
                    yield RequiredModel(wanted.repo, wanted.revision, wanted.path, host)


def _image_missing(host: Host, deployment: Deployment, lock: Lock) -> bool:
    pin = lock.image(deployment.image)
    if pin is None:
        return True
    return pin.bytes is None and not has_image(
        host.state, f"{parse_ref(deployment.image).repository}@{pin.digest}"
    )


def _model_missing(host: Host, wanted: ModelRepository, lock: Lock) -> bool:
    pin = lock.model(host.settings.endpoint, wanted.repo, wanted.revision)
    if pin is None:
        return True
    return pin.files is None and (host.settings.verify or not has_weights(host, wanted, pin))
