# SPDX-License-Identifier: Apache-2.0
"""Format the verdicts of a burn-in for the terminal: a count, then what needs attention with its next step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...base.text import plural
from .verdict import BurninVerdict, Result


def burnin_text(
    run: str, verdicts: Sequence[BurninVerdict], results: Mapping[str, Result], failed: Mapping[str, str]
) -> str:
    """Return several lines. failed: why each host was not tested completely."""
    counts = Counter(verdict.verdict or "not judged" for verdict in verdicts)
    summary = ", ".join(
        f"{counts[word]} {word}" for word in ("ok", "slow", "bad", "not judged") if counts[word]
    )
    lines = [
        f"Burn-in {run}: {plural(len(verdicts), 'GPU')} on {plural(len(results), 'node')}: {summary or 'none'}"
    ]
    for verdict in sorted(verdicts, key=lambda item: item.verdict != "bad"):
        if verdict.verdict in ("bad", "slow"):
            place = f"{verdict.host} GPU {verdict.gpu}" + (f" ({verdict.bdf})" if verdict.bdf else "")
            lines.append(f"{verdict.verdict.upper():<8}{place}: {'; '.join(verdict.reasons)}")
            lines.append(f"        {verdict.next_step}")
    lines += [f"FAILED  {host}: {why}" for host, why in failed.items()]
    lines += _tools(results)
    return "\n".join(lines)


def _tools(results: Mapping[str, Any]) -> list[str]:
    """Name AMD's own test programs where they are installed: they test more than this."""
    found: dict[str, list[str]] = {}
    for host, result in results.items():
        for path in result["tools"].values():
            if path:
                found.setdefault(path, []).append(host)
    return [f"note: {path} is on {', '.join(hosts)}, for a longer test" for path, hosts in found.items()]
