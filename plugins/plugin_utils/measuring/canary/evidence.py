# SPDX-License-Identifier: Apache-2.0
"""Judge a new release by the results of the modules on the node. Pure.

SMOKE is the result of vllm_smoke, BENCH that of vllm_bench; if a module failed, its message. AccuracyEvidence has that
of vllm_accuracy. The baseline is what was measured of the old release; it is stored on the node, so that a run can
continue after the control node was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ....module_utils.engines.smoke_prompts import Reply, SmokeResult
from ....module_utils.engines.smoke_prompts import judge as judge_smoke
from ...base.infrastructure import CLASSES
from ...base.json_record import JsonRecord
from ...planning.rollout.canary_tolerances import CanaryTolerances
from ..accuracy.results import DeploymentRun
from .accuracy import AccuracyComparison, AccuracyEvidence, compare_accuracy
from .verdict import OK, SLOWER, Measurements, SpeedVerdict, judge_speed, runs_of

SCHEMA = 1
GARBAGE, BROKEN, LESS_ACCURATE = "garbage", "broken", "less accurate"
INFRASTRUCTURE = "infrastructure"
"""Nothing is known about the release, because something around it failed."""

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Baseline(JsonRecord):
    """The measurements of the old release.

    `identity` is vllm_smoke's `instance`; `rounds` are its replies, in two rounds. `reference`: the name of the
    instance measured next to it, "" for none. `notes`: what could not be measured. `accuracy`: its scored answers.
    """

    identity: Mapping[str, Any] = field(default_factory=dict)
    endpoint: str = ""
    rounds: tuple[tuple[Reply, ...], ...] = ()
    window: Measurements | None = None
    reference: str = ""
    notes: tuple[str, ...] = ()
    accuracy: DeploymentRun | None = None

    @property
    def empty(self) -> bool:
        """Return whether there was no old instance."""
        return not self.identity

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Baseline:
        """Build from the result of to_json; {} and data of another release of this toolkit give the empty baseline."""
        if data.get("schema") != SCHEMA:
            return cls(
                notes=("the baseline was measured by another version of this toolkit",) if data else ()
            )
        return cls(
            data["identity"],
            data["endpoint"],
            tuple(tuple(map(Reply.from_json, replies)) for replies in data["rounds"]),
            Measurements.from_json(data["window"]) if data["window"] else None,
            data["reference"],
            tuple(data["notes"]),
            DeploymentRun.from_json(data["accuracy"]) if data.get("accuracy") else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data, about 25 kilobytes."""
        return {"schema": SCHEMA, **super().to_json()}


@dataclass(frozen=True)
class CanaryVerdict:
    """The verdict on the new release. `more`: additional runs that a final verdict needs; 0 if this one is final.

    `client`: the image to measure the new release with, {} for its own.
    """

    kind: str
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    more: int = 0
    speed: SpeedVerdict | None = None
    smoke: SmokeResult | None = None
    measurements: tuple[Measurements, ...] = ()
    accuracy: AccuracyComparison | None = None

    @property
    def summary(self) -> str:
        """Return the verdict in one line."""
        return f"{self.kind}: {'; '.join(self.reasons)}"


def baseline(
    smoke: Result, bench: Result, reference: str, accuracy: AccuracyEvidence | None = None
) -> Baseline:
    """Return the measurements of the old release by the modules; the empty baseline without `instance`."""
    identity = smoke.get("instance") or {}
    if not identity:
        return Baseline(notes=tuple(filter(None, [str(smoke.get("msg") or "")])))
    notes = []
    rounds = tuple(replies_of(smoke))
    if not rounds:
        notes.append(str(smoke.get("note") or smoke.get("msg") or "the old instance got no prompts"))
    window, problem = read_measurement(bench, str(identity["name"]), reference)
    if problem:
        notes.append(f"the old instance could not be measured: {problem}")
    there = bool(window and window.reference)
    if reference and window and not there:
        notes.append(f"the reference {reference} could not be measured")
    if accuracy:
        notes += [f"the old instance: {note}" for note in accuracy.notes]
    return Baseline(
        identity,
        str(smoke.get("endpoint") or ""),
        rounds,
        window,
        reference if there else "",
        tuple(notes),
        accuracy.run if accuracy else None,
    )


def replies_of(smoke: Result) -> list[tuple[Reply, ...]]:
    """Return the replies of each round of prompts."""
    return [tuple(map(Reply.from_json, replies)) for replies in smoke.get("rounds") or ()]


def read_measurement(bench: Result, name: str, reference: str) -> tuple[Measurements | None, str]:
    """Return (the measurement, ""), or (None, why there is none)."""
    entries = {entry["instance"]: entry for entry in bench.get("benchmarks") or ()}
    own = entries.get(name)
    if own is None:
        return None, str(bench.get("msg") or "no benchmark was run")
    if own["error"]:
        return None, str(own["error"])
    beside = entries.get(reference) if reference else None
    return Measurements(
        runs_of(_results(own)), runs_of(_results(beside)) if beside and not beside["error"] else None
    ), ""


def _measured_alone(bench: Result, name: str, reference: str) -> bool:
    """Return whether this instance could not be measured but its reference could: else the release is not at fault."""
    entries = {entry["instance"]: entry for entry in bench.get("benchmarks") or ()}
    beside = entries.get(reference) if reference else None
    return name in entries and not (beside and beside["error"])


def _results(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what vLLM wrote in each run of an entry of vllm_bench."""
    return [run["result"] for run in entry["runs"] if not run["error"]]


def client(before: Baseline, new: Mapping[str, Any]) -> dict[str, str]:
    """Return the image that measures the new release: the old one's, so that the same client measures both.

    A model with another name may need a tokenizer that only its own image has.
    """
    if before.empty or before.identity.get("model") != new.get("model"):
        return {}
    return {"image": str(before.identity["image"]), "vllm": str(before.identity["vllm"])}


def judge_canary(
    before: Baseline,
    smoke: Result,
    looks: Sequence[Result],
    rules: CanaryTolerances,
    accuracy: AccuracyEvidence | None = None,
) -> CanaryVerdict:
    """Return the verdict from the new release's answers, and from the benchmarks of no, one or two looks."""
    failed = surrounding_failure(smoke, accuracy.result if accuracy else {}, *looks)
    if failed:
        return CanaryVerdict(INFRASTRUCTURE, (failed,), before.notes)
    identity = smoke.get("instance") or {}
    if not identity:  # the module did not reach the instance: else it says what that answered
        return CanaryVerdict(INFRASTRUCTURE, (str(smoke.get("msg") or "the new instance was not asked"),))
    same_model, same_size, other = _differences(before.identity, identity)
    answered = _judge_answers(before, smoke, same_model)
    answered = replace(answered, warnings=(*before.notes, *other, *answered.warnings))
    if accuracy and answered.kind == OK and not before.empty:
        answered = _with_accuracy(
            answered, compare_accuracy(before.accuracy, accuracy, rules.accuracy_tolerance)
        )
    if before.empty or answered.kind != OK:
        return answered
    if before.window is None:
        return replace(answered, reasons=(*answered.reasons, "its speed was not compared"))
    if not looks:
        return replace(answered, more=rules.runs)
    windows, failure = _windows(looks, str(identity["name"]), before.reference)
    if failure:
        kind, why = failure
        return replace(answered, kind=kind, reasons=(why,), measurements=windows)
    speed = judge_speed(before.window, windows, rules)
    return _with_speed(replace(answered, measurements=windows), speed, before.reference, same_size)


def _with_accuracy(answered: CanaryVerdict, found: AccuracyComparison) -> CanaryVerdict:
    """Return the verdict by the scored answers as well."""
    answered = replace(answered, accuracy=found, warnings=(*answered.warnings, *found.warnings))
    if found.unanswered:
        return replace(answered, kind=BROKEN, reasons=(found.unanswered,))
    if found.less:
        return replace(answered, kind=LESS_ACCURATE, reasons=found.less)
    return replace(answered, reasons=(*answered.reasons, *found.found))


def _windows(
    looks: Sequence[Result], name: str, reference: str
) -> tuple[tuple[Measurements, ...], tuple[str, str] | None]:
    """Return the measurements of all looks, or those before the first that failed, with its kind and reason."""
    windows: list[Measurements] = []
    for bench in looks:
        window, problem = read_measurement(bench, name, reference)
        if window is None:
            kind = BROKEN if _measured_alone(bench, name, reference) else INFRASTRUCTURE
            return tuple(windows), (kind, f"it could not be measured: {problem}")
        windows.append(window)
    return tuple(windows), None


def _with_speed(
    answered: CanaryVerdict, speed: SpeedVerdict, reference: str, same_size: bool
) -> CanaryVerdict:
    """Return the verdict by the speed as well. same_size: whether speeds should agree."""
    warnings = [*answered.warnings, *speed.warnings]
    lines = [item.text() for item in speed.comparisons if item.state != OK] or [
        item.text() for item in speed.comparisons if item.metric.decides
    ]
    state = speed.state
    if not same_size and state != OK:
        state = OK
        warnings.append("slower, but ignored, because the model or the number of GPUs changed")
    if state == SLOWER and not speed.more and reference and answered.measurements[-1].reference is None:
        lost = f"the reference {reference} could not be measured, without which slower runs prove nothing"
        return replace(answered, kind=INFRASTRUCTURE, reasons=(lost, *lines))
    return replace(
        answered,
        kind=state,
        reasons=tuple([*answered.reasons, *lines] if state == OK else lines),
        warnings=tuple(warnings),
        more=speed.more if same_size else 0,
        speed=speed,
    )


def _judge_answers(before: Baseline, smoke: Result, same_model: bool) -> CanaryVerdict:
    """Return the verdict by the answers to the prompts alone."""
    now = next(iter(replies_of(smoke)), ())
    cause = f" {smoke['cause']}" if smoke.get("cause") else ""
    if before.empty:
        if now and all(reply.error for reply in now):
            return CanaryVerdict(BROKEN, (f"no prompt got an answer: {now[0].error}{cause}",))
        return CanaryVerdict(OK, ("there is no old instance to compare it with",))
    if not before.rounds:
        return CanaryVerdict(OK, ())
    if not now:
        why = str(smoke.get("note") or smoke.get("msg") or "it got no prompts")
        return CanaryVerdict(BROKEN, (f"{why}, but the old instance answered",))
    first, second = before.rounds[0], before.rounds[-1]
    answers = judge_smoke(first, second, now, same_model)
    agreement = answers.agreement
    found = CanaryVerdict(
        OK,
        () if agreement is None else (f"{agreement:.0%} of the answers begin like the old release's",),
        answers.warnings,
        smoke=answers,
    )
    if answers.broken:
        return replace(found, kind=BROKEN, reasons=(answers.broken + cause,))
    if answers.garbage:
        return replace(found, kind=GARBAGE, reasons=(answers.garbage,))
    return found


def surrounding_failure(*results: Result) -> str:
    """Return what failed around the instance, such as Docker on its node, by the results of modules; "" if nothing."""
    for result in results:
        parts = [result, *(item for item in result.get("benchmarks") or () if item["error"])]
        for part in parts:
            if part.get("class") in CLASSES:
                return str(part.get("error") or part.get("msg") or part["class"])
    return ""


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[bool, bool, list[str]]:
    """Return (whether answers should agree, whether speeds should agree, the intended differences)."""
    if not old:
        return False, False, []
    lines = [
        f"another {what}: {old.get(key)} → {new.get(key)}"
        for key, what in (("model", "model"), ("commit", "commit of the model"), ("gpus", "number of GPUs"))
        if old.get(key) != new.get(key)
    ]
    same_model = (old.get("model"), old.get("commit")) == (new.get("model"), new.get("commit"))
    same_size = (old.get("model"), old.get("gpus")) == (new.get("model"), new.get("gpus"))
    return same_model, same_size, lines
