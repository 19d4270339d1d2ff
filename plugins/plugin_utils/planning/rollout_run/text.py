# SPDX-License-Identifier: Apache-2.0
"""Format what a rollout will do, and what it did. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ....module_utils.service.generations import (
    BENCHMARK,
    DEPLOY,
    MEASUREMENTS,
    RESTART,
    ROLLBACK,
    STOP,
    UPGRADE,
)
from ....module_utils.service.minimum import DEFAULT_MIN_AVAILABLE
from ...base.text import plural
from ..explanation.text import titled_paragraph
from ..generations.bindings import ENDS
from ..rollout.batches import Batch
from ..rollout.measurement import by_reason, shorten
from ..rollout.members import RolloutInstance
from ..rollout.plan import RolloutPlan
from .failures import message_of

SHOWN = 8  # batches that are listed one by one
VERBS = {
    DEPLOY: "Deploy",
    UPGRADE: "Upgrade",
    ROLLBACK: "Rollback",
    RESTART: "Restart",
    STOP: "Stop",
    BENCHMARK: "Benchmark",
}
NO_WAY_BACK = "what ran before is not recorded, or its engine needs a host that is not in this run"


def explain_rollout(planned: RolloutPlan, timeouts: Mapping[str, int]) -> list[str]:
    """Return the lines of a plan.

    waits: the timeouts of drain, stop and start of a group, in seconds.
    """
    lines: list[str] = []
    names = dict.fromkeys(batch.deployment for batch in planned.rollout.batches)
    for name in names:
        batches = [batch for batch in planned.rollout.batches if batch.deployment == name]
        groups = sum(len(batch.groups) for batch in batches)
        operation = next(
            (item["operation"] for item in planned.batches if item["deployment"] == name), planned.operation
        )
        verb = VERBS[operation]
        lines += ["", f"{verb} of {name}: {plural(groups, 'group')} in {plural(len(batches), 'batch', 'es')}"]
        if operation in (UPGRADE, ROLLBACK):
            data = next(item for item in planned.batches if item["deployment"] == name)
            lines += titled_paragraph("changes", f"generation {data['generation']}: {data['why']}")
        lines += _format_capacity(planned, name)
        for batch in batches:
            if batch.canary:
                lines += titled_paragraph("canary", _canary(batch, batch.canary, data["lost"]))
        shown = batches if len(batches) <= SHOWN else batches[: SHOWN - 1]
        for batch in shown:
            lines += titled_paragraph(
                f"batch {batch.number}", "; ".join(group.name for group in batch.groups)
            )
        if len(shown) < len(batches):
            lines += titled_paragraph(
                "…", f"{len(batches) - len(shown)} more, the last is batch {batches[-1].number}"
            )
        lines += _without_way_back(planned, name)
        lines += titled_paragraph("waits", _format_timeouts(planned, len(batches), timeouts))
    for reason, instances in by_reason(planned.unmeasured).items():
        lines += titled_paragraph("leaves out", f"{shorten(instances)}: {reason}")
    return [*lines, *(f"Warning: {warning}" for warning in planned.rollout.warnings)]


def _format_capacity(planned: RolloutPlan, name: str) -> list[str]:
    if planned.operation == STOP:
        return []
    lines = []
    for label in planned.rollout.services.get(name, ()):
        room = planned.rollout.capacity[label]
        kept = planned.policy.min_available
        rule = f" (rollout_min_available: {DEFAULT_MIN_AVAILABLE if kept is None else kept})"
        whose = "" if label == name else f" of {label}"
        text = f"at least {room.min_available} of {room.total}{whose} in the load balancer"
        lines += titled_paragraph("keeps", text + (rule if room.min_available else "")) if room.stays else []
    return lines


def _without_way_back(planned: RolloutPlan, name: str) -> list[str]:
    lost = [one for item in planned.batches if item["deployment"] == name for one in item["lost"]]
    upgraded = any(item["operation"] == UPGRADE for item in planned.batches if item["deployment"] == name)
    return titled_paragraph("one way", f"{shorten(lost)}: {NO_WAY_BACK}") if lost and upgraded else []


def _canary(batch: Batch, canary: RolloutInstance, lost: Collection[str]) -> str:
    text = f"{canary.host} {canary.name}, alone"
    if not canary.exists or canary.id in lost:
        why = "what it replaces cannot be measured" if canary.exists else "it is new"
        return f"{text}; {why}, so only its answers can be checked, not compared"
    text += ", measured before and after"
    if batch.reference:
        text += f", each time with {batch.reference.name} (unchanged) as reference"
    return text


def _format_timeouts(planned: RolloutPlan, batches: int, timeouts: Mapping[str, int]) -> str:
    if planned.operation == STOP:
        return (
            f"running requests end (at most {timeouts['drain']} s), then each instance stops (at most "
            f"{timeouts['stop']} "
            "s)"
        )
    if planned.operation in MEASUREMENTS:
        return (
            f"each batch: running requests end (at most {timeouts['drain']} s), it is measured, and is returned once "
            f"it generates tokens (at most {timeouts['start']} s after a start)"
        )
    soak = planned.policy.soak
    return (
        f"each batch: running requests end (at most {timeouts['drain']} s), instances stop (at most "
        f"{timeouts['stop']} s), "
        "start until "
        f"tokens come (at most {timeouts['start']} s), {soak} s of watching; in all {batches * soak} s and {batches} "
        "starts"
    )


def unmended_message(action: str, result: Any) -> str:
    """Return why a host could not be rolled back completely; `action`: the module that failed."""
    text = message_of(result)
    return f"It serves, and is not held: {text}" if action.endswith("serving_generation") else text


def summarize_rollout(
    operation: str,
    batches: Sequence[Mapping[str, Any]],
    ended: int | None,
    verdict: Mapping[str, Any],
    unmended: Mapping[str, str],
    ignored: Sequence[str] = (),
) -> str:
    """Return what was done.

    ended: the number of the batch that ended the rollout. unmended: hosts where the rollback failed. ignored: what was
    not tried because of earlier holds; a run that succeeds says so in its last play.
    """
    if not batches:
        return f"{VERBS.get(operation, operation)}: nothing was left to change, and the unfinished rollout is over."
    done = [item for item in batches if ended is None or item["number"] < ended]
    lines = [f"{VERBS.get(operation, operation)}: {plural(_units(done), 'group')} of {_units(batches)} done."]
    lines += [
        f"Load balancer {name} does not answer: {why.rstrip('.')}. When it is back, run site.yml: it then "
        "gets the changes."
        for name, why in (verdict.get("lost") or {}).items()
    ]
    if ended is None:
        return "\n".join(lines)
    batch = next(item for item in batches if item["number"] == ended)
    name = batch["deployment"]
    lines.append(f"{batch['text']}: {verdict['why']}")
    if verdict["turned"] and not unmended:
        text = f"Rolled back: {_served(batch)}"
        if batch["lost"]:
            text += f", except for {', '.join(batch['lost'])}, of which {NO_WAY_BACK}"
        lines.append(f"{text}. {_next(batch, done)}")
    elif verdict["turned"]:
        lines += [
            f"{host} could not be rolled back to {_earlier(batch)}: {why}" for host, why in unmended.items()
        ]
        lines.append(f"Fix that first, then run rollback.yml -e deployment={name} to try again.")
    elif verdict.get("resumable"):
        lines += _resumable_lines(batch, verdict, unmended)
    elif batch["operation"] == UPGRADE:
        lines.append(
            "The rollout stopped; finished batches keep the new generation. When the host is reachable, run the "
            f"same command again: it continues from here. To undo it: rollback.yml -e deployment={name}."
        )
    else:
        lines.append(
            "The rollout stopped. Fix the cause and run the same command again; it continues from here."
        )
    return "\n".join([*lines, *ignored])


def summarize_measurement(
    operation: str,
    batches: Sequence[Mapping[str, Any]],
    ended: int | None,
    failed: Sequence[str],
    unmended: Mapping[str, str],
) -> str:
    """Return what a measurement did, and in lines of their own what failed while it continued.

    ended: the number of the batch that ended it. unmended: hosts with instances that were not returned.
    """
    done = [item for item in batches if ended is None or item["number"] < ended]
    lines = [f"{VERBS[operation]}: {plural(_units(done), 'group')} of {_units(batches)} done."]
    lines += [f"Failed: {text}" for text in dict.fromkeys(failed)]
    lines += [
        f"{host} has an instance that does not serve again: {why.rstrip('.')}. The load balancers use it once it does; "
        "status.yml shows it, site.yml starts it."
        for host, why in unmended.items()
    ]
    if ended is not None:
        lines.append(
            "It stopped there. Fix the cause and run the same command again, which first returns what is drained."
        )
    return "\n".join(lines)


def _resumable_lines(
    batch: Mapping[str, Any], verdict: Mapping[str, Any], unmended: Mapping[str, str]
) -> Iterable[str]:
    name = batch["deployment"]
    yield f"That is not a verdict on generation {batch['generation']}, so {name} is not held."
    back = [host for host in verdict["hosts"] if host not in unmended] if verdict["back"] else []
    if back:
        yield f"Serves with its earlier generation again: {', '.join(back)}."
    for host, why in unmended.items():
        yield f"{host} does not serve with its earlier generation yet: {why}"
    yield "Fix the cause, then run the same command again: it continues from here."


def _units(batches: Sequence[Mapping[str, Any]]) -> int:
    return sum(len(item["units"]) for item in batches)


def _earlier(batch: Mapping[str, Any]) -> str:
    number = batch["holds"].get(batch["deployment"])
    return f"generation {number}" if number else "what served before"


def _served(batch: Mapping[str, Any]) -> str:
    """Return what serves after a batch was turned back."""
    holds = batch["holds"]
    if list(holds) == [batch["deployment"]] and holds[batch["deployment"]]:
        return f"generation {holds[batch['deployment']]} serves again"
    parts = [
        f"{name} serves with generation {number} again" if number else f"{name} is not started"
        for name, number in sorted(holds.items(), key=lambda item: not item[1])
    ]
    return ", and ".join(parts) or "what served before serves again"


def _next(batch: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> str:
    name, held = batch["deployment"], list(batch["holds"])
    if not held:
        return (
            f"Nothing is held: of {', '.join(batch['lost'])} {NO_WAY_BACK}."
            if batch["lost"]
            else f"Nothing is held, as {name} ran generation {batch['generation']} before, here or on other hosts."
        )
    mine = _units([item for item in done if item["deployment"] == name])
    what = f"{name} is held" if held == [name] else f"{', '.join(held)} are held together"
    text = f"{what}. {ENDS}"
    if mine:
        text += (
            f" {plural(mine, 'group')} of earlier batches still run{'s' if mine == 1 else ''} generation "
            f"{batch['generation']}: rollback.yml -e deployment={name} rolls back those too."
        )
    return text
