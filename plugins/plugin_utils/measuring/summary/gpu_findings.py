# SPDX-License-Identifier: Apache-2.0
"""Format the verdicts about GPUs that need attention: one line for GPUs of a node that share a finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...base.text import plural

Verdict = Mapping[str, Any]
ATTENTION = ("bad", "slow", "suspect")
"""Verdicts that need attention, the most serious first."""


@dataclass(frozen=True)
class GpuFinding:
    """GPUs of one host with the same verdict, reasons and next step."""

    host: str
    verdict: str
    gpus: str
    count: int
    reasons: tuple[str, ...]
    causes: tuple[str, ...]
    next_step: str

    @property
    def place(self) -> str:
        """Return the host and its GPUs."""
        return f"{self.host} {self.gpus}"

    @property
    def text(self) -> str:
        """Return the finding with its causes as one line."""
        return "; ".join((*self.reasons, *self.causes))


def gpu_findings(verdicts: Sequence[Verdict]) -> list[GpuFinding]:
    """Return the findings that need attention, the most serious first; an empty list if all GPUs are fine."""
    groups: dict[tuple[Any, ...], list[Verdict]] = {}
    for verdict in verdicts:
        if verdict["verdict"] in ATTENTION:
            key = (ATTENTION.index(verdict["verdict"]), verdict["host"], tuple(verdict["reasons"]))
            # A whole node has one finding, and so have the GPUs of one instance, and each GPU by itself.
            alone = verdict["gpu"] if verdict["scope"] not in ("node", "pair", "instance") else None
            groups.setdefault((*key, alone), []).append(verdict)
    ordered = sorted(groups.items(), key=lambda item: item[0][0])
    return [_finding(own) for _unused, own in ordered]


def undecided_differences(verdicts: Sequence[Verdict]) -> list[str]:
    """Return differences that too few runs neither confirm nor exclude, each once with its host."""
    found = {
        f"{verdict['host']}: {reason}": None
        for verdict in verdicts
        if verdict["verdict"] is None and verdict["relative"] is not None
        for reason in verdict["reasons"]
    }
    return list(found)


def headline(findings: Sequence[GpuFinding]) -> str:
    """Return the number of GPUs with each verdict: "1 bad GPU, 8 slow GPUs"."""
    counts = {
        verdict: sum(finding.count for finding in findings if finding.verdict == verdict)
        for verdict in ATTENTION
    }
    return ", ".join(plural(count, f"{verdict} GPU") for verdict, count in counts.items() if count)


def _finding(own: Sequence[Verdict]) -> GpuFinding:
    first = own[0]
    numbers = [str(verdict["gpu"]) for verdict in own]
    gpus = f"GPU {numbers[0]}" if len(numbers) == 1 else f"GPUs {', '.join(numbers)}"
    if len(numbers) == 1 and first["bdf"]:
        gpus += f" ({first['bdf']})"
    causes = dict.fromkeys(_cause(cause) for verdict in own for cause in verdict["causes"])
    return GpuFinding(
        host=first["host"],
        verdict=first["verdict"],
        gpus=gpus,
        count=len(own),
        reasons=tuple(first["reasons"]),
        causes=tuple(causes)[:3],
        next_step=first["next_step"] or "",
    )


def _cause(cause: Mapping[str, Any]) -> str:
    return (
        f"{cause['factor']} {cause['value']}: {cause['slow']} of {cause['of_slow']} slow, "
        f"{cause['others']} of {cause['of_others']} others (lift {cause['lift']:.1f})"
    )
