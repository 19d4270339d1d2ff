# SPDX-License-Identifier: Apache-2.0
"""Format what a rollout will do, and what it did. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...module_utils.common.endpoint import BALANCER
from ...module_utils.common.generations import (
    BENCHMARK,
    DEPLOY,
    MEASUREMENTS,
    RESTART,
    ROLLBACK,
    STOP,
    UPGRADE,
)
from ...module_utils.common.minimum import DEFAULT_MIN_AVAILABLE
from ..plan.text import wrapped
from ..text import plural
from .batches import Batch
from .failures import Failure, message_of
from .measurement import grouped, shorten
from .members import RolloutInstance
from .plan import RolloutPlan
from .steps import NOT_WITHOUT_VERDICT, Step, holds

SHOWN = 8  # batches that are listed one by one
VERBS = {
    DEPLOY: "Deploy",
    UPGRADE: "Upgrade",
    ROLLBACK: "Rollback",
    RESTART: "Restart",
    STOP: "Stop",
    BENCHMARK: "Benchmark",
}


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
            lines += wrapped("changes", f"generation {data['generation']}: {data['why']}")
        lines += _format_capacity(planned, name)
        for batch in batches:
            if batch.canary:
                lines += wrapped("canary", _canary(batch, batch.canary))
        shown = batches if len(batches) <= SHOWN else batches[: SHOWN - 1]
        for batch in shown:
            lines += wrapped(f"batch {batch.number}", "; ".join(group.name for group in batch.groups))
        if len(shown) < len(batches):
            lines += wrapped("…", f"{len(batches) - len(shown)} more, the last is batch {batches[-1].number}")
        lines += wrapped("waits", _format_timeouts(planned, len(batches), timeouts))
    for reason, instances in grouped(planned.unmeasured).items():
        lines += wrapped("leaves out", f"{shorten(instances)}: {reason}")
    return [*lines, *(f"Warning: {warning}" for warning in planned.rollout.warnings)]


def _format_capacity(planned: RolloutPlan, name: str) -> list[str]:
    if planned.operation == STOP:
        return []
    lines = []
    for label in planned.rollout.services.get(name, ()):
        room = planned.rollout.capacity[label]
        kept = planned.policy.min_available
        rule = f" (upgrade_min_in: {DEFAULT_MIN_AVAILABLE if kept is None else kept})"
        whose = "" if label == name else f" of {label}"
        text = f"at least {room.min_available} of {room.total}{whose} in the load balancer"
        lines += wrapped("keeps", text + (rule if room.min_available else "")) if room.stays else []
    return lines


def _canary(batch: Batch, canary: RolloutInstance) -> str:
    text = f"{canary.host} {canary.name}, alone"
    if not canary.exists:
        return f"{text}; it is new, so only its answers can be checked, not compared"
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


# ---- while it runs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchVerdict:
    """The consequence of a batch's result.

    stop: no more batches. back: roll this batch back. why: the reason, in one line. phases: those that follow on hosts.
    steps: the arguments of those that are the same on all hosts. turned: the release was turned back. resumable:
    something around it failed, so the same command continues. missed: what the run reports as failed in the end,
    although it goes on.
    """

    stop: bool
    back: bool
    why: str
    message: str
    phases: Sequence[str] = ()
    steps: Mapping[str, Step] = field(default_factory=dict)
    hosts: Sequence[str] = ()
    turned: bool = False
    resumable: bool = False
    missed: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the verdict for the playbook."""
        return {
            "stop": self.stop,
            "back": self.back,
            "why": self.why,
            "told": self.message,
            "phases": list(self.phases),
            "steps": {phase: step.to_json() for phase, step in self.steps.items()},
            "hosts": list(self.hosts),
            "turned": self.turned,
            "resumable": self.resumable,
            "missed": list(self.missed),
        }


def judge_batch(
    batch: Mapping[str, Any], failures: Mapping[str, Failure], gone: Sequence[str]
) -> BatchVerdict:
    """Judge a batch.

    failures: of the hosts of the batch that failed. gone: hosts that became unreachable. An unreachable host says
    nothing about the new generation: the others keep it, and the rollout ends. Nor does a failure of what is around it:
    the hosts concerned go back, if they can, and the same command continues. One failure of the release is a verdict.
    A canary that did not start gets its report on the way back; one that was measured already has its report.
    A measurement goes on with the other instances; one that failed is returned, for the load balancers to use once it
    is ready.
    """
    operation = batch["operation"]
    what = f"{VERBS[operation]} of {batch['deployment']}, {batch['text']}"
    everyone = tuple(batch["all_hosts"])
    if failures:
        why = "; ".join(dict.fromkeys(f"{host}: {item.text}" for host, item in failures.items()))
        if operation in MEASUREMENTS:
            missed = (f"{batch['text']}: {why}",)
            ends = any(UNTOUCHED.intersection(item.classes) for item in failures.values())
            return BatchVerdict(
                ends, True, why, f"{what}: failed", batch["way_back"], hosts=tuple(failures), missed=missed
            )
        if operation != UPGRADE:
            return BatchVerdict(True, False, why, f"{what}: failed", hosts=everyone)
        if not any(item.release for item in failures.values()):
            return _not_judged(batch, failures, why, what)
        canary = failures.get(batch["canary"].partition("/")[0])
        reported = canary is None or canary.started
        way = [phase for phase in batch["way_back"] if phase != "report" or not reported]
        return BatchVerdict(True, True, why, f"{what}: failed", way, holds(batch, why), everyone, turned=True)
    if gone and operation in MEASUREMENTS:
        why = f"{', '.join(gone)} {_gone(gone, batch)}"
        return BatchVerdict(
            False, False, why, f"{what}: failed", hosts=everyone, missed=(f"{batch['text']}: {why}",)
        )
    if gone:
        return BatchVerdict(
            True,
            False,
            f"{', '.join(gone)} {_gone(gone, batch)}",
            f"{what}: interrupted",
        )
    return BatchVerdict(False, False, "", f"{what}: done", batch["passed"], hosts=everyone)


UNTOUCHED = {BALANCER, "other_run", "stale_plan"}
"""Classes of failures after which a host waits as it is."""


def _not_judged(
    batch: Mapping[str, Any], failures: Mapping[str, Failure], why: str, what: str
) -> BatchVerdict:
    """Return what follows from failures of the infrastructure alone: nothing is held, and what works stays."""
    # Where no load balancer answers, nothing can be drained, and what another run works on is left to it.
    ill = [host for host, item in failures.items() if not set(item.classes) <= UNTOUCHED]
    away = [phase for phase in batch["way_back"] if phase not in NOT_WITHOUT_VERDICT] if ill else []
    together = [{name.partition("/")[0] for name in group} for group in batch["units"]]
    hosts = {host for group in together if group & set(ill) for host in group}
    back = tuple(host for host in batch["hosts"] if host in hosts)
    return BatchVerdict(True, bool(away), why, f"{what}: interrupted", away, {}, back, resumable=True)


def _gone(hosts: Sequence[str], batch: Mapping[str, Any]) -> str:
    if set(hosts) & set(batch["hosts"]):
        return "can no longer be reached"
    return "failed to start what has to serve before others change"


def unmended_message(action: str, result: Any) -> str:
    """Return why a host could not be rolled back wholly; `action`: the module that failed."""
    text = message_of(result)
    return f"It serves, and is not held: {text}" if action.endswith("serving_generation") else text


def summarize_rollout(
    operation: str,
    batches: Sequence[Mapping[str, Any]],
    ended: int | None,
    verdict: Mapping[str, Any],
    unmended: Mapping[str, str],
) -> str:
    """Return what was done.

    ended: the number of the batch that ended the rollout. unmended: hosts where the rollback failed.
    """
    if not batches:
        return f"{VERBS.get(operation, operation)}: nothing was left to change, and the unfinished rollout is over."
    done = [item for item in batches if ended is None or item["number"] < ended]
    lines = [f"{VERBS.get(operation, operation)}: {plural(_units(done), 'group')} of {_units(batches)} done."]
    lines += [
        f"Load balancer {name} does not answer: {why.rstrip('.')}. When it is back, run site.yml: it learns then what "
        "changed."
        for name, why in (verdict.get("lost") or {}).items()
    ]
    if ended is None:
        return "\n".join(lines)
    batch = next(item for item in batches if item["number"] == ended)
    name, held = batch["deployment"], batch["held"]
    lines.append(f"{batch['text']}: {verdict['why']}")
    if verdict["turned"] and not unmended:
        text = "No earlier generation is recorded, so nothing was rolled back"
        if held:
            text = f"Rolled back: generation {held} serves again"
            if batch["lost"]:
                text += f", except for {', '.join(batch['lost'])}, of which no earlier generation is recorded"
        lines.append(f"{text}. {_next(batch, done)}")
    elif verdict["turned"]:
        lines += [
            f"{host} could not be rolled back to generation {held}: {why}" for host, why in unmended.items()
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
    return "\n".join(lines)


def summarize_measurement(
    operation: str,
    batches: Sequence[Mapping[str, Any]],
    ended: int | None,
    failed: Sequence[str],
    unmended: Mapping[str, str],
) -> str:
    """Return what a measurement did, and in lines of their own what failed, although it went on.

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
    yield f"That is no verdict on generation {batch['generation']}, so {name} is not held."
    back = [host for host in verdict["hosts"] if host not in unmended] if verdict["back"] else []
    if back:
        yield f"Serves with its earlier generation again: {', '.join(back)}."
    for host, why in unmended.items():
        yield f"{host} does not serve with its earlier generation yet: {why}"
    yield "Fix the cause, then run the same command again: it continues from here."


def _units(batches: Sequence[Mapping[str, Any]]) -> int:
    return sum(len(item["units"]) for item in batches)


def _next(batch: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> str:
    name = batch["deployment"]
    mine = _units([item for item in done if item["deployment"] == name])
    text = f"{name} is held until upgrade.yml finds another definition, or runs with -e again=true."
    if mine:
        text += (
            f" {plural(mine, 'group')} of earlier batches still run{'s' if mine == 1 else ''} generation "
            f"{batch['generation']}: rollback.yml -e deployment={name} rolls back those too."
        )
    return text
