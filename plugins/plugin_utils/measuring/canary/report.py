# SPDX-License-Identifier: Apache-2.0
"""Format the evidence of a canary, as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....module_utils.engines.smoke_prompts import SmokeResult
from ...base.text import wrap
from ...planning.rollout.canary_tolerances import CanaryTolerances
from ..statistics.shift import LEVEL
from .accuracy import AccuracyComparison
from .evidence import Baseline, CanaryVerdict
from .verdict import FALLBACK_METRIC, METRICS, Metric

SCHEMA = 1
_WIDTH = 110
_IDENTITY = ("name", "deployment", "model", "commit", "image", "vllm")
_ANSWER = 88  # maximum characters of an answer in the text; canary.json has all of it

_LOST = 8  # maximum number of items in the text


@dataclass(frozen=True)
class CanaryReport:
    """A canary: its host and instance, and the results. `made`: time in UTC; `change`: what the release changes."""

    run: str
    made: str
    host: str
    change: str
    new: Mapping[str, Any]
    before: Baseline
    verdict: CanaryVerdict
    rules: CanaryTolerances


def new_identity(smoke: Mapping[str, Any], instance: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the identity of the new release: from its answers to prompts, else as it was planned (`instance`)."""
    found: Mapping[str, Any] = smoke.get("instance") or {}
    return found or {key: str(instance.get(key) or "") for key in _IDENTITY}


def to_json(case: CanaryReport) -> dict[str, Any]:
    """Return the content of canary.json."""
    verdict, smoke = case.verdict, case.verdict.smoke
    return {
        "schema": SCHEMA,
        "run": case.run,
        "made": case.made,
        "host": case.host,
        "change": case.change,
        "verdict": verdict.kind,
        "summary": verdict.summary,
        "warnings": list(verdict.warnings),
        "old": dict(case.before.identity),
        "new": dict(case.new),
        "rules": case.rules.to_json(),
        "reference": case.before.reference,
        "before": case.before.window.to_json() if case.before.window else None,
        "after": [window.to_json() for window in verdict.measurements],
        "comparisons": [item.to_json() for item in (verdict.speed.comparisons if verdict.speed else ())],
        "accuracy": verdict.accuracy.to_json() if verdict.accuracy else None,
        "agreement": {"with_itself": smoke.self_agreement, "with_old": smoke.agreement} if smoke else None,
        "prompts": [
            {
                "prompt": row.prompt.text,
                "old": row.old.to_json(),
                "new": row.new.to_json(),
                "wrong": row.wrong,
            }
            for row in (smoke.rows if smoke else ())
        ],
    }


def text(case: CanaryReport) -> str:
    """Return the content of canary.txt."""
    verdict, old, new = case.verdict, case.before.identity, case.new
    lines = [f"Canary {new.get('name') or '?'} on {case.host}, {case.made}"]
    lines += _wrapped("", verdict.summary)
    lines += [line for warning in verdict.warnings for line in _wrapped("WARNING ", warning)]
    lines.append("")
    if case.change:
        lines += _wrapped("change  ", case.change)
    for label, who in (("old", old), ("new", new)):
        what = ", ".join(str(who[key]) for key in ("image", "model", "commit") if who.get(key))
        lines.append(f"{label}  {what or 'none'}")
    if verdict.measurements and case.before.window:
        lines += ["", *_numbers(case)]
    if verdict.accuracy and verdict.accuracy.found:
        lines += ["", *_accuracy(verdict.accuracy)]
    if verdict.smoke:
        lines += ["", *_prompts(case, verdict.smoke)]
    return "\n".join(lines) + "\n"


def _numbers(case: CanaryReport) -> list[str]:
    windows = [("old", case.before.window), *zip(("new", "new, again"), case.verdict.measurements)]
    shown = [window for _unused, window in windows if window]
    found = [
        metric
        for metric in (*METRICS, FALLBACK_METRIC)
        if all(window.own.get(metric.key) for window in shown)
        and (metric is not FALLBACK_METRIC or not all(window.own.get(METRICS[0].key) for window in shown))
    ]
    lines = ["Runs of vllm bench serve, by the same client"]
    for metric in found:
        lines.append(f"  {metric.label}, {metric.unit}")
        for label, window in windows:
            if window:
                lines.append(f"    {label:12}{_row(metric, window.own)}")
                if case.before.reference and window.reference:
                    lines.append(f"    {'  reference':12}{_row(metric, window.reference)}")
    if case.verdict.speed:
        lines.append(f"New against old (intervals of at least {LEVEL:.0%})")
        lines += [f"  {item.state:10}{item.text()}" for item in case.verdict.speed.comparisons]
    if case.before.reference:
        lines.append(
            f"  {case.before.reference} ran the old release at the same time, before and after: the figures are "
            "relative to it."
        )
    return lines


def _row(metric: Metric, runs: Mapping[str, Sequence[float]]) -> str:
    values = runs.get(metric.key, ())
    return "  ".join(f"{value:9.1f}" if value < 1e5 else f"{value:9.0f}" for value in values)


def _accuracy(accuracy: AccuracyComparison) -> list[str]:
    (old, of_old), (new, of_new) = accuracy.scores
    lines = [
        f"Sanity set and passages; {old} of {of_old} answers of the old release were right, now {new} of {of_new}"
    ]
    lines += [f"  {line}" for line in accuracy.found]
    for lost in accuracy.lost[:_LOST]:
        answer = f"{_one_line(lost.answer.strip())}, right is {_one_line(lost.item.accepted[0])}"
        lines += [f"  {_one_line(lost.item.question)}", f"    new  {answer}"]
    left = len(accuracy.lost) - _LOST
    return [*lines, f"  and {left} more that only the old release has right"] if left > 0 else lines


def _prompts(case: CanaryReport, smoke: SmokeResult) -> list[str]:
    differ = [row for row in smoke.rows if row.wrong or row.old != row.new]
    listed = []
    if smoke.self_agreement is not None:
        listed.append(f"the old release's two answers began alike on {smoke.self_agreement:.0%}")
    if smoke.agreement is not None:
        listed.append(f"the new release began like the old one on {smoke.agreement:.0%}")
    lines = [f"{len(smoke.rows)} prompts, {len(differ)} with other answers; {', '.join(listed)}"]
    for row in differ:
        lines.append(f"  {_one_line(row.prompt.text)}" + (f"   [{row.wrong}]" if row.wrong else ""))
        lines += [
            f"    {label}  {_format_answer(reply.text, reply.error)}"
            for label, reply in (("old", row.old), ("new", row.new))
        ]
    return lines


def _format_answer(said: str, error: str) -> str:
    return f"({error[:_ANSWER]})" if error else _one_line(said)


def _one_line(said: str) -> str:
    shown = said.replace("\n", "⏎")
    return repr(shown if len(shown) <= _ANSWER else shown[: _ANSWER - 1] + "…")


def _wrapped(head: str, what: str) -> list[str]:
    return wrap(" ".join(what.split()), _WIDTH, head, " " * len(head), whole=True)
