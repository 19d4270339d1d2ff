# SPDX-License-Identifier: Apache-2.0
"""Say on the first screen what was measured, how well, and what needs attention. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...base.text import plural
from ..suites.suite import PRECISE
from ..summary.cell_summary import relative_half_width
from ..summary.gpu_findings import GpuFinding, headline, undecided_differences

Row = Mapping[str, Any]


def glance(
    rows: Sequence[Row],
    summary: Mapping[str, Any],
    findings: Sequence[GpuFinding],
    previous: Mapping[str, Any] | None,
    accuracy: Sequence[Mapping[str, Any]],
) -> list[dict[str, str]]:
    """Return the lines {label, text, tone, target}; target: the id of the section that says more, "" for none."""
    lines = [_line("Measured", measured_text(rows, summary))]
    if rows:
        lines.append(_line("Repeats", precision(rows)))
    found = attention(rows, summary, findings, previous, accuracy)
    lines.append(
        _line("Attention", found or _healthy(summary), "warn" if found else "", "attention" if found else "")
    )
    if previous:
        over = f", speed {previous['mean']} over all" if previous["mean"] else ""
        lines.append(
            _line(
                "Previous run",
                f"{previous['run']}: {plural(len(previous['cells']), 'load')}, {previous['counts']}{over}",
                "",
                "previous",
            )
        )
    lines += [_line("Accuracy", _accuracy(item, len(accuracy) > 1), "", "accuracy") for item in accuracy[:3]]
    return lines


def measured_text(rows: Sequence[Row], summary: Mapping[str, Any]) -> str:
    """Return what was measured: suite, loads, instances, nodes with their GPUs."""
    if not rows:
        return "nothing"
    suites = sorted({str(row["suite"]) for row in rows if row.get("suite")})
    loads = len({(row["deployment"], row["kind"], row["cell"]) for row in rows})
    instances = len({(row["host"], row["instance"]) for row in rows})
    hosts = {row["host"] for row in rows}
    text = f"suite {', '.join(suites)}, " if suites else ""
    text += f"{plural(loads, 'load')} on {plural(instances, 'instance')}, {plural(len(hosts), 'node')}"
    kinds = Counter(
        gpu.get("model") or "GPU"
        for host in hosts
        for gpu in (summary["hosts"].get(host) or {}).get("gpus") or ()
    )
    text += f" with {', '.join(f'{count:,} {kind}' for kind, count in kinds.most_common(2))}" if kinds else ""
    return text + (", live: together with users' requests" if any(row.get("live") for row in rows) else "")


def precision(rows: Sequence[Row]) -> str:
    """Return how often loads ran, and how wide the intervals are."""
    runs = [row["runs"] for row in rows]
    if max(runs) < 3:
        return f"{plural(max(runs), 'run')} of each load: no intervals, and differences are not judged"
    count = f"{min(runs)}" if min(runs) == max(runs) else f"{min(runs)} to {max(runs)}"
    widths = [width for row in rows if (width := relative_half_width(row)) is not None]
    if not widths:
        return f"{count} runs of each load"
    wide = sum(width > PRECISE for width in widths)
    text = f"{count} runs of each load; 95% intervals ±{statistics.median(widths):.1%} in the middle"
    text += f", ±{max(widths):.1%} at most" if len(widths) > 1 else ""
    return text + (f"; wider than ±{PRECISE:.0%} in {wide:,} of {len(widths):,} measurements" if wide else "")


def attention(
    rows: Sequence[Row],
    summary: Mapping[str, Any],
    findings: Sequence[GpuFinding],
    previous: Mapping[str, Any] | None,
    accuracy: Sequence[Mapping[str, Any]],
) -> str:
    """Return what needs attention, in order of weight; "" if nothing does."""
    parts = []
    if summary["failures"]:
        parts.append(plural(len(summary["failures"]), "failure"))
    if findings:
        parts.append(headline(findings))
    if previous and previous["worse"]:
        parts.append(f"{plural(previous['worse'], 'load')} worse than in the previous run")
    problems = sum(len(item["problems"]) for item in accuracy if item["same"])
    if problems:
        parts.append(plural(problems, "accuracy problem"))
    bound = len({(row["deployment"], row["cell"]) for row in rows if row["client_bound"]})
    if bound:
        parts.append(f"{plural(bound, 'load')} limited by the client")
    if open_ := undecided_differences(summary["gpu_verdicts"]):
        parts.append(f"{plural(len(open_), 'difference')} that too few runs neither confirm nor exclude")
    return ", ".join(parts)


def _healthy(summary: Mapping[str, Any]) -> str:
    verdicts = Counter(item["verdict"] for item in summary["gpu_verdicts"])
    if not verdicts["ok"]:
        return "no failures; GPUs were not judged, as no other GPU did the same work"
    text = f"nothing: no failures, {plural(verdicts['ok'], 'GPU')} ok"
    return text + (f", {verdicts[None]} not judged" if verdicts[None] else "")


def _accuracy(item: Mapping[str, Any], several: bool) -> str:
    scores = [f"{task['task']} {task['score']} of {task['n']}" for task in item["tasks"][:3]]
    text = f"{item['deployment']}: " if several else ""
    text += ", ".join(scores) or (f"NLL {item['nll']}" if item["nll"] else "nothing was scored")
    return text + ("" if item["same"] else ", measured with another image or commit")


def _line(label: str, text: str, tone: str = "", target: str = "") -> dict[str, str]:
    return {"label": label, "text": text, "tone": tone, "target": target}
