# SPDX-License-Identifier: Apache-2.0
"""Plan how models that were made on the fleet reach all hosts that serve them. Pure.

Such a model is a local repository, whose path ends in the hash of its file list. No hub has it: a host
that does not have it, or has other bytes, gets it from one that has the original. Nothing is hashed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ....module_utils.common.errors import Problem
from ....module_utils.content.transfer_names import repository_name
from ..desired.fleet import Host
from ..observed.local_repositories import ObservedRepository, display_name, is_local_repository
from .builds import BUILD_PORTS, SLOTS, port_slot
from .transfers import REPOSITORY, Transfer, TransferMember, estimate_seconds, member_of, no_address

REPOSITORY_PORTS = BUILD_PORTS + 2 * SLOTS
"""How far the ports of local repositories are from those of images; those of builds come before."""
AGAIN = "Include a host that has the original (--limit)"


@dataclass(frozen=True)
class _Spread:
    """A local repository, and where it is.

    without: hosts that serve it and do not have the original, with what they have. sources: those that may give it to
    others, the best first. copies: what all hosts have at its path.
    """

    path: str
    without: tuple[tuple[Host, ObservedRepository | None], ...]
    sources: tuple[tuple[Host, ObservedRepository], ...]
    copies: tuple[tuple[Host, ObservedRepository], ...]

    @property
    def signatures(self) -> dict[str, str]:
        """Return the different signatures of the sources, each with a host that has it."""
        return {found.signature: host.name for host, found in reversed(self.sources) if found.signature}


def repository_transfers(hosts: Sequence[Host]) -> tuple[Transfer, ...]:
    """Return the local repositories that hosts get from another one."""
    found: list[Transfer] = []
    slots: set[int] = set()
    for spread in _spreads(hosts):
        seed = _seed(spread)
        if seed is None or len(spread.signatures) > 1:
            continue
        giving, source = seed
        members = (
            replace(member, has=_has(copy) if copy else "")
            for host, copy in spread.without
            if host.name != giving.host.name and (member := member_of(host))
        )
        receivers = tuple(members)
        if not receivers:
            continue
        seconds, bound = estimate_seconds(source.bytes, [giving, *receivers], False)
        name = repository_name(spread.path, source.signature)
        port = giving.host.settings.distribution_port + REPOSITORY_PORTS + 2 * port_slot(spread.path, slots)
        offer = {"repository": {"path": spread.path, "name": name}}
        what = display_name(spread.path)
        found.append(
            Transfer(name, REPOSITORY, what, source.bytes, "", giving, receivers, offer, port, seconds, bound)
        )
    return tuple(found)


def arriving_repositories(hosts: Sequence[Host]) -> dict[str, list[tuple[str, int]]]:
    """Return what comes to hosts that do not have it: names and bytes, by host; less what may be there unverified."""
    found: dict[str, list[tuple[str, int]]] = {}
    for item in repository_transfers(hosts):
        for host in (member.host for member in item.receivers):
            copy = _copy(host, item.offer["repository"]["path"])
            if not (copy and copy.usable):
                found.setdefault(host.name, []).append((f"model {item.what}", item.bytes))
    return found


def repository_obstacles(hosts: Sequence[Host]) -> dict[str, tuple[Problem, ...]]:
    """Return why hosts cannot have the models that were made on the fleet, by host."""
    found: dict[str, list[Problem]] = {}
    for spread in _spreads(hosts):
        for host, copy in spread.without:
            problem = _obstacle(spread, host, copy)
            if problem:
                found.setdefault(host.name, []).append(problem)
    return {name: tuple(problems) for name, problems in found.items()}


def _spreads(hosts: Sequence[Host]) -> Iterable[_Spread]:
    wanted: dict[str, list[Host]] = {}
    for host in hosts:
        paths = (item.model.rstrip("/") for item in host.deployments if is_local_repository(item.model))
        for path in dict.fromkeys(paths) if host.state else ():
            wanted.setdefault(path, []).append(host)
    for path, users in sorted(wanted.items()):
        copies = [(host, copy) for host in hosts if (copy := _copy(host, path))]
        sources = [(host, copy) for host, copy in copies if copy.usable]
        sources.sort(key=lambda item: (not item[1].verified, not item[1].signature))
        signed = any(copy.signature for _unused, copy in sources)
        without = [
            (host, copy)
            for host in users
            if not ((copy := _copy(host, path)) and copy.usable and copy.verified)
            or (signed and not copy.signature)
        ]
        if without:
            yield _Spread(path, tuple(without), tuple(sources), tuple(copies))


def _copy(host: Host, path: str) -> ObservedRepository | None:
    there = host.state.repositories if host.state else ()
    return next((item for item in there if item.path == path), None)


def _seed(spread: _Spread) -> tuple[TransferMember, ObservedRepository] | None:
    """Return the first source that others reach."""
    found = ((member, copy) for host, copy in spread.sources if (member := member_of(host)))
    return next(found, None)


def _has(copy: ObservedRepository) -> str:
    """Return what a host has in place of the original model."""
    if copy.wrong:
        return f"other content ({', '.join(copy.wrong)})"
    if not copy.usable:
        return "there, without its manifest"
    return "there, not signed" if copy.verified else "there, not hashed since it changed"


def _obstacle(spread: _Spread, host: Host, copy: ObservedRepository | None) -> Problem | None:
    """Return why a host cannot have a model; None also if it may have it, which is decided when it is read."""
    path, where = spread.path, ("vllm_deployments",)
    if copy and copy.commit not in ("", copy.own_commit):
        right = next((f", which {other.name} has" for other, _unused in spread.sources), "")
        what = (
            f"{path} has the manifest of commit {copy.commit[:12]}, but its path says {copy.own_commit[:12]}{right}: "
            "these are different models."
        )
        fix = "Move it to the path of its own commit, or remove it; the right one is then copied from another host."
        return Problem(where, what, fix, (host.name,))
    if copy and (copy.usable or not (spread.sources or copy.wrong)):
        return None
    if not spread.sources:
        return _nowhere(spread, host)
    if len(spread.signatures) > 1:
        (one, name), (other, second) = sorted(spread.signatures.items(), key=lambda item: item[1])[:2]
        what = f"{path} is signed differently on {name} ({one}) and {second} ({other}): it is unclear which is meant."
        fix = "Remove model.sig on the host where it is wrong; the other signature is then copied there."
        return Problem(where, what, fix, (host.name,))
    return _unreached(spread, host)


def _nowhere(spread: _Spread, host: Host) -> Problem:
    """Return the problem of a model that no host has in its original form."""
    wrong = [f"{other.name} ({', '.join(found.wrong)})" for other, found in spread.copies if found.wrong]
    what = f"{spread.path} is on no host of this run."
    fix = f"{AGAIN}, or make it with playbooks/quantize.yml, and name the path that it prints."
    if wrong:
        what = f"{spread.path} differs from its manifest on every host that has it: {', '.join(wrong)}."
        fix = f"{AGAIN}. If none has it, remove the directory there, and make it again (playbooks/quantize.yml)."
    return Problem(("vllm_deployments",), what, fix, (host.name,))


def _unreached(spread: _Spread, host: Host) -> Problem | None:
    """Return the problem of a model that cannot be copied because an address is not known."""
    where, what = ("vllm_deployments",), f"cannot get {spread.path}"
    fix = "Set distribution_interface or instinct_address"
    seed = _seed(spread)
    if seed is None:
        names = ", ".join(other.name for other, _unused in spread.sources)
        what += f" from {names}, the only ones that have it: no address of theirs is known."
        return Problem(where, what, f"{fix} there.", (host.name,))
    if member_of(host) is None:
        what += f", which {seed[0].host.name} has: {no_address(host).partition(', as ')[2]}."
        return Problem(where, what, f"{fix}.", (host.name,))
    return None
