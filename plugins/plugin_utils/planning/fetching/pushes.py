# SPDX-License-Identifier: Apache-2.0
"""Plan which host pushes a built image to the operator's registry, from which the others pull it by digest.

The engine that has pushed an image knows its digest there, and node_state reports it. It is pinned when the registry
confirms it, and is what hosts pull from then on. What the registry has lost is pushed again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....module_utils.common.errors import FleetError, Path, Problem
from ....module_utils.content.image_ref import parse_ref
from ....module_utils.content.transfer_names import build_name
from ..changes.actions import ImageStep
from ..desired.actions import Action, has_build
from ..desired.deployment_parts import Build
from ..desired.fleet import Fleet, Host
from ..pins.lockfile import BuildPin, ImagePin, Lock

SOURCE = "docs/build.md"

Ask = Callable[[str, Path, Host], ImagePin | None]
"""Returns digest and size of an image, repository@digest, as its registry has it; None if it does not. Raises
FleetError if the registry does not say."""


@dataclass(frozen=True)
class Push:
    """An image that a host has or builds, and the repository to which it pushes it. image_id: "" until it is built."""

    tag: str
    push_to: str
    host: str
    image_id: str

    @property
    def name(self) -> str:
        """Return the name of what is pushed, as transfers name it."""
        return build_name(self.tag)

    @property
    def action(self) -> Action:
        """Return the action of the host."""
        before = "built" if self.image_id else "absent"
        reason = "other hosts pull it from there"
        return Action("push", "vllm_image", self.tag, before, f"pushed to {self.push_to}", reason, SOURCE)

    def to_json(self) -> dict[str, Any]:
        """Return the arguments of the module image_push, and the registry."""
        return {
            "ref": self.tag,
            "push_to": self.push_to,
            "registry": parse_ref(self.push_to).registry,
            **({"image_id": self.image_id} if self.image_id else {}),
        }


def plan_pushes(
    steps: Iterable[tuple[Host, Sequence[ImageStep]]], hosts: Sequence[Host], lock: Lock
) -> tuple[Push, ...]:
    """Return the pushes of what no registry has yet: by a host that has the image, else by the one that builds it.

    steps: the images that hosts do not have. hosts: those of this run, in its order.
    """
    builders: dict[str, Host] = {}
    for host, images in steps:
        for step in images:
            if step.build and step.build.push_to:
                builders.setdefault(step.ref, host)
    found = []
    for tag, (build, _unused) in sorted(_builds(hosts).items()):
        pin = lock.builds.get(tag)
        image_id = pin.image_id if pin else ""
        if not build.push_to or (pin and pin.pushed_at(build.push_to)):
            continue
        holders = [
            host for host in hosts if has_build(host.state, tag, image_id) and not host.settings.air_gap
        ]
        pusher = holders[0] if holders else builders.get(tag)
        if pusher is not None:
            found.append(Push(tag, build.push_to, pusher.name, image_id if holders else ""))
    return tuple(found)


def pinned_pushes(fleet: Fleet, lock: Lock, check: bool, ask: Ask) -> Lock:
    """Return the lock with what registries have of built images; the same object if there is nothing new.

    A pin is trusted, unless a host does not have its image, or with `check`. Raise FleetError for registries that do
    not say whether they have what was pushed.
    """
    found: dict[str, BuildPin] = {}
    problems: list[Problem] = []
    for tag, (build, path) in sorted(_builds(fleet.hosts).items()):
        pin = lock.builds.get(tag)
        hosts = [host for host in _users(fleet.hosts, tag) if not host.settings.air_gap]
        if pin is None or not build.push_to or not hosts:
            continue
        known = pin.pushed_at(build.push_to)
        if known and not check and all(has_build(host.state, tag, pin.image_id) for host in hosts):
            continue
        try:
            new = _confirmed(
                pin, [*filter(None, (known,)), *_seen(fleet, pin, build.push_to)], path, hosts[0], ask
            )
        except FleetError as error:
            problems += [] if known else error.problems  # it was there; a host that pulls it will find out
            continue
        if new != pin:
            found[tag] = new
    if problems:
        raise FleetError(problems)
    return lock.merged(Lock(builds=found)) if found else lock


def _confirmed(pin: BuildPin, names: Iterable[str], path: Path, host: Host, ask: Ask) -> BuildPin:
    """Return the pin with the first of these names that the registry has; without one if it has none of them."""
    for name in dict.fromkeys(names):
        found = ask(name, path, host)
        if found:
            return replace(pin, pushed=name, pushed_bytes=found.bytes)
    return replace(pin, pushed="", pushed_bytes=None)


def _seen(fleet: Fleet, pin: BuildPin, push_to: str) -> Iterator[str]:
    """Yield the names under which hosts have pushed the pinned image to this repository, or pulled it from there."""
    repository = parse_ref(push_to).repository
    for host in fleet.hosts:
        for image in host.state.images if host.state else ():
            if image.id == pin.image_id:
                yield from (name for name in image.digests if name.startswith(f"{repository}@"))


def _builds(hosts: Iterable[Host]) -> Mapping[str, tuple[Build, Path]]:
    """Return the builds of deployments by their tags, each with the place of push_to."""
    found: dict[str, tuple[Build, Path]] = {}
    for host in hosts:
        for item in host.deployments:
            if item.build and not (item.build.tag in found and found[item.build.tag][0].push_to):
                found[item.build.tag] = item.build, (*item.path, "build", "push_to")
    return found


def _users(hosts: Iterable[Host], tag: str) -> Collection[Host]:
    return [host for host in hosts if any(item.build and item.build.tag == tag for item in host.deployments)]
