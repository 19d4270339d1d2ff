# SPDX-License-Identifier: Apache-2.0
"""What a rollout will do, and what it did, for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...module_utils.common.generations import RESTART, ROLLBACK, STOP, UPGRADE
from ..plan.text import wrapped
from .batches import KEEP, Batch
from .plan import RolloutPlan

SHOWN = 8  # batches that are told one by one
VERBS = {UPGRADE: "Upgrade", ROLLBACK: "Rollback", RESTART: "Restart", STOP: "Stop"}


def explain_rollout(planned: RolloutPlan, waits: Mapping[str, int]) -> list[str]:
    """The lines of a plan. `waits`: seconds at most of drain, stop and start of a unit."""
    lines: list[str] = []
    names = dict.fromkeys(batch.deployment for batch in planned.rollout.batches)
    for name in names:
        batches = [batch for batch in planned.rollout.batches if batch.deployment == name]
        data = [item for item in planned.batches if item["deployment"] == name]
        units = sum(len(batch.units) for batch in batches)
        verb = VERBS.get(planned.operation, UPGRADE)
        lines += ["", f"{verb} of {name}: {_count(units, 'unit')} in {_count(len(batches), 'batch', 'es')}"]
        if data[0]["why"] and planned.operation in (UPGRADE, ROLLBACK):
            lines += wrapped("changes", f"generation {data[0]['generation']}: {data[0]['why']}")
        lines += _kept(planned, name)
        canary = next((batch for batch in batches if batch.canary), None)
        if canary:
            lines += wrapped("canary", _canary(canary))
        shown = batches if len(batches) <= SHOWN else batches[: SHOWN - 1]
        for batch in shown:
            lines += wrapped(f"batch {batch.number}", "; ".join(unit.name for unit in batch.units))
        if len(shown) < len(batches):
            lines += wrapped("…", f"{len(batches) - len(shown)} more, the last is batch {batches[-1].number}")
        lines += wrapped("waits", _waits(planned, len(batches), waits))
    return lines


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural if number != 1 else ''}"


def _kept(planned: RolloutPlan, name: str) -> list[str]:
    room = planned.rollout.capacity.get(name)
    if room is None or planned.operation == STOP:
        return []
    asked = "" if room.keep else "; "
    asked = (
        f" (upgrade_min_in: {KEEP if planned.terms.keep is None else planned.terms.keep})"
        if room.keep
        else asked
    )
    text = f"at least {room.keep} of {room.there} in the load balancer{asked}".rstrip("; ")
    return wrapped("keeps", text)


def _canary(batch: Batch) -> str:
    canary = batch.canary
    assert canary is not None
    text = f"{canary.host} {canary.name}, alone"
    if not canary.there:
        return f"{text}; it is new, so that there is nothing to compare it with but what it answers"
    text += ", measured before and after"
    if batch.reference:
        text += f", each time beside {batch.reference.name}, which stays as it is"
    return text


def _waits(planned: RolloutPlan, batches: int, waits: Mapping[str, int]) -> str:
    if planned.operation == STOP:
        return f"running requests end (at most {waits['drain']} s), then at most {waits['stop']} s until it stops"
    soak = planned.terms.soak
    return (
        f"each batch: running requests end (at most {waits['drain']} s), stop (at most {waits['stop']} s), start until "
        f"tokens come (at most {waits['start']} s), {soak} s under watch; so {batches * soak} s and {batches} starts"
    )


# ---- while it runs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What follows from a batch. stop: no more batches. back: this one goes back. why: in one line."""

    stop: bool
    back: bool
    why: str
    told: str

    def to_json(self) -> dict[str, Any]:
        """For the playbook."""
        return {"stop": self.stop, "back": self.back, "why": self.why, "told": self.told}


def judge(
    operation: str, batch: Mapping[str, Any], failures: Mapping[str, str], gone: Sequence[str]
) -> Verdict:
    """`failures`: why hosts of the batch failed; `gone`: hosts that cannot be reached any more.

    A host that went away says nothing about the new generation: the others keep it, and the rollout ends.
    """
    what = f"{VERBS.get(operation, operation)} of {batch['deployment']}, {batch['text']}"
    if failures:
        why = "; ".join(dict.fromkeys(f"{host}: {text}" for host, text in failures.items()))
        back = operation == UPGRADE
        return Verdict(True, back, why, f"{what}: failed")
    if gone:
        return Verdict(True, False, f"{', '.join(gone)} cannot be reached any more", f"{what}: cut off")
    return Verdict(False, False, "", f"{what}: done")


def message_of(result: Any) -> str:
    """The error of a task's result, or of its first failed item."""
    if not isinstance(result, Mapping):
        return str(result)
    items = result.get("results")
    failed = next((item for item in items if item.get("failed")), None) if isinstance(items, list) else None
    found = failed or result
    return str(found.get("msg") or found.get("stderr") or "no message").strip()


def report(
    operation: str,
    batches: Sequence[Mapping[str, Any]],
    ended: int | None,
    verdict: Mapping[str, Any],
    unmended: Mapping[str, str],
) -> str:
    """What was done; `ended`: the number of the batch that ended the rollout. unmended: hosts that did not go back."""
    done = [item for item in batches if ended is None or item["number"] < ended]
    lines = [f"{VERBS.get(operation, operation)}: {_count(_units(done), 'unit')} of {_units(batches)} done."]
    if ended is None:
        return lines[0]
    batch = next(item for item in batches if item["number"] == ended)
    name, held = batch["deployment"], batch["held"]
    lines.append(f"{batch['text']}: {verdict['why']}")
    if verdict["turned"] and not unmended:
        text = f"It is back at generation {held} and serves" if held else "Nothing is known to go back to"
        lines.append(f"{text}. {_next(batch, done)}")
    elif verdict["turned"]:
        lines += [f"{host} did not come back to generation {held}: {why}" for host, why in unmended.items()]
        lines.append(f"Look at it first; rollback.yml -e deployment={name} tries again.")
    elif operation == UPGRADE:
        lines.append(
            "The rollout ended there; what is done stays. Run upgrade.yml again when the host is back: it goes on; "
            f"rollback.yml -e deployment={name} takes it back."
        )
    else:
        lines.append("The rollout ended there; the same command goes on when the cause is gone.")
    return "\n".join(lines)


def _units(batches: Sequence[Mapping[str, Any]]) -> int:
    return sum(len(item["units"]) for item in batches)


def _next(batch: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> str:
    name = batch["deployment"]
    mine = _units([item for item in done if item["deployment"] == name])
    text = f"{name} is held there until upgrade.yml finds another definition, or runs with -e again=true."
    if mine:
        text += (
            f" {_count(mine, 'unit')} of earlier batches still run{'s' if mine == 1 else ''} generation "
            f"{batch['generation']}: rollback.yml -e deployment={name} takes back those too."
        )
    return text
