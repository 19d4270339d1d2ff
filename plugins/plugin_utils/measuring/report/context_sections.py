# SPDX-License-Identifier: Apache-2.0
"""Build what a report shows in addition to its own figures: the previous run, published results, and accuracy.

The judgement is made elsewhere (measurement/compare.py, accuracy/judge.py). Plots are functions that return SVG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...base.text import plural
from ..measurement.cells import Side
from ..measurement.compare import WORSE, CellVerdict, ComparisonRules, RunComparison, compare
from ..measurement.configuration import Difference, differences
from ..measurement.published import Counterpart, PublishedResult, counterparts
from ..plots.load_plots import PHONE, change_plot
from ..summary.loads import Interval
from ..summary.tables import EN_DASH, TIMES, UNKNOWN, rate
from .compare_text import method, percent, short_digests, verdict_counts

Row = Mapping[str, Any]
MOST_DRAWN = 24
"""If there are more cells than this, they are only in the table."""
MOST_PUBLISHED = 6
MOST_DIFFERENCES = 12


def previous_section(own: Side, previous: Side | None) -> dict[str, Any] | None:
    """Return the comparison with the previous run; None without one that measured a cell of this run."""
    if previous is None:
        return None
    rules = ComparisonRules()
    found, differs = compare(own, previous, rules), differences(own, previous)
    if not found.cells:
        return None
    several = len({cell.key.deployment for cell in found.cells}) > 1
    drawn = [
        (_label(cell, several), _speed(cell), cell.verdict == WORSE)
        for cell in found.cells
        if cell.low is not None and cell.high is not None
    ]
    title = "Change of speed under each load, with its interval"
    plots = []
    if 1 < len(drawn) <= MOST_DRAWN:
        plots.append({
            "title": title, "key": "words",
            "words": f"shaded: up to ±{rules.tolerance:.0%}, which does not matter",
            "draw": lambda: change_plot("change", title, drawn, rules.tolerance),
            "narrow": lambda: change_plot("change-phone", title, drawn, rules.tolerance, PHONE),
        })  # fmt: skip
    return {
        "run": previous.name,
        "counts": verdict_counts(found),
        "worse": len(found.worse),
        "mean": _mean(found),
        "method": method(found, rules),
        "plots": plots,
        "cells": [_cell(cell, several) for cell in found.cells],
        "closed": bool(plots) or len(found.cells) > MOST_DRAWN,
        "unclear": _unclear(found),
        "missing": _missing(found),
        "differences": [_difference(item) for item in differs[:MOST_DIFFERENCES]],
        "more": max(0, len(differs) - MOST_DIFFERENCES),
    }


def published_section(own: Side, published: Sequence[PublishedResult]) -> dict[str, Any] | None:
    """Return the nearest published results, each with its nearest cell; None if there are none of the models."""
    found = sorted(counterparts(own, published), key=lambda pair: pair.distance)
    if not found:
        return None
    nearest = {id(pair.published): pair for pair in reversed(found)}
    shown = sorted(nearest.values(), key=lambda pair: pair.distance)[:MOST_PUBLISHED]
    several = len({pair.deployment for pair in found}) > 1
    return {
        "rows": [_published(pair, several) for pair in shown],
        "more": len(nearest) - len(shown),
        "same": sum(pair.same for pair in nearest.values()),
    }


def accuracy_section(
    deployments: Mapping[str, Mapping[str, Any]], runs: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return for each deployment its newest accuracy run: of the same image, else of the same model.

    deployments: those of summary.json. runs: the contents of accuracy.json by run. One without a run is left out.
    """
    found = [_accuracy(name, shared, runs) for name, shared in sorted(deployments.items())]
    return [item for item in found if item]


def _accuracy(
    name: str, shared: Mapping[str, Any], runs: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any] | None:
    candidates = []
    for run, content in runs.items():
        entry = (content.get("deployments") or {}).get(name)
        identity = ((entry or {}).get("run") or {}).get("identity") or {}
        if isinstance(entry, Mapping) and identity.get("model") == shared["model"]:
            same = _same_release(identity, shared)
            candidates.append((same, str(content.get("finished") or ""), run, entry, identity))
    if not candidates:
        return None
    same, finished, run, entry, identity = max(candidates, key=lambda item: item[:3])
    tasks = [_task(task, item) for task, item in (entry.get("tasks") or {}).items() if item.get("n")]
    nll = entry.get("nll")
    return {
        "deployment": name,
        "run": run,
        "finished": finished[:16].replace("T", " "),
        "same": same,
        "of": short_digests(str(identity.get("image") or "another image")),
        "tasks": tasks,
        "nll": ""
        if nll is None
        else f"{nll:.4f} nat per token, {plural(len(entry.get('replicas') or ()), 'replica')}",
        "problems": list(entry.get("problems") or ()),
    }


def _same_release(identity: Mapping[str, Any], shared: Mapping[str, Any]) -> bool:
    """Return whether an accuracy run had the model's commit and the image of a benchmark."""
    image, digest = str(identity.get("image") or ""), str(shared.get("digest") or "")
    same_image = image.endswith(f"@{digest}") if digest and "@" in image else image == shared.get("image")
    return same_image and (identity.get("commit") or None) == (shared.get("commit") or None)


def _task(name: str, item: Mapping[str, Any]) -> dict[str, str]:
    against, interval = item.get("against"), item.get("interval")
    verdict = item.get("why") or UNKNOWN
    if against:
        verdict = f"{against['verdict']}: {_points(against['loss_points'])} against the previous release"
    notes = [
        f"{note['state']} the published {note['score']:g}" + ("" if note["decides"] else ", for information")
        for note in item.get("published") or ()
    ]
    return {
        "task": name,
        "score": f"{100 * item['score']:.1f}%",
        "interval": f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}%" if interval else UNKNOWN,
        "n": f"{item['n']:,}",
        "verdict": "; ".join([verdict, *notes[:1]]),
    }


def _points(loss: float) -> str:
    return (
        f"{abs(loss):.1f} points {'worse' if loss > 0 else 'better'}" if round(loss, 1) else "no difference"
    )


def _label(cell: CellVerdict, several: bool) -> str:
    return f"{cell.key.deployment} {cell.key.cell}" if several else cell.key.cell


def _mean(found: RunComparison) -> str:
    return percent(found.mean) if found.mean is not None and len(found.cells) > 1 else ""


def _cell(cell: CellVerdict, several: bool) -> dict[str, Any]:
    interval = UNKNOWN
    if cell.low is not None and cell.high is not None:
        interval = f"{percent(cell.low)} to {percent(cell.high)}"
    return {
        "name": _label(cell, several),
        "metric": f"{cell.metric.label}, {cell.metric.unit}",
        "before": rate(cell.b),
        "now": rate(cell.a),
        "change": UNKNOWN if cell.change is None else percent(cell.change),
        "interval": interval,
        "verdict": cell.verdict,
        "worse": cell.verdict == WORSE,
    }


def _speed(cell: CellVerdict) -> Interval:
    """Return the change of speed: for a latency, the inverse."""
    change, low, high = (value or 0.0 for value in (cell.change, cell.low, cell.high))
    if cell.metric.more_is_better:
        return Interval(change, low, high)
    return Interval(*(1 / (1 + value) - 1 for value in (change, high, low)))


def _unclear(found: RunComparison) -> list[str]:
    """Return what would make verdicts clear, and notes on single loads: each once, with the number of loads."""
    reasons: dict[str, list[str]] = {}
    for cell in found.cells:
        for text in (*([f"not clear, {cell.needs}"] if cell.needs else []), *cell.notes):
            # The sides have other names here than in the terminal.
            reasons.setdefault(text.replace("a and b", "both runs"), []).append(cell.key.cell)
    return [
        f"{', '.join(cells) if len(cells) < 3 else plural(len(cells), 'load')}: {text}"
        for text, cells in reasons.items()
    ]


def _missing(found: RunComparison) -> str:
    """Return how many cells only one of the runs has."""
    counts = {side: sum(item.side == side for item in found.unmatched) for side in "ab"}
    parts = [
        f"{plural(counts[side], 'load')} only in {which}"
        for side, which in (("a", "this run"), ("b", "the previous one"))
        if counts[side]
    ]
    return ", ".join(parts)


def _difference(item: Difference) -> dict[str, str]:
    return {
        "what": f"{item.what} {item.name}",
        "now": short_digests(item.a) or "none",
        "before": short_digests(item.b) or "none",
    }


def _published(pair: Counterpart, several: bool) -> dict[str, str]:
    ratios = [
        f"{ratio.metric.replace('_', ' ')}: {ratio.value:.2f} {TIMES} {rate(ratio.published)}"
        for ratio in pair.ratios[:3]
    ]
    return {
        "cell": f"{pair.deployment} {pair.cell}" if several else pair.cell,
        "ratios": "; ".join(ratios),
        "differs": "; ".join(pair.differs) or "no known difference",
        "source": f"{pair.published.source} {pair.published.date or ''}".strip() or EN_DASH,
    }
