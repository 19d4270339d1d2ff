# SPDX-License-Identifier: Apache-2.0
"""Format a comparison for the terminal, within 100 columns, and as JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ....module_utils.common.errors import Problem
from ...base.text import plural, wrap
from ..measurement.cells import UnmatchedCell
from ..measurement.compare import (
    BETTER,
    NOT_CLEAR,
    SAME,
    WORSE,
    CellVerdict,
    ComparisonRules,
    RunComparison,
    cell_json,
)
from ..measurement.configuration import Difference
from ..measurement.published import Counterpart, counterpart_json
from ..statistics.designs import BEFORE_AFTER
from ..summary.tables import MINUS, UNKNOWN, rate
from .text import align_columns

SCHEMA = 1
WIDTH = 100
MEASURED = 4
"""Maximum number of cells of a side that are named if nothing was compared."""
CELL = 30
"""Maximum length of a cell's name."""
NEAREST = 5
"""Maximum number of published rows of the same work that are shown for a cell; compare.json has all."""
_DIGEST = re.compile(r"(sha256:[0-9a-f]{12})[0-9a-f]{52}")
_HEADS = ("cell", "metric", "b", "a", "change", "interval", "verdict")


def comparison_text(
    names: tuple[str, str], found: RunComparison, differs: Sequence[Difference], rules: ComparisonRules
) -> str:
    """Return the verdicts of a comparison, a (names[0]) against b, and how they differ."""
    lines = [*_paragraph(_headline(names, found)), *_paragraph(method(found, rules))]
    for deployment in dict.fromkeys(cell.key.deployment for cell in found.cells):
        cells = [cell for cell in found.cells if cell.key.deployment == deployment]
        lines += ["", deployment, *align_columns(_HEADS, [_cells(cell) for cell in cells], left=2)]
    lines += _section("Not clear", (_needed(cell) for cell in found.cells if cell.verdict == NOT_CLEAR))
    lines += _section("Notes", (f"{_name(cell)}: {note}" for cell in found.cells for note in cell.notes))
    lines += _section("Not compared", map(_unmatched, found.unmatched))
    lines += _section("a and b differ in", (_difference(item) for item in differs))
    if not differs and found.cells:
        lines += [
            "",
            "a and b do not differ in image, options, environment, versions and hosts, as far as known",
        ]
    return "\n".join(lines)


def comparison_json(
    names: tuple[str, str], found: RunComparison, differs: Sequence[Difference], rules: ComparisonRules
) -> dict[str, Any]:
    """Return compare.json of two runs."""
    return {
        "schema": SCHEMA,
        "a": names[0],
        "b": names[1],
        "tolerance": rules.tolerance,
        "drift": rules.drift,
        "worse": len(found.worse),
        "mean_change_of_speed": found.mean,
        "cells": [cell_json(cell) for cell in found.cells],
        "unmatched": [
            {
                "deployment": item.key.deployment,
                "cell": item.key.cell,
                "side": item.side,
                "differs": item.differs or None,
            }
            for item in found.unmatched
        ],
        "differences": [item.to_json() for item in differs],
        "published": [],
    }


def published_text(name: str, found: Sequence[Counterpart]) -> str:
    """Return the published results that are nearest to a run's cells."""
    if not found:
        return (
            f"{name}: there are no published results of the models and kinds of benchmarks that it measured"
        )
    same = sum(pair.same for pair in found)
    lines = _paragraph(
        f"{name} and published results: {plural(same, 'row')} of the same work, as far as the sources say. No "
        "result is of this fleet: ratios (measured/published) are for orientation."
    )
    for deployment, cell in dict.fromkeys((pair.deployment, pair.cell) for pair in found):
        own = [pair for pair in found if (pair.deployment, pair.cell) == (deployment, cell)]
        lines += ["", f"{deployment} {cell}"]
        for pair in own[:NEAREST]:
            lines += _beside(pair)
        if len(own) > NEAREST:
            lines.append(f"  and {plural(len(own) - NEAREST, 'row')} more of the same work, in the JSON")
    return "\n".join(lines)


def published_json(name: str, found: Sequence[Counterpart]) -> dict[str, Any]:
    """Return compare.json of a run and published results."""
    return {
        "schema": SCHEMA,
        "a": name,
        "b": "published",
        "cells": [],
        "published": [counterpart_json(pair) for pair in found],
    }


def nothing_compared(names: tuple[str, str], found: RunComparison) -> tuple[Problem, ...]:
    """Return the problem of sides without a common cell, which says what each of them measured."""
    if found.cells:
        return ()
    sides = []
    for side, name in zip("ab", names, strict=True):
        own = [item for item in found.unmatched if item.side == side]
        shown = [f"{item.key.deployment} {item.key.cell}" for item in own[:MEASURED]]
        more = [f"{len(own) - MEASURED} more"] if len(own) > MEASURED else []
        sides.append(f"{side} ({name}) measured {', '.join([*shown, *more]) or 'nothing'}")
    differs = next((item.differs for item in found.unmatched if item.differs), "")
    what = f"a and b have no cell in common, so nothing was compared: {'; '.join(sides)}."
    near = f" The nearest differ in {differs}." if differs else ""
    fix = "Name runs that measured the same work of the same deployment: -e a=RUN -e b=RUN."
    return (Problem((), what + near, fix),)


def worse_text(found: RunComparison) -> str:
    """Return the cells that are worse, in one line; "" if none is."""
    if not found.worse:
        return ""
    names = [_name(cell) for cell in found.worse]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return (
        f"{plural(len(names), 'cell')} worse: {shown}. With -e allow_worse=true that does not fail the run."
    )


def _headline(names: tuple[str, str], found: RunComparison) -> str:
    counts = verdict_counts(found)
    text = f"a: {names[0]}, against b: {names[1]}. {plural(len(found.cells), 'cell')} compared"
    text += f": {counts}." if counts else "."
    if found.mean is not None and len(found.cells) > 1:
        text += f" Speed {percent(found.mean)} over all (geometric mean)."
    return text


def verdict_counts(found: RunComparison) -> str:
    """Return how many cells have each verdict: "1 worse, 3 same"."""
    counts = Counter(cell.verdict for cell in found.cells)
    return ", ".join(
        f"{counts[verdict]} {verdict}" for verdict in (WORSE, BETTER, SAME, NOT_CLEAR) if counts[verdict]
    )


def method(found: RunComparison, rules: ComparisonRules) -> str:
    """Return how it was measured, and what the intervals contain."""
    judged = [cell for cell in found.cells if cell.design]
    if not judged:
        return ""
    designs = dict.fromkeys(
        f"{cell.design}, {plural(cell.units, 'instance')}, {cell.runs[0]} and {cell.runs[1]} runs"
        for cell in judged
    )
    text = (
        f"Measured {'; or '.join(list(designs)[:3])}. Differences up to {rules.tolerance:.1%} do not matter."
    )
    if any(cell.design == BEFORE_AFTER for cell in judged):
        text += f" Before and after: intervals include a drift of {rules.drift:.1%} between sessions."
    if len(found.cells) > 1:
        text += f" All intervals hold together with 95 % (Holm over {len(found.cells)} cells)."
    return text


def _cells(cell: CellVerdict) -> list[str]:
    interval = UNKNOWN
    if cell.low is not None and cell.high is not None:
        interval = f"{percent(cell.low)} to {percent(cell.high)}"
    return [
        _shortened(cell.key.cell),
        f"{cell.metric.label}, {cell.metric.unit}",
        rate(cell.b),
        rate(cell.a),
        UNKNOWN if cell.change is None else percent(cell.change),
        interval,
        cell.verdict.upper() if cell.verdict == WORSE else cell.verdict,
    ]


def _needed(cell: CellVerdict) -> str:
    return f"{_name(cell)}: {cell.needs}"


def _name(cell: CellVerdict) -> str:
    return f"{cell.key.deployment} {cell.key.cell}"


def _unmatched(item: UnmatchedCell) -> str:
    text = f"{item.key.deployment} {item.key.cell}: only {item.side} measured it"
    return f"{text}; nearest differs in {item.differs}" if item.differs else text


def _difference(item: Difference) -> str:
    a, b = (short_digests(value) or "none" for value in (item.a, item.b))
    return f"{item.what} {item.name}: a {a}, b {b}"


def short_digests(text: str) -> str:
    """Shorten the image digests in a text."""
    return _DIGEST.sub(r"\1…", text)


def _beside(pair: Counterpart) -> Iterator[str]:
    ratios = ", ".join(
        f"{ratio.value:.2f} of {ratio.metric} {rate(ratio.published)}" for ratio in pair.ratios
    )
    yield from wrap(ratios + ("" if pair.same else " (other work)"), WIDTH, "  ", "    ")
    differs = f"differs in {'; '.join(pair.differs)}" if pair.differs else "no known difference"
    source = f"{pair.published.source} {pair.published.date or ''}".strip()
    for text in (differs, source):
        yield from wrap(text, WIDTH, "    ", "      ", whole=True)


def _section(title: str, items: Iterable[str]) -> list[str]:
    lines = [line for item in items for line in wrap(item, WIDTH, "  ", "    ")]
    return ["", f"{title}:", *lines] if lines else []


def _paragraph(text: str) -> list[str]:
    return wrap(text, WIDTH)


def _shortened(name: str) -> str:
    return name if len(name) <= CELL else f"{name[: CELL // 2]}…{name[-(CELL // 2 - 1) :]}"


def percent(share: float) -> str:
    """Return a change with its sign: +1.2%."""
    rounded = round(share * 100, 1)
    sign = MINUS if rounded < 0 else "+" if rounded > 0 else "±"
    return f"{sign}{abs(rounded):.1f}%"
