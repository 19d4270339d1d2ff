# SPDX-License-Identifier: Apache-2.0
"""Refuse plans that would need a registry or a hub where none can be reached (air_gap). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ....module_utils.common.errors import FleetError, Problem
from ..changes.actions import ImageStep, ModelStep
from ..desired.fleet import Host
from .pins import RequiredImage, RequiredModel
from .transfers import Transfer, has_stored, name_of

VARIABLE = "air_gap"
LOAD = (
    "Load a bundle that has it on one of the hosts (bundle_load.yml), and run again; a run with --limit must "
    "include the host that has it."
)
BUILD = "Set build.push_to, and run build.yml where the bundle is made: it then has the image."


def refuse_unpinned(images: Iterable[RequiredImage], models: Iterable[RequiredModel], refresh: bool) -> None:
    """Raise FleetError for what hosts that ask no registry and no hub would need resolved."""
    needs = [
        *((need.path, need.ref, need.host) for need in images),
        *((need.path, f"{need.repo}@{need.revision}", need.host) for need in models),
    ]
    found = [(path, what, host.name) for path, what, host in needs if host.settings.air_gap]
    if found and refresh:
        text = "with air_gap no registry or hub is asked, so nothing can be resolved again."
        fix = "Leave it out, and refresh where the bundle is made."
        raise FleetError(
            [Problem(("refresh",), text, fix, tuple(sorted({name for *_unused, name in found})))]
        )
    text = "is not pinned in fleet.lock.json, and with air_gap no registry or hub is asked."
    fix = "Copy fleet.lock.json from the bundle to the inventory; if it is not pinned there either, make a new bundle."
    if found:
        raise FleetError([Problem(path, f"{what} {text}", fix, (name,)) for path, what, name in found])


def air_gap_problems(
    steps: Iterable[tuple[Host, Sequence[ImageStep], Sequence[ModelStep]]], transfers: Iterable[Transfer]
) -> list[Problem]:
    """Return what hosts do not have, neither in their content stores nor from another host."""
    passed = {(item.name, member.host.name) for item in transfers for member in item.receivers}
    lacking: dict[tuple[str, str], list[str]] = {}
    for host, images, models in steps:
        if not host.settings.air_gap or host.state is None:
            continue
        for image in images:
            if image.build:
                text = f"image {image.ref} would be built, which fetches its sources."
                lacking.setdefault((text, BUILD), []).append(host.name)
        wanted: list[tuple[ImageStep | ModelStep, str]]
        wanted = [(step, f"image {step.ref}") for step in images if not step.build]
        wanted += [(step, f"model {step.called}") for step in models if not step.verify]
        for step, called in wanted:
            if not has_stored(host, step) and (name_of(step), host.name) not in passed:
                text = f"{called} is in no content store from which this host could get it."
                lacking.setdefault((text, LOAD), []).append(host.name)
    return [Problem((VARIABLE,), text, fix, tuple(hosts)) for (text, fix), hosts in lacking.items()]
