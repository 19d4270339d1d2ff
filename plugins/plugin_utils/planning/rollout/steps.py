# SPDX-License-Identifier: Apache-2.0
"""Describe the steps of a rollout: what a host does in each phase of a batch, and on its way back. Pure.

The role rollout runs the phases of a batch in their order; all hosts of the batch go through a phase together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....module_utils.service.generations import MEASUREMENTS, RESTART, STOP, UPGRADE, Hold
from ...base.json_record import JsonRecord

Data = Mapping[str, Any]

FORWARD = (
    "drain", "measure", "record_baseline", "stop", "start", "serve", "judge", "record_verdict", "keep_caches",
    "undrain", "watch", "confirm",
)  # fmt: skip
"""The phases of a batch, in order; a batch has those in which a host of it has something to do.

The verdict is recorded before the canary serves clients: if the controller dies after that, nobody drains it again to
measure it, which the minimum in service may not allow.
"""
WAY_BACK = (
    "hold", "drain", "report", "start_old", "serve_old", "undrain_old", "confirm_hold",
)  # fmt: skip
"""The phases that follow otherwise. The deployment is held first, so that whatever comes next is the old generation,
even if the controller dies here. That step may fail, as service comes first; confirm_hold repeats it, and must not."""
MEASURING = ("drain", "resume", "measure", "start", "serve", "undrain")
"""The phases of a batch of a measurement, in order. Instances serve again afterwards, even those that died of it."""
COMING_BACK = ("return", "serve")
"""The phases that follow on a host where one failed. The load balancers use its instances as soon as they are ready."""
NOT_WITHOUT_VERDICT = ("hold", "report", "confirm_hold")
"""Phases of the way back that belong to a release that was turned back."""

STILL_IN = 10  # seconds within which a watched instance must be in service in the load balancers
HOLD_TEXT = 400  # characters of a failure that a hold and the journal keep


@dataclass(frozen=True)
class Step(JsonRecord):
    """A module or role of the collection (action) and its arguments."""

    action: str
    args: Data


@dataclass(frozen=True)
class BatchChange:
    """What a batch does: its operation, the deployment and its generation, and for how long it is watched afterwards.

    keep: a load balancer refuses a drain that would leave it too few. first: of its deployment in this run. before: the
    generation to which it goes back. together: the generations of the deployments that go back with it.
    """

    operation: str
    deployment: str
    generation: int | None
    why: str
    soak: int = 0
    keep: bool = False
    first: bool = False
    before: int | None = None
    together: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Canary:
    """The instance that is measured: as it was and as it will be, and an unchanged one for reference.

    measure: whether the old one can be measured before it is replaced. baseline: what an interrupted run measured.
    """

    id: str
    old: Data
    new: Data
    reference: Data
    measure: bool
    baseline: Data


@dataclass(frozen=True)
class Work:
    """A host's part of a batch: servers to run, instances to remove, and its servers in the load balancers.

    leave: servers to drain first; enter: servers to put in service at the end. old_servers, old_remove, enter_old: the
    same for the way back. lost: running instances that have no known generation to go back to. spans: some belong to an
    engine over several hosts. measured: descriptions of what is measured. down: some are not running.
    """

    servers: Sequence[Data] = ()
    remove: Sequence[str] = ()
    leave: Sequence[Data] = ()
    enter: Sequence[Data] = ()
    old_servers: Sequence[Data] = ()
    old_remove: Sequence[str] = ()
    enter_old: Sequence[Data] = ()
    lost: Sequence[str] = ()
    spans: bool = False
    canary: Canary | None = None
    measured: Sequence[Data] = ()
    down: bool = False


def steps_of(work: Work, change: BatchChange) -> dict[str, Step]:
    """Return a host's steps of a batch by phase, including those of the way back; phases without one are skipped."""
    if change.operation in MEASUREMENTS:
        return _measure(work, change)
    found = {}
    if work.leave and change.operation != STOP:  # all that stop are drained together, before the batch
        found["drain"] = _balance(work.leave, "drain")
    if change.operation in (RESTART, STOP) and work.servers:
        found["stop"] = Step("vllm_server", {"servers": list(work.servers), "state": "stopped"})
    if change.operation == STOP:
        return found
    found |= _run(work.servers, work.remove, work.spans)
    if work.canary:
        found |= _compare(work.canary, change)
    keyed = [item for item in work.servers if item.get("cache_key")]
    if change.first and keyed and change.operation == UPGRADE:
        # Before users are served: what is packed then comes from the toolkit's own prompts alone.
        instances = [{"name": item["name"], "cache_key": item["cache_key"]} for item in keyed]
        found["keep_caches"] = Step("instance_cache", {"state": "packed", "instances": instances})
    if work.enter:
        found["undrain"] = _balance(work.enter, "ready")
        found["confirm"] = _balance(work.enter, "ready", wait=STILL_IN)
    if work.servers:
        names = [server["name"] for server in work.servers]
        found["watch"] = Step("vllm_watch", {"servers": names, "seconds": change.soak})
    return found | (_back(work) if change.operation == UPGRADE else {})


def _measure(work: Work, change: BatchChange) -> dict[str, Step]:
    """Return a host's steps of a measurement; nothing is replaced, and what is down is started as it is."""
    found = {}
    if work.leave:
        found["drain"] = _balance(work.leave, "drain", at_once=not change.keep)
    if work.measured:
        found["measure"] = Step(
            "measurement", {"role": change.operation, "instances": [dict(item) for item in work.measured]}
        )
    if work.servers:
        started = {"servers": list(work.servers), "state": "started"}
        found["serve"] = Step("vllm_server", started)
        if work.down:
            found["resume"] = found["serve"]
        if work.spans:
            found["start"] = Step("vllm_server", {**started, "wait": False})
    if work.enter:
        found["undrain"] = _balance(work.enter, "ready")
        found["return"] = _balance(work.enter, "ready", wait=0)
    return found


def phases(steps: Iterable[Mapping[str, Step]], order: Sequence[str]) -> list[str]:
    """Return the phases that a host of a batch has, in their order."""
    there = {name for host in steps for name in host}
    return [name for name in order if name in there]


def _balance(servers: Sequence[Data], state: str, **more: Any) -> Step:
    return Step("balancer_server", {"servers": list(servers), "state": state, **more})


def _run(servers: Sequence[Data], remove: Sequence[str], spans: bool, suffix: str = "") -> dict[str, Step]:
    """Return the steps that serve. The servers of an engine over several hosts all start before any is awaited."""
    if not servers and not remove:
        return {}
    args = {"servers": list(servers), "remove": list(remove)}
    found = {f"serve{suffix}": Step("vllm_server", args)}
    if spans:
        found[f"start{suffix}"] = Step("vllm_server", {**args, "wait": False})
    return found


def _compare(canary: Canary, change: BatchChange) -> dict[str, Step]:
    """Return the steps that measure before and after; a canary that is already new is judged by its baseline."""
    both = {"new": canary.new, "reference": canary.reference, "change": change.why}
    before = {} if canary.measure else {"baseline": canary.baseline}
    found = {
        "judge": Step("canary", {"phase": "after", **both, **before}),
        "report": Step("canary", {"phase": "failed", **both, **before}),
        "record_verdict": Step(
            "serving_generation", {"bindings": [trial_record(change, canary.id, judged=True)]}
        ),
    }
    if canary.measure:
        found["measure"] = Step("canary", {"phase": "before", "old": canary.old, **both})
        found["record_baseline"] = Step("serving_generation", {"bindings": [trial_record(change, canary.id)]})
    return found


def _back(work: Work) -> dict[str, Step]:
    found = _run(work.old_servers, work.old_remove, work.spans, "_old")
    if work.enter_old:
        found["undrain_old"] = _balance(work.enter_old, "ready")
    return found


# ---- records -----------------------------------------------------------------------------------------


def trial_record(change: BatchChange, canary: str = "", judged: bool = False) -> dict[str, Any]:
    """Return the binding of an upgrade that begins, whose canary ("host/instance") is measured, or was judged.

    The result of the old generation (`found`) is filled in once it is measured.
    """
    found = {
        "generation": change.generation,
        "why": change.why,
        "units": [canary] if judged else [],
        "baseline": {"canary": canary, "found": {}} if canary else {},
        "before": change.before,
        "together": dict(change.together),
    }
    return {"deployment": change.deployment, "trial": found}


def no_trial(deployments: Iterable[str]) -> dict[str, Any]:
    """Return what ends trials."""
    return {"bindings": [{"deployment": name, "trial": None} for name in dict.fromkeys(deployments)]}


def hold_steps(holds: Mapping[str, Hold], kept: Collection[str]) -> dict[str, Step]:
    """Return the steps that hold deployments on a host if a batch goes back. kept: those that the host keeps.

    The reason is filled in once it is known.
    """
    bindings = [
        {"deployment": name, "trial": None, "held": hold.to_json()}
        for name, hold in holds.items()
        if name in kept
    ]
    if not bindings:
        return {}
    step = Step("serving_generation", {"bindings": bindings})
    return {"hold": step, "confirm_hold": step}


def hold_reason(why: str) -> str:
    """Return a failure, shortened to the length that a hold and the journal keep."""
    return why if len(why) <= HOLD_TEXT else f"{why[: HOLD_TEXT - 1]}…"
