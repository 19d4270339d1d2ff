# SPDX-License-Identifier: Apache-2.0
"""Set and lift holds on hosts, and write the texts about holds and unfinished rollouts. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ....module_utils.service.generations import Hold
from ..desired.actions import Action
from ..desired.fleet import Host
from .revisions import ROLE, SOURCE, RevisionChange
from .sources import HELD, INVENTORY, ROLLED_BACK, RUNNING

ENDS = (
    "It ends when the inventory defines something else, or again what is serving. To retry the same definition: "
    "upgrade.yml -e retry=true."
)


def hold_text(name: str, hold: Hold) -> str:
    """Return a hold as text: "llama is held at generation 1 since …: generation 2 was turned back (slower)"."""
    what = f"{name} is held{_place(hold)}"
    since = f" since {hold.since}" if hold.since else ""
    return f"{what}{since}{_turned_back(hold)} ({hold.why})"


def _place(hold: Hold) -> str:
    return f" at generation {hold.generation}" if hold.generation else ", and not started,"


def _turned_back(hold: Hold) -> str:
    if not hold.failed:
        return ""
    numbers = ", ".join(map(str, hold.failed))
    verb = "were" if len(hold.failed) > 1 else "was"
    return f": generation{'s' if len(hold.failed) > 1 else ''} {numbers} {verb} turned back"


def ignored_texts(revisions: Iterable[RevisionChange]) -> list[str]:
    """Return a line for each deployment whose definition in the inventory is ignored because of a hold."""
    return [
        f"{hold_text(revision.deployment, revision.source.held)}. Its definition in the inventory is ignored. {ENDS}"
        for revision in revisions
        if revision.source.ignored and revision.source.held
    ]


def binding_warnings(revisions: Iterable[RevisionChange]) -> list[str]:
    """Return warnings about holds that ignore nothing of the inventory, and about rollouts that are not finished."""
    found = []
    for revision in revisions:
        source, trial = revision.source, revision.source.trial
        if source.kind == HELD and source.held and not source.ignored:
            found.append(f"deployment {hold_text(revision.deployment, source.held)}")
        elif source.kind in (INVENTORY, RUNNING) and trial:
            composed = source.kind == INVENTORY and revision.generation != trial.generation
            other = f", and the inventory has since changed to generation {revision.generation}"
            found.append(
                f"deployment {revision.deployment} has an unfinished upgrade to generation {trial.generation} since "
                f"{trial.since} ({trial.why}){other if composed else ''}: site.yml, "
                f"deploy.yml and upgrade.yml continue it, rollback.yml -e deployment={revision.deployment} undoes it"
            )
    return found


def bindings(host: Host, revisions: Iterable[RevisionChange]) -> tuple[tuple[dict[str, Any], Action], ...]:
    """Return the holds that a run sets or lifts on a host, as arguments of the module serving_generation."""
    histories = {item.deployment: item for item in (host.state.generations if host.state else ())}
    found = []
    for revision in revisions:
        history = histories.get(revision.deployment)
        if history is None:
            continue
        source, there = revision.source, history.held
        wanted: Hold | None = there
        reason = ""
        if source.kind == ROLLED_BACK and source.hold:
            wanted, reason = source.hold, "site.yml must not undo the rollback"
        elif source.kind == HELD:
            wanted, reason = source.held, "it is held on the deployment's other hosts"
        elif source.kind == INVENTORY and there:
            wanted, reason = None, source.released or "the hold was lifted on the deployment's other hosts"
        if _same(wanted, there):
            continue
        entry: dict[str, Any] = {
            "deployment": revision.deployment,
            "held": wanted.to_json() if wanted else None,
        }
        if source.kind == HELD and history.trial:
            entry["trial"] = None  # the host was not reachable when the rollout was turned back
        action = Action(
            "hold", ROLE, revision.deployment, _format_hold(there), _format_hold(wanted), reason, SOURCE
        )
        found.append((entry, action))
    return tuple(found)


def _same(one: Hold | None, other: Hold | None) -> bool:
    keys = [hold and (hold.generation, hold.why, hold.together) for hold in (one, other)]
    return keys[0] == keys[1]


def _format_hold(hold: Hold | None) -> str:
    if hold is None:
        return "free"
    return f"at generation {hold.generation}" if hold.generation else "not started"
