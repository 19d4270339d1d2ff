# SPDX-License-Identifier: Apache-2.0
"""Plan how several hosts get the same images and weights: one fetches them, and they pass them on. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ....module_utils.common.paths import DATA_DIR, DOCKER_ROOT, UNPACK_FACTOR
from ....module_utils.content.transfer_names import build_name, image_name, model_name
from ...base.text import join_names, plural
from ..changes.actions import ImageStep, ModelStep
from ..changes.disk_space import disk_of
from ..desired.actions import DEBIAN, Action, size
from ..desired.fleet import Host
from ..observed.node_state import NodeState

IMAGE, MODEL, BUILD, REPOSITORY = "image", "model", "build", "repository"
NOUNS = {BUILD: IMAGE, REPOSITORY: MODEL}
"""Names for messages, where these are not the kind."""
AUTO, PEERS, ORIGIN = "auto", "peers", "origin"
MANY = 3
"""Hosts that need the same before they share it: with fewer, one more copy from the origin is quicker than a swarm."""
MODEL_PORTS = 200
"""How far the ports of models are from those of images: a run plans the two separately."""
LINE_RATE = 0.9
"""The share of a declared rate that arrives."""
HUB = "https://huggingface.co"
INSIDE = ("docker", "br-", "veth", "virbr", "cni", "flannel", "lo")
"""Name prefixes of the interfaces of containers and virtual machines, which no other host reaches."""
SOURCE = "docs/distribution.md"


@dataclass(frozen=True)
class TransferMember:
    """A host of a transfer, and the address where others reach it meanwhile. has: what it has before, if any."""

    host: Host
    address: str
    has: str = ""


@dataclass(frozen=True)
class Transfer:
    """An image or a model that hosts pass on to each other.

    kind: BUILD is an image that the seed builds first, REPOSITORY a model that was made on the fleet.

    bytes: 0 where they are not known yet. what: its name for people. origin: from where the seed gets it, "" if it has
    it. offer: the seed's arguments of blob_fetch. seconds, bound: an estimate, and the rate that decides it; only of
    declared rates. of_build: a host has pushed the image to its origin.
    """

    name: str
    kind: str
    what: str
    bytes: int
    origin: str
    seed: TransferMember
    receivers: tuple[TransferMember, ...]
    offer: Mapping[str, Any]
    port: int
    seconds: float | None = None
    bound: str = ""
    of_build: bool = False

    @property
    def members(self) -> tuple[TransferMember, ...]:
        """Return the seed and the receivers."""
        return (self.seed, *self.receivers)

    def to_json(self) -> dict[str, Any]:
        """Return an entry of `transfers` in plan.json."""
        members = [
            {"name": item.host.name, "address": item.address, "port": self.port, "serves": item is self.seed}
            for item in self.members
        ]
        return {
            "name": self.name,
            "kind": self.kind,
            "what": self.what,
            "bytes": self.bytes,
            "origin": self.origin or None,
            "seed": self.seed.host.name,
            "offer": dict(self.offer),
            "members": members,
            "seconds": None if self.seconds is None else round(self.seconds),
            "bound": self.bound or None,
        }


@dataclass
class _Need:
    """The hosts that need something, and its step on each of them."""

    kind: str
    what: str
    lacking: list[tuple[Host, ImageStep | ModelStep]] = field(default_factory=list)


def plan_transfers(
    steps: Iterable[tuple[Host, Sequence[ImageStep], Sequence[ModelStep]]], everyone: Sequence[Host]
) -> tuple[tuple[Transfer, ...], tuple[str, ...]]:
    """Return what hosts pass on, and warnings about those that must fetch for themselves.

    steps: what each host needs. everyone: hosts that may have what others need.
    """
    found: list[Transfer] = []
    warnings: dict[str, dict[str, None]] = {}
    steps = tuple(steps)
    room = {host.name: _free_bytes(host, images, models) for host, images, models in steps}
    members: dict[str, TransferMember | None] = {}
    for name, need in sorted(_needs(steps).items()):
        choices = [_way(host) for host, _unused in need.lacking]
        if choices.count(ORIGIN) > len(choices) - MANY and PEERS not in choices:
            continue
        able: list[tuple[TransferMember, ImageStep | ModelStep]] = []
        for host, step in need.lacking:
            if _way(host) == ORIGIN:
                continue
            if host.name not in members:
                members[host.name] = member_of(host)
            member, amount = members[host.name], step.bytes or 0
            if member is None:
                warnings.setdefault(no_address(host), {})[host.name] = None
            elif room[host.name][need.kind] < amount:
                warnings.setdefault(_no_space_warning(need, amount), {})[host.name] = None
            else:
                able.append((member, step))
        transfer = _transfer(name, need, able, everyone, len(found))
        if transfer:
            found.append(transfer)
            for member, step in able:
                room[member.host.name][need.kind] -= step.bytes or 0
    return tuple(found), tuple(f"{join_names(list(hosts))}: {text}" for text, hosts in warnings.items())


def _needs(
    steps: Iterable[tuple[Host, Sequence[ImageStep], Sequence[ModelStep]]],
) -> dict[str, _Need]:
    """Group the hosts by what they need."""
    found: dict[str, _Need] = {}
    names: dict[tuple[Any, ...], str] = {}
    for host, images, models in steps:
        if host.state is None or host.state.euid != 0:
            continue
        for image in images:
            if image.digest and not image.build and not (host.settings.air_gap and has_stored(host, image)):
                need = found.setdefault(name_of(image), _Need(IMAGE, image.ref))
                need.lacking.append((host, image))
        for model in models:
            if model.verify or not model.files or not model.commit:
                continue
            if host.settings.air_gap and has_stored(host, model):
                continue
            key = (model.repo, model.commit, model.include, model.exclude, len(model.files), model.bytes)
            if key not in names:  # a hash of all files, which are the same for the same patterns
                names[key] = name_of(model)
            need = found.setdefault(names[key], _Need(MODEL, model.called))
            need.lacking.append((host, model))
    return found


def _transfer(
    name: str,
    need: _Need,
    able: Sequence[tuple[TransferMember, ImageStep | ModelStep]],
    everyone: Sequence[Host],
    number: int,
) -> Transfer | None:
    """Return how these hosts get it from each other; None if each fetches for itself."""
    insisting = any(_way(member.host) == PEERS for member, _unused in able)
    if len(able) < (1 if insisting else MANY):
        return None
    step = able[0][1]
    holder = next(filter(None, (_holder(host, name, step) for host in everyone)), None)
    if holder is None and (len(able) < 2 or able[0][0].host.settings.air_gap):
        return None
    seed = holder or able[0][0]
    receivers = tuple(member for member, _unused in able if member.host.name != seed.host.name)
    if not receivers:
        return None
    origin = "" if holder else _origin(step)
    amount = step.bytes or 0
    seconds, bound = estimate_seconds(amount, [seed, *receivers], bool(origin))
    # Two ports each: what is moved at the same time must not meet, nor a program that has not ended yet.
    port = seed.host.settings.distribution_port + 2 * number + (MODEL_PORTS if need.kind == MODEL else 0)
    of_build = isinstance(step, ImageStep) and step.of_build
    return Transfer(
        name,
        need.kind,
        need.what,
        amount,
        origin,
        seed,
        receivers,
        offer_of(step),
        port,
        seconds,
        bound,
        of_build,
    )


def _holder(host: Host, name: str, step: ImageStep | ModelStep) -> TransferMember | None:
    """Return a host that has it already, in its store, or a model in its cache."""
    if host.state is None or _way(host) == ORIGIN:
        return None
    there = name in host.state.stored
    # Otherwise the seed's cache is read; the store's files are the same ones.
    if isinstance(step, ModelStep) and not (there and host.settings.air_gap):
        there = any(
            item.complete
            and (item.cache_dir.rstrip("/"), item.repo, item.commit)
            == (step.cache_dir, step.repo, step.commit)
            and (item.exclude, item.include) == (step.exclude, step.include)
            for item in host.state.models
        )
    return member_of(host) if there else None


def _way(host: Host) -> str:
    return PEERS if host.settings.air_gap else host.settings.fetch_from


def has_stored(host: Host, step: ImageStep | ModelStep) -> bool:
    """Return whether the host's content store has what a step installs."""
    return host.state is not None and bool(host.state.stored) and name_of(step) in host.state.stored


def member_of(host: Host) -> TransferMember | None:
    """Return the host with an address of its own; None if it has none that others can use."""
    state, name = host.state, host.settings.distribution_interface
    if state is None or not _has_engine(state):
        return None
    if name:
        own = [item.addresses for item in state.interfaces if item.name == name and item.up]
        return TransferMember(host, own[0][0]) if own and own[0] else None
    try:
        address = ipaddress.ip_address(host.address or host.name)
        return None if address.is_loopback else TransferMember(host, str(address))
    except ValueError:  # a name: it is clear which address that is if there is one only
        found = [
            text
            for item in state.interfaces
            if item.up and not item.name.startswith(INSIDE)
            for text in item.addresses
            if ":" not in text and not ipaddress.ip_address(text).is_loopback
        ]
        return TransferMember(host, found[0]) if len(found) == 1 else None


def _has_engine(state: NodeState) -> bool:
    return state.libtorrent or state.os_id in DEBIAN


def no_address(host: Host) -> str:
    """Return why a host takes part in no transfer."""
    if host.state is not None and not _has_engine(host.state):
        return "each host fetches images and weights from their origin, as python3-libtorrent is not there"
    if host.settings.distribution_interface:
        return (
            f"each host fetches images and weights from their origin, as distribution_interface "
            f"{host.settings.distribution_interface} is not up with an address there"
        )
    return (
        "each host fetches images and weights from their origin, as no IP address is known where others reach it "
        "(instinct_address, ansible_host, or distribution_interface)"
    )


def _no_space_warning(need: _Need, amount: int) -> str:
    return (
        f"{need.kind} {need.what} comes from its origin, as there is no space for another {size(amount)} in "
        f"{DATA_DIR}/store"
    )


def _free_bytes(host: Host, images: Sequence[ImageStep], models: Sequence[ModelStep]) -> dict[str, float]:
    """Return the bytes that the content store may take, for images and for models.

    A model's files are the cache's own where both are on one file system.
    """
    endless = {IMAGE: float("inf"), MODEL: float("inf")}
    store = disk_of(host.state.disks, DATA_DIR) if host.state else None
    if host.state is None or store is None:
        return endless
    docker = disk_of(host.state.disks, host.state.docker_root or DOCKER_ROOT)
    cache = disk_of(host.state.disks, host.settings.cache_dir)
    free = store.free_bytes
    if docker and docker.device == store.device:
        free -= sum((item.bytes or 0) * UNPACK_FACTOR for item in images)
    shared = cache is not None and cache.device == store.device
    if shared:
        free -= sum(item.bytes for item in models)
    return {IMAGE: free, MODEL: float("inf") if shared else free}


def _origin(step: ImageStep | ModelStep) -> str:
    return step.registry if isinstance(step, ImageStep) else step.endpoint or HUB


def offer_of(step: ImageStep | ModelStep) -> dict[str, Any]:
    """Return the arguments of blob_fetch, and the registry of an image."""
    if isinstance(step, ImageStep):
        return {"image": {"pull": step.pull}, "registry": step.registry}
    given = {
        "repo": step.repo,
        "commit": step.commit,
        "revision": step.revision,
        "files": dict(step.files),
        "hashes": dict(step.hashes),
        "cache_dir": step.cache_dir,
    }
    return {"model": given}


def estimate_seconds(
    amount: int, members: Sequence[TransferMember], fetched: bool
) -> tuple[float | None, str]:
    """Return how long a transfer takes, and the rate that decides; nothing where no rate is known.

    fetched: it comes over the seed's uplink first, while the others already get it.
    """
    rates: dict[str, float] = {}
    for number, member in enumerate(members):
        own = dict(member.host.settings.distribution_rates)
        if number == 0 and fetched and "uplink" in own:
            rates["uplink"] = own["uplink"] * 125_000
        if "interface" in own:
            rates["interface"] = min(rates.get("interface", float("inf")), own["interface"] * 125_000)
        if "disk" in own:
            rates["disk"] = min(rates.get("disk", float("inf")), own["disk"] * 1_000_000)
    if not rates or not amount:
        return None, ""
    bound = min(rates, key=lambda name: rates[name])
    return amount / rates[bound] / LINE_RATE, bound


@dataclass(frozen=True)
class HostTransfer:
    """A host's part of a transfer. seeds: the others get it from this host. seed: the host from which they get it.

    of_build: it is of an image that a host has built. repository: the local repository that it copies here.
    """

    name: str
    action: Action
    seeds: bool
    seed: str = ""
    of_build: bool = False
    repository: Mapping[str, str] | None = None


def transfers_by_host(transfers: Iterable[Transfer]) -> dict[str, list[HostTransfer]]:
    """Return the transfers in which each host takes part."""
    found: dict[str, list[HostTransfer]] = {}
    for item in transfers:
        seed = item.seed.host.name
        why = f"{plural(len(item.receivers) + bool(item.origin), 'host')} need it"
        fetches = "builds it" if item.kind == BUILD else f"fetches {size(item.bytes)} from {item.origin}"
        first = f"{seed} {fetches}" if item.origin else f"{seed} has it"
        after = f"{first}, and {plural(len(item.receivers), 'host')} get it there and from each other"
        own = _action(item, "absent" if item.origin else "present", after, why)
        built = item.kind == BUILD or item.of_build
        found.setdefault(seed, []).append(HostTransfer(item.name, own, True, seed, built))
        for member in item.receivers:
            action = _action(item, member.has or "absent", after, why)
            brought = item.offer.get("repository")
            received = HostTransfer(item.name, action, False, seed, built, brought)
            found.setdefault(member.host.name, []).append(received)
    return found


_Step = TypeVar("_Step", ImageStep, ModelStep)


def mark_offered(step: _Step, offered: Collection[str]) -> _Step:
    """Return a step marked as one whose result other hosts get; offered: names."""
    return replace(step, offered=True) if offered and name_of(step) in offered else step


def name_of(step: ImageStep | ModelStep) -> str:
    """Return the name of what a step installs."""
    if isinstance(step, ImageStep):
        return build_name(step.ref) if step.build else image_name(step.digest)
    return model_name(step.repo, step.commit, step.files)


def _action(item: Transfer, before: str, after: str, why: str) -> Action:
    kind = NOUNS.get(item.kind, item.kind)
    return Action("transfer", "distribution", f"{kind} {item.what}", before, after, why, SOURCE)


def transfer_lines(transfers: Sequence[Transfer]) -> list[str]:
    """Return the plan's text about the bytes that move, by source."""
    lines = ["", "Transfers"] if transfers else []
    for item in transfers:
        seed = item.seed.host.name
        first = f"{size(item.bytes)} from {item.origin} to {seed}" if item.origin else f"{seed} has it"
        hosts = join_names([member.host.name for member in item.receivers])
        lacking = sum(not member.has for member in item.receivers)
        total = f"{size(item.bytes * lacking)} " if item.bytes and lacking else ""
        if item.kind == BUILD and item.origin:
            first = f"{seed} builds it"
        kind = NOUNS.get(item.kind, item.kind)
        lines.append(f"  {kind} {item.what}: {first}, then {total}between hosts, to {hosts}{_time(item)}")
    return lines


def _time(item: Transfer) -> str:
    if item.seconds is None:
        return ""
    minutes = max(1, round(item.seconds / 60))
    return f"; about {minutes} min, as the {item.bound} allows"
