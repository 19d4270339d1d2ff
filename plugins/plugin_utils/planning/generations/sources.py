# SPDX-License-Identifier: Apache-2.0
"""Choose the source of each deployment's instances: the inventory, a generation, or what runs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ....module_utils.common.errors import FleetError, Path, Problem, natural, suggest
from ....module_utils.service.generations import (
    DEPLOY,
    ROLLBACK,
    UPGRADE,
    Generation,
    History,
    Hold,
    OpenRollout,
    OperationRequest,
)
from ..desired.fleet import Fleet, Host
from ..instances.planned import RecordedInstance, running_member

INVENTORY, HELD, ROLLED_BACK, RUNNING = "inventory", "held", "rollback", "running"
"""Sources. held, rollback: a stored generation; running: what runs now."""

OPERATOR = "the operator rolled back"
RETRIED = "the operator retries it (retry=true)"
MAX_LISTED = 8


@dataclass(frozen=True)
class DeploymentSource:
    """The source of a deployment's instances on all hosts.

    generation: of a stored source, else None. held, trial: the hold and the open rollout when the run began. hold: the
    hold that a rollback sets. released: why the hold ends with this run. ignored: the inventory defines what was turned
    back, so its definition is ignored.
    """

    kind: str
    generation: int | None = None
    held: Hold | None = None
    trial: OpenRollout | None = None
    hold: Hold | None = None
    released: str = ""
    ignored: bool = False


@dataclass(frozen=True)
class StoredSelection:
    """The instances of a host that are not composed.

    stored: instances of generations. untouched: those that stay as they are.
    """

    stored: tuple[RecordedInstance, ...] = ()
    untouched: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class HoldReview:
    """What happens to holds.

    released: the holds that end, each with the reason. ignored: deployments whose definition is still the one that was
    turned back.
    """

    released: Mapping[str, str] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SourceSelection:
    """The sources of a run. fleet: restricted to deployments that are composed from the inventory.

    candidates: these and the held deployments, which are composed if their definition is not what was turned back.
    """

    fleet: Fleet
    candidates: Fleet
    sources: Mapping[str, DeploymentSource]
    hosts: Mapping[str, StoredSelection] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


NOTHING = StoredSelection()
NOT_REVIEWED = HoldReview()


def choose_sources(
    fleet: Fleet, request: OperationRequest, review: HoldReview = NOT_REVIEWED, now: str = ""
) -> SourceSelection:
    """Choose the source of every deployment.

    review: which holds end; without it, all of them stay. now: the time (UTC), after which no hold or trial can have
    begun; "" if unknown. Raise FleetError if a rollback does not name a deployment.
    """
    histories = {
        name: {host: _until(history, now) for host, history in found.items()}
        for name, found in histories_of(fleet).items()
    }
    wanted = {item.name for host in fleet.hosts for item in host.deployments}
    names = sorted({*wanted, *histories, *_running_deployments(fleet)}, key=natural)
    problems = list(_unknown(request, names))
    if request.operation == ROLLBACK and not request.deployments:
        what = "is required: rollback.yml needs the name of a deployment."
        there = ", ".join(names) or "none"
        raise FleetError(
            [*problems, Problem(("deployment",), what, f"-e deployment=NAME; there are: {there}.")]
        )
    sources: dict[str, DeploymentSource] = {}
    for name in names:
        source, found = _source_of(name, request, histories.get(name, {}), review, fleet)
        sources[name] = source
        problems += found
    composed = {name for name, source in sources.items() if source.kind == INVENTORY}
    if composed == set(names):
        return SourceSelection(fleet, fleet, sources, {}, tuple(problems))
    hosts: dict[str, StoredSelection] = {}
    restricted, candidates = [], []
    possible = composed | {name for name, source in sources.items() if source.kind == HELD}
    here = frozenset(host.name for host in fleet.hosts)
    others = {name: sources[name] for name in names if name not in composed}
    absent = fleet.absent
    spans = {name: frozenset(found) if found else None for name, found in fleet.spans.items()}
    for host in fleet.hosts:
        stored = _select_stored(host, others)
        hosts[host.name], found = _drop_incomplete_engines(host, stored, others, here, absent, spans)
        problems += found
        left = _restricted(host, composed)
        candidates.append(_restricted(host, possible))
        restricted.append(left if request.operation in (DEPLOY, UPGRADE) else _without_host_changes(left))
    return SourceSelection(
        replace(fleet, hosts=tuple(restricted)),
        replace(fleet, hosts=tuple(candidates)),
        sources,
        hosts,
        tuple(problems),
    )


def mark_ignored(selection: SourceSelection, review: HoldReview) -> SourceSelection:
    """Return the selection with the result of the review of holds that stay."""
    found = {name: replace(selection.sources[name], ignored=True) for name in review.ignored}
    return replace(selection, sources={**selection.sources, **found}) if found else selection


def _restricted(host: Host, names: Collection[str]) -> Host:
    """Return a host with some of its deployments."""
    mine = tuple(item for item in host.deployments if item.name in names)
    return host if len(mine) == len(host.deployments) else replace(host, deployments=mine)


def _until(history: History, now: str) -> History:
    """Return a record without a hold or trial that begins in the future, by which one host would decide for all."""
    held, trial = history.held, history.trial
    if not now or max(held.since if held else "", trial.since if trial else "") <= now:
        return history
    return replace(
        history,
        held=held if held and held.since <= now else None,
        trial=trial if trial and trial.since <= now else None,
    )


def clock_warnings(fleet: Fleet, now: str) -> Iterator[str]:
    """Yield a warning for each record with a hold or trial that begins in the future."""
    for name, found in histories_of(fleet).items() if now else ():
        for host, history in found.items():
            if _until(history, now) is not history:
                yield (
                    f"{host}: its hold or trial of {name} begins in the future and is ignored. Compare its clock "
                    "with that of this machine (timedatectl)"
                )


def _without_host_changes(host: Host) -> Host:
    """Return the host without changes to the host itself, as the run is about instances only."""
    settings = replace(host.settings, numa_balancing=None, compute=None, memory=None, clean=False)
    return replace(host, settings=settings)


def histories_of(fleet: Fleet) -> dict[str, dict[str, History]]:
    """Return the records of all hosts, by deployment and host."""
    found: dict[str, dict[str, History]] = {}
    for host in fleet.hosts:
        for history in host.state.generations if host.state else ():
            found.setdefault(history.deployment, {})[host.name] = history
    return found


def histories_by_name(hosts: Iterable[Host], deployment: str) -> Iterator[History]:
    """Yield the records of a deployment on these hosts."""
    for host in hosts:
        for history in host.state.generations if host.state else ():
            if history.deployment == deployment:
                yield history


def running_numbers(host: Host, deployment: str) -> set[int]:
    """Return the generations of a host's containers of a deployment, as far as they are known."""
    found = (
        running_member(host.state, item)
        for item in (host.state.instances if host.state else ())
        if host.state and item.deployment == deployment
    )
    return {item.generation.generation for item in found if item}


def _running_deployments(fleet: Fleet) -> set[str]:
    return {item.deployment for host in fleet.hosts if host.state for item in host.state.instances}


def _unknown(request: OperationRequest, names: Iterable[str]) -> Iterable[Problem]:
    for name in sorted(request.deployments or ()):
        if name not in names:
            yield Problem(
                (), f"there is no deployment {name!r}.", suggest(name, names) or "There are none at all."
            )


# ---- a deployment ------------------------------------------------------------------------------------


def _source_of(
    name: str, request: OperationRequest, histories: Mapping[str, History], review: HoldReview, fleet: Fleet
) -> tuple[DeploymentSource, list[Problem]]:
    """Return a deployment's source, and problems."""
    held, trial = _binding(histories.values())
    if request.operation == ROLLBACK and request.about(name):
        number, problems = _target(name, request.generation, histories, fleet)
        hold = _hold_of_rollback(number, request, histories) if number is not None else None
        return DeploymentSource(ROLLED_BACK, number, held, trial, hold), problems
    if request.operation not in (DEPLOY, UPGRADE) or not request.about(name):
        return DeploymentSource(RUNNING, None, held, trial), []
    released = review.released.get(name, RETRIED if request.retry else "")
    if held and not released:
        return DeploymentSource(HELD, held.generation, held, trial), []
    return DeploymentSource(INVENTORY, None, held, trial, released=released if held else ""), []


def _hold_of_rollback(number: int, request: OperationRequest, histories: Mapping[str, History]) -> Hold:
    """Return the hold of a rollback: the operator turned back all newer generations."""
    newer = {item.generation for history in histories.values() for item in history.kept} - {
        *range(number + 1)
    }
    return Hold(number, request.reason or OPERATOR, failed=tuple(sorted(newer)))


def _binding(histories: Iterable[History]) -> tuple[Hold | None, OpenRollout | None]:
    """Return the newest hold and open rollout, unless it ended on another host at the same time or later."""
    known = list(histories)
    holds = [item.held for item in known if item.held]
    trials = [item.trial for item in known if item.trial]
    held = max(holds, key=lambda item: item.since, default=None)
    trial = max(trials, key=lambda item: item.since, default=None)
    lifted, ended = (
        max((item.lifted for item in known), default=""),
        max((item.ended for item in known), default=""),
    )
    return (
        held if held and held.since > lifted else None,
        trial if trial and trial.since > ended else None,
    )


def _target(
    name: str, number: int | None, histories: Mapping[str, History], fleet: Fleet
) -> tuple[int | None, list[Problem]]:
    """Return the generation to roll back to, by default the newest one older than what runs, and problems."""
    kept: dict[int, Generation] = {}
    for host in sorted(histories, key=natural):
        for item in histories[host].kept:
            kept.setdefault(item.generation, item)
    if number is None:
        runs = set().union(*(running_numbers(host, name) for host in fleet.hosts))
        older = [item for item in kept if item < max(runs or kept, default=0)]
        if older:
            return max(older), []
        what = "there is no generation before the running one" if kept else "no generation is kept"
        return None, [Problem((), f"{name}: {what}.", _listed(kept))]
    if number in kept:
        return number, []
    why = "was pruned" if kept and 0 < number < min(kept) else "is kept on no host"
    return None, [Problem((), f"{name}: generation {number} {why}.", _listed(kept))]


def _listed(kept: Mapping[int, Generation]) -> str:
    """Return the text about the generations that can be restored."""
    if not kept:
        return "site.yml and upgrade.yml record every generation that they start."
    parts = [
        f"{number} ({kept[number].recorded_at}: {kept[number].why})" for number in sorted(kept)[-MAX_LISTED:]
    ]
    return f"Kept: {'; '.join(parts)}."


# ---- a host ------------------------------------------------------------------------------------------


def _drop_incomplete_engines(
    host: Host,
    stored: StoredSelection,
    sources: Mapping[str, DeploymentSource],
    here: frozenset[str],
    absent: Mapping[str, str],
    spans: Mapping[str, Collection[str] | None],
) -> tuple[StoredSelection, list[Problem]]:
    """Leave servers unchanged if their engine spans hosts and one of these is not in this run.

    They cannot be rolled back alone, so a rollback that --limit restricts gets a problem, and everything else a
    warning. absent: hosts without an answer and excluded ones, for which a rollback is not refused. spans: the
    inventory's hosts of each deployment; nor is it refused for other hosts that a record names.
    """
    alone = [item for item in stored.stored if item.managed and not here.issuperset(item.member.hosts)]
    if not alone:
        return stored, []
    problems, warnings = [], []
    for name in dict.fromkeys(item.deployment_name for item in alone):
        hosts = next(item.member.hosts for item in alone if item.deployment_name == name)
        gone = [item for item in hosts if item not in here]
        what = f"{name} spans {', '.join(hosts)}, but this run does not include {', '.join(gone)}"
        lacking = [item for item in gone if item not in absent and item in (spans.get(name) or gone)]
        if sources[name].kind == ROLLED_BACK and lacking:
            problems.append(Problem((), f"{what}.", "Add them to --limit.", (host.name,)))
        else:
            warnings.append(f"deployment {what}; it is left as it is")
    return StoredSelection(
        tuple(item for item in stored.stored if item not in alone),
        (*stored.untouched, *(item.name for item in alone)),
        (*stored.warnings, *warnings),
    ), problems


def _select_stored(host: Host, sources: Mapping[str, DeploymentSource]) -> StoredSelection:
    """Return a host's instances of deployments that are not composed."""
    if host.state is None:
        return NOTHING
    histories = {item.deployment: item for item in host.state.generations}
    paths: dict[str, Path] = {item.name: item.path for item in host.deployments}
    there: dict[str, list[str]] = {}
    for running in host.state.instances:
        there.setdefault(running.deployment, []).append(running.name)
    stored: list[RecordedInstance] = []
    left: list[str] = []
    warnings: list[str] = []
    for name, source in sources.items():
        path = paths.get(name, ("vllm_deployments",))
        history = histories.get(name, History(name))
        if source.generation is not None:
            record = history.as_of(source.generation)
            if record is not None:
                stored += [RecordedInstance(record, member, path) for member in record.members]
            elif source.kind == HELD and name in there and not history.kept:
                left += there[name]  # its record is lost, so nobody knows what was turned back here
                warnings.append(
                    f"{name} is held, but has no record of its generations here: it is left as it is"
                )
            elif name in there:
                warnings.append(
                    f"{name} did not exist here as of generation {source.generation}: its instances are removed"
                )
            continue
        for running in host.state.instances:
            if running.deployment != name:
                continue
            found = running_member(host.state, running)
            if found:
                stored.append(replace(found, path=path))
            else:
                left.append(running.name)
    return StoredSelection(tuple(stored), tuple(left), tuple(warnings))
