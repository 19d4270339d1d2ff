# SPDX-License-Identifier: Apache-2.0
"""Find what is held if a release is turned back: at which generations, and which other deployments with it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ....module_utils.service.generations import Generation, GenerationMember, History, Hold
from ..desired.fleet import Host
from ..generations.revisions import RevisionChange
from ..generations.sources import HELD, INVENTORY, histories_by_name, running_numbers
from ..instances.planned import running_member
from .batches import Batch
from .members import RolloutInstance

Revisions = Mapping[str, RevisionChange]
Holds = dict[str, Hold]


def earlier_generations(revisions: Revisions, hosts: Sequence[Host]) -> dict[str, int]:
    """Return the generation to which each deployment goes back; 0 for one that did not serve before.

    After a release was turned back, what the same run was to remove keeps running until the next one. It also comes
    back, unless another deployment has its place by then.
    """
    mine = {name: revision for name, revision in revisions.items() if revision.source.kind == INVENTORY}
    both = {name: _earlier(revision, hosts) for name, revision in mine.items()}
    together: dict[str, int] = {}
    for revision in mine.values():
        together |= {name: number for name, number in _together(revision, hosts).items() if name in mine}
    found = {name: number for name, (number, _removed) in both.items()} | together
    stay = {name: one.generation or 0 for name, one in revisions.items() if one.source.kind == HELD} | found
    for name in (one for one in mine if one not in together):
        number, removed = both[name]
        others = {other: kept for other, kept in stay.items() if other != name}
        if removed != number and _has_a_place_of(others, name, number, hosts):
            found[name] = stay[name] = removed
    return found


def _has_a_place_of(others: Mapping[str, int], name: str, number: int, hosts: Sequence[Host]) -> bool:
    """Return whether a generation needs a port or a GPU on a host that generations of other deployments have there."""
    for host in hosts:
        made = _history(host, name).as_of(number)
        there = [_history(host, other).as_of(kept) for other, kept in others.items()]
        taken = [item for one in there if one for item in one.members]
        if made and any(_collide(item, other) for item in made.members for other in taken):
            return True
    return False


def _collide(one: GenerationMember, other: GenerationMember) -> bool:
    shared = {*one.render_nodes} & {*other.render_nodes}
    return bool({*one.ports} & {*other.ports} or (shared and one.share + other.share > 1 + 1e-9))


def _together(revision: RevisionChange, hosts: Sequence[Host]) -> dict[str, int]:
    """Return what goes back with a deployment whose rollout an earlier run began; all its records must agree."""
    histories = histories_by_name(hosts, revision.deployment) if revision.source.trial else ()
    found = [set(history.trial.together.items()) for history in histories if history.trial]
    return dict(set.intersection(*found)) if found else {}


def _earlier(revision: RevisionChange, hosts: Sequence[Host]) -> tuple[int, int]:
    """Return the generation to which a deployment goes back: as things run now, and after all removals."""
    source, name, number = revision.source, revision.deployment, revision.generation or 0
    if source.held and source.held.generation != number:
        return source.held.generation, source.held.generation  # others that run were turned back
    if source.trial and source.trial.before is not None:
        return source.trial.before, source.trial.before
    recorded = [_history(host, name).as_of(number - 1) for host in hosts]
    runs = [running_numbers(host, name) - {number} for host in hosts]
    stay = [set() if made and not made.members else found for made, found in zip(recorded, runs, strict=True)]
    return _newest(recorded, runs), _newest(recorded, stay)


def _newest(recorded: Sequence[Generation | None], runs: Sequence[Collection[int]]) -> int:
    """Return the number as of which each host has what it has now; 0 if nothing has served.

    recorded: each host's last record; runs: the numbers that run there.
    """
    idle = [made for made, found in zip(recorded, runs, strict=True) if made and not found]
    # If nothing runs anywhere: what ran last.
    served = set().union(*runs) or {made.generation for made in idle if made.members}
    removed = {made.generation for made in idle if not made.members}
    # As of the newest of these, each host has what it has now: it records only changes of its own.
    return max(served | removed) if served else 0


def holds_of(
    batches: Sequence[Batch], revisions: Revisions, hosts: Sequence[Host], earlier: Mapping[str, int]
) -> dict[str, Holds]:
    """Return, for each deployment that starts instances, the holds that follow if it is turned back, without reasons.

    Held with it are deployments with which it exchanges GPUs or ports, as they cannot continue without it; those that
    stop serving a model name which it takes over, as nobody would serve it; and the deployments that depend on these in
    turn; but not what serves elsewhere as it should here. Nothing is held because of a definition that is not new, nor
    if what ran before cannot be kept: it is unknown, or an engine of it needs a host that does not take part.
    """
    members = [item for batch in batches for group in batch.groups for item in group.members]
    coming = {item.deployment for item in members if item.new is not None}
    own = {one for one in revisions if one in earlier and _is_new(revisions[one], hosts, earlier[one])}
    exchanges = _exchanges([*_changing(batches, own), *_begun(revisions, hosts, own, earlier)])
    found: dict[str, Holds] = {}
    for name in dict.fromkeys(batch.deployment for batch in batches if batch.deployment in coming & own):
        names = _bound(name, [item for item in members if item.deployment in own], exchanges)
        if _unrecorded(name, hosts) or _torn(names, members, hosts, earlier):
            continue
        found[name] = {
            one: Hold(earlier[one], "", "", (revisions[one].generation or 0,), tuple(sorted(names - {one})))
            for one in sorted(names)
        }
    return found


def _is_new(revision: RevisionChange, hosts: Sequence[Host], earlier: int) -> bool:
    """Return whether a definition serves only through a rollout that is still open, and is not what that goes back to.

    An operator may put the latter back in the inventory after a rollout was interrupted.
    """
    number = revision.generation
    if revision.source.kind != INVENTORY or number is None:
        return False
    runs = [(host, found) for host in hosts if (found := running_numbers(host, revision.deployment))]
    # If it runs and no rollout is recorded there, it ran before: the others only join.
    if any(number in found and not _history(host, revision.deployment).trial for host, found in runs):
        return False
    if set().union(*(found for _host, found in runs)) == {number} and not revision.source.trial:
        return False
    return any(_changes(revision, host, earlier) for host in hosts)


def _changes(revision: RevisionChange, host: Host, earlier: int) -> bool:
    """Return whether a host's instances will differ from those of an earlier generation."""
    step, history = revision.hosts.get(host.name), _history(host, revision.deployment)
    if step:
        new = step.record or history.as_of(step.wanted or 0)
    elif revision.source.held and history.newest and not history.newest.members:
        new = history.newest  # it runs again, as its removal was turned back
    else:
        return False
    old = history.as_of(earlier)
    return (new.specs if new else {}) != (old.specs if old else {})


def _history(host: Host, deployment: str) -> History:
    return next(histories_by_name([host], deployment), History(deployment))


def _unrecorded(name: str, hosts: Sequence[Host]) -> bool:
    """Return whether a host has instances of a deployment that no record describes."""
    return any(
        item.deployment == name and running_member(host.state, item) is None
        for host in hosts
        if host.state
        for item in host.state.instances
    )


def _torn(
    names: Collection[str],
    members: Iterable[RolloutInstance],
    hosts: Sequence[Host],
    earlier: Mapping[str, int],
) -> bool:
    """Return whether an instance that changes goes back to an engine that needs a host which does not take part."""
    here = {host.name: host for host in hosts}
    return any(
        not here.keys() >= {*old.hosts}
        for item in members
        if item.deployment in names and item.host in here
        if (made := _history(here[item.host], item.deployment).as_of(earlier[item.deployment]))
        for old in made.members
        if old.name == item.name
    )


def _changing(batches: Iterable[Batch], own: Collection[str]) -> Iterator[set[str]]:
    """Yield the deployments, of these, that change in one group."""
    for group in (group for batch in batches for group in batch.groups):
        yield {item.deployment for item in group.members if item.deployment in own}


def _begun(
    revisions: Revisions, hosts: Sequence[Host], own: Collection[str], earlier: Mapping[str, int]
) -> Iterator[set[str]]:
    """Yield the deployments that would be held together by a rollout which an earlier run began."""
    for name in own:
        yield {name, *(_together(revisions[name], hosts).keys() & earlier.keys())}


def _exchanges(sets: Iterable[set[str]]) -> dict[str, set[str]]:
    """Return, for each deployment of these sets, those with which it shares a set, directly or through others.

    They include itself.
    """
    found: dict[str, set[str]] = {}
    for names in sets:
        joined = names.union(*(found.get(name, ()) for name in names))
        found |= dict.fromkeys(joined, joined)
    return found


def _bound(name: str, members: Sequence[RolloutInstance], exchanges: Mapping[str, set[str]]) -> set[str]:
    """Return the deployments that cannot continue without this one, directly or through others, including itself."""
    names: set[str] = set()
    more = exchanges[name]
    while not more <= names:
        names |= more
        more = {one for other in _giving_up(names, members) for one in exchanges[other]}
    return names


def _giving_up(names: Collection[str], members: Sequence[RolloutInstance]) -> set[str]:
    """Return the deployments that give up model names which these deployments must serve.

    One that is removed may give up any name that these serve, as its share goes with it. One that stays counts only for
    names that these do not serve yet.
    """
    theirs = [item for item in members if item.deployment in names and item.new]
    serve = {model for item in theirs for model in item.models}
    gain = {model for item in theirs for model in {*item.models}.difference(item.old_models)}
    return {
        item.deployment
        for item in members
        if (gain if item.new else serve).intersection(
            {*item.old_models}.difference(item.models if item.new else ())
        )
    }
