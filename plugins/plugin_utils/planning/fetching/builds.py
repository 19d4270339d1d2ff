# SPDX-License-Identifier: Apache-2.0
"""Plan which host builds an image, and that the others get it from there. Pure.

An image is built once: two builds of the same inputs differ in their bytes. So what is built is pinned by its id, a
host that has it passes it on, and none builds what the lock file has already.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ....module_utils.common.errors import Problem
from ....module_utils.common.hashing import text_hash
from ..changes.actions import ImageStep
from ..desired.actions import has_build
from ..desired.fleet import Fleet, Host
from ..observed.node_state import Image
from ..pins.lockfile import BuildPin, Lock
from .transfers import BUILD, Transfer, TransferMember, estimate_seconds, member_of, name_of, no_address

BUILD_PORTS = 400
"""How far the ports of builds are from those of images; those of models come before."""
SLOTS = 60
"""Builds of one run that have ports of their own; so many local repositories come after them."""
HASH = "hash"
"""The label that every image has that was built (docker/build.py)."""


@dataclass
class _Wanted:
    """An image to build, the hosts without it, and those that have it."""

    step: ImageStep
    lacking: list[Host] = field(default_factory=list)
    having: list[Host] = field(default_factory=list)


def build_transfers(
    steps: Iterable[tuple[Host, Sequence[ImageStep]]], everyone: Sequence[Host]
) -> tuple[Transfer, ...]:
    """Return the builds that hosts get from another one."""
    found: list[Transfer] = []
    slots: set[int] = set()
    for _unused, want in sorted(_wanted(steps, everyone).items()):
        if want.step.build and want.step.build.push_to:
            continue
        holders = [member for host in want.having if (member := _member(host))]
        lacking = [member for host in want.lacking if (member := _member(host))]
        members = [*holders[:1], *lacking]
        if len(members) < 2:
            continue
        seed, receivers = members[0], tuple(members[1:])
        build, amount = want.step.build, want.step.bytes or 0
        seconds, bound = estimate_seconds(amount, members, False)
        found.append(
            Transfer(
                name_of(want.step),
                BUILD,
                want.step.ref,
                amount,
                "" if holders or build is None else build.repo,
                seed,
                receivers,
                {"built": want.step.ref},
                seed.host.settings.distribution_port + BUILD_PORTS + 2 * port_slot(want.step.ref, slots),
                seconds,
                bound,
            )
        )
    return tuple(found)


def port_slot(name: str, taken: set[int]) -> int:
    """Return the number of a transfer's ports, by its name: what an earlier run moved may not have ended yet."""
    first = int(text_hash(name)[:8], 16) % SLOTS
    slot = next((at % SLOTS for at in range(first, first + SLOTS) if at % SLOTS not in taken), first)
    taken.add(slot)
    return slot


def build_obstacles(
    steps: Iterable[tuple[Host, Sequence[ImageStep]]], everyone: Sequence[Host], late: bool = False
) -> dict[str, tuple[Problem, ...]]:
    """Return why hosts cannot have the image that the others have, by host.

    late: it is the second plan of a run, in which nothing is built or pushed any more.
    """
    found: dict[str, list[Problem]] = {}
    for want in _wanted(steps, everyone).values():
        for host in want.lacking:
            problem = _obstacle(want, host, late)
            if problem:
                found.setdefault(host.name, []).append(problem)
    return {name: tuple(problems) for name, problems in found.items()}


def _obstacle(want: _Wanted, host: Host, late: bool) -> Problem | None:
    """Return why a host can neither build the image nor get it."""
    tag, path = want.step.ref, ("vllm_deployments",)
    push_to = want.step.build.push_to if want.step.build else ""
    if late and (push_to or not want.having):
        there = f"pushed to {push_to}, from which this host pulls it" if push_to else "built"
        what = f"{tag} was not {there}; the other host's error above says why."
        return Problem(path, what, "Run again: what was built is kept.", (host.name,))
    if want.step.image_id and not want.having and host.state is not None:
        what = f"{tag} was built as {want.step.image_id[:19]}, and no host of this run has it."
        fix = "Include a host that has it (--limit); else -e refresh=true builds it again, with other bytes."
        return Problem(path, what, fix, (host.name,))
    alone = (len(want.lacking) == 1 and not want.having) or bool(push_to)
    if not alone and _member(host) is None:
        what = f"cannot get {tag}, which another host builds: {no_address(host).partition(', as ')[2]}."
        return Problem(path, what, "Set distribution_interface or instinct_address.", (host.name,))
    if not push_to and want.having and not any(map(_member, want.having)):
        names = ", ".join(item.name for item in want.having)
        what = f"cannot get {tag} from {names}, the only ones that have it: no address of theirs is known."
        return Problem(path, what, "Set distribution_interface or instinct_address there.", (host.name,))
    return None


def _member(host: Host) -> TransferMember | None:
    """Return the host with its address; one that was not contacted is taken to have that of the inventory."""
    return TransferMember(host, host.address or host.name) if host.state is None else member_of(host)


def _wanted(
    steps: Iterable[tuple[Host, Sequence[ImageStep]]], everyone: Sequence[Host]
) -> Mapping[str, _Wanted]:
    found: dict[str, _Wanted] = {}
    for host, images in steps:
        for step in images:
            if step.build and not has_build(host.state, step.ref, step.image_id):
                found.setdefault(step.ref, _Wanted(step)).lacking.append(host)
    for tag, want in found.items():
        want.having = [host for host in everyone if has_build(host.state, tag, want.step.image_id)]
    return found


def mark_received(step: ImageStep, sources: Mapping[str, str]) -> ImageStep:
    """Return a step marked as one whose image another host builds. sources: these hosts by name_of()."""
    source = sources.get(name_of(step), "") if step.build else ""
    return replace(step, source=source) if source else step


def merge_built(fleet: Fleet, lock: Lock) -> Lock:
    """Return the lock with what hosts have built; the same object if there is nothing new.

    A pin stays as long as a host has its image. Otherwise the image that most hosts have takes its place.
    """
    tags = {item.build.tag for host in fleet.hosts for item in host.deployments if item.build}
    found: dict[str, BuildPin] = {}
    for tag in sorted(tags):
        images = [
            image
            for host in fleet.hosts
            for image in (host.state.images if host.state else ())
            if tag in image.tags and dict(image.build).get(HASH)
        ]
        pin = _pin(images, lock.builds.get(tag))
        if pin and pin != lock.builds.get(tag):
            found[tag] = pin
    return lock.merged(Lock(builds=found)) if found else lock


def drop_lost_builds(fleet: Fleet, lock: Lock) -> Lock:
    """Return the lock without the builds that no host has any more, so that they are built again."""
    there = {
        tag
        for host in fleet.hosts
        for image in (host.state.images if host.state else ())
        for tag in image.tags
    }
    return replace(lock, builds={tag: pin for tag, pin in lock.builds.items() if tag in there})


def _pin(images: Collection[Image], known: BuildPin | None) -> BuildPin | None:
    counts = Counter(image.id for image in images)
    if not counts:
        return known
    chosen = known.image_id if known and known.image_id in counts else counts.most_common(1)[0][0]
    same = [image for image in images if image.id == chosen]
    labels = dict(same[0].build)
    software = next((image.software for image in same if image.software), None)
    if known and known.image_id == chosen:
        return replace(known, software=known.software or software)
    return BuildPin(
        chosen,
        labels.get("inputs", ""),
        labels.get("commit", ""),
        tuple(sorted(_bases(labels.get("bases", "")).items())),
        same[0].bytes or None,
        software,
    )


def _bases(text: str) -> dict[str, str]:
    """Return the base images of the label; anything but the toolkit's own JSON counts as unknown."""
    try:
        data = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(name): str(digest) for name, digest in data.items()} if isinstance(data, dict) else {}
