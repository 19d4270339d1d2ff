# SPDX-License-Identifier: Apache-2.0
"""Draw the report's plots: matplotlib figures as SVG with the page's colours and font.

Control node only; matplotlib is imported when a plot is drawn. One unit of a figure is one CSS pixel at full width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .svg import COLOUR, embed_figure

WIDTH = 1000

HEAT_LIMITS = (0.80, 0.90, 0.95, 1.05)
"""Relative speeds between the classes of the heat map, heat-0 (below the first) to heat-4 (from the last on)."""

_CHAR = 7.2  # pixels per character of a 12 px label, wide ones included


@dataclass(frozen=True)
class Bar:
    """One horizontal bar: its label, its length, the text at its end, and the interval of its length if it is known."""

    label: str
    value: float | None
    text: str
    slow: bool = False
    interval: Sequence[float] | None = None


@dataclass(frozen=True)
class Ranges:
    """Percentiles of one instance: {"ttft": (p50, p90, p99)} in milliseconds, None where unknown."""

    label: str
    values: Mapping[str, tuple[float | None, ...]]
    slow: bool = False


@dataclass(frozen=True)
class Dot:
    """A node among many; `value` 1.0 is the median."""

    label: str
    value: float
    slow: bool = False


@dataclass(frozen=True)
class Cell:
    """An instance of a node in the heat map."""

    column: str
    row: str
    value: float | None
    tip: str


def bars(name: str, title: str, items: Sequence[Bar], median: float | None, median_text: str) -> str:
    """Draw horizontal bars from zero, each with its value; a line at the median, if there is one."""
    left, height = _label_width([item.label for item in items]), 27
    right = max(len(item.text) for item in items) * _CHAR + 14
    top = 22 if median is not None else 4
    total = top + height * len(items) + 4
    fig = figure(total)
    ax = axes(fig, left, top, WIDTH - left - right, height * len(items), total)
    ends = [end for item in items for end in (item.value, *(item.interval or ()))]
    longest = max((end for end in ends if end is not None), default=0.0) or 1.0
    ax.set_xlim(0, longest)
    ax.set_ylim(len(items) - 0.5, -0.5)
    for position, item in enumerate(items):
        colour = COLOUR["warn" if item.slow else "series"]
        ax.barh(position, item.value or 0.0, height=0.62, color=colour, linewidth=0)
        if item.interval:
            ax.plot(
                item.interval, [position] * 2, color=COLOUR["ink"], linewidth=1.5, marker="|", markersize=9
            )
        text_colour = COLOUR["warn" if item.slow else "ink"]
        _beside(ax, longest, position, item.text, text_colour)
    ax.axvline(0, color=COLOUR["grid"], linewidth=1)
    if median is not None:
        ax.axvline(median, color=COLOUR["ink"], linewidth=1, linestyle=(0, (3, 3)))
        at_right = median > longest * 0.85
        ax.annotate(
            median_text, (median, -0.5), xytext=(0 if not at_right else 4, 5), textcoords="offset points",
            ha="right" if at_right else "center", fontsize=11, color=COLOUR["muted"],
        )  # fmt: skip
    _row_labels(ax, [item.label for item in items])
    ax.set_xticks([])
    return embed_figure(fig, name, title)


def percentile_rows(name: str, title: str, items: Sequence[Ranges], panels: Sequence[tuple[str, str]]) -> str:
    """Draw one row per instance and one panel per latency: a dot at p50, a diamond at p90, a ring at p99."""
    left, gap = _label_width([item.label for item in items]), 28
    height = 28 if len(items) <= 12 else 20
    top, bottom = 48, 26
    total = top + height * len(items) + bottom
    width = (WIDTH - left - 14 - gap * (len(panels) - 1)) / len(panels)
    fig = figure(total)
    _percentile_key(fig, total, left)
    for number, (metric, label) in enumerate(panels):
        ax = axes(fig, left + number * (width + gap), top, width, height * len(items), total)
        ax.set_ylim(len(items) - 0.5, -0.5)
        found = [value for item in items for value in item.values[metric] if value is not None]
        ax.set_xlim(0, max(found, default=1.0) * 1.06)
        value_axis(ax)
        for position, item in enumerate(items):
            ax.axhline(position, color=COLOUR["grid"], linewidth=1, zorder=0)
            _percentiles(ax, position, item.values[metric], COLOUR["warn" if item.slow else "series"])
        _panel_title(ax, label)
        _row_labels(ax, [item.label for item in items] if number == 0 else [""] * len(items))
    return embed_figure(fig, name, title)


def node_dots(name: str, title: str, items: Sequence[Dot], slow_limit: float) -> str:
    """Draw many nodes, slowest first, in percent of the median; slow ones are named."""
    left, top, height, bottom = 56, 10, 190, 30
    total = top + height + bottom
    fig = figure(total)
    ax = axes(fig, left, top, WIDTH - left - 14, height, total)
    ordered = sorted(items, key=lambda item: item.value)
    low = min(ordered[0].value, slow_limit) - 0.04
    high = max(ordered[-1].value, 1.02) + 0.01
    ax.set_ylim(low * 100, high * 100)
    ax.set_xlim(-1, len(ordered))
    value_axis(ax, vertical=True)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0f}%")
    ax.axhline(100, color=COLOUR["ink"], linewidth=1)
    ax.axhline(slow_limit * 100, color=COLOUR["warn"], linewidth=1, linestyle=(0, (3, 3)))
    ax.annotate(
        f"above {slow_limit * 100:.0f}% of the median nothing is slow", (len(ordered), slow_limit * 100),
        xytext=(-2, 4), textcoords="offset points", ha="right", fontsize=11, color=COLOUR["warn"],
    )  # fmt: skip
    last_label = -1e9
    for position, item in enumerate(ordered):
        colour = COLOUR["warn" if item.slow else "series"]
        ax.plot([position], [item.value * 100], "o", markersize=7, color=colour, markeredgewidth=0)
        if item.slow and position < 12:
            # Neighbours of the same speed: place their names above each other.
            height_of = max(item.value * 100, last_label + (high - low) * 100 * 15 / height)
            last_label = height_of
            ax.annotate(
                f"{item.label}  {item.value * 100:.0f}%", (position, height_of), xytext=(8, -4),
                textcoords="offset points", fontsize=12, color=COLOUR["warn"],
            )  # fmt: skip
    ax.set_xticks([])
    ax.set_xlabel(f"{len(ordered)} nodes, the slowest first", fontsize=12, color=COLOUR["muted"], labelpad=8)
    return embed_figure(fig, name, title)


def heat_map(
    name: str, title: str, cells: Sequence[Cell], columns: Sequence[str], rows: Sequence[str]
) -> str:
    """Draw every instance of every node, coloured by its speed; missing results are crossed out."""
    left, right = _label_width(rows), 8
    width = min(88.0, (WIDTH - left - right) / len(columns))
    height, top = 22, 6
    step = max(1, -(-13 // max(1, int(width))))
    upright = max(len(column) for column in columns) * _CHAR < width - 4
    bottom = 24 if upright else int(max(len(column) for column in columns) * _CHAR) + 8
    total = top + height * len(rows) + bottom
    fig = figure(total)
    ax = axes(fig, left, top, width * len(columns), height * len(rows), total)
    ax.set_xlim(0, len(columns))
    ax.set_ylim(len(rows), 0)
    at_column = {column: position for position, column in enumerate(columns)}
    at_row = {row: position for position, row in enumerate(rows)}
    measured = {(cell.column, cell.row) for cell in cells}
    absent = [
        Cell(column, row, None, f"{column}, {row}: no result")
        for column in columns
        for row in rows
        if (column, row) not in measured
    ]
    tips = {}
    for number, cell in enumerate([*cells, *absent]):
        x, y = at_column[cell.column], at_row[cell.row]
        tips[f"tip:{number}"] = cell.tip
        _heat_cell(ax, x, y, cell, f"tip:{number}")
        if width >= 44 and cell.value is not None:
            colour = COLOUR["page" if cell.value < HEAT_LIMITS[1] else "ink"]
            text = f"{cell.value * 100:.0f}%"
            ax.text(x + 0.5, y + 0.5, text, ha="center", va="center_baseline", fontsize=11, color=colour)
    _row_labels(ax, rows, [position + 0.5 for position in range(len(rows))])
    ax.set_xticks(
        [position + 0.5 for position in range(0, len(columns), step)],
        list(columns[::step]),
        rotation=0 if upright else 90,
        fontsize=11,
        color=COLOUR["muted"],
    )
    return embed_figure(fig, name, title, tips)


def strips(name: str, title: str, items: Sequence[Ranges], panels: Sequence[tuple[str, str]]) -> str:
    """Draw many instances: for each latency three lanes (p50, p90, p99) with a dot per instance."""
    left, gap, lane, top, bottom = 44, 60, 40, 30, 30
    per_row = 2
    lines = -(-len(panels) // per_row)
    one = top + lane * 3 + bottom
    total = one * lines
    width = (WIDTH - left - 26 - gap * (per_row - 1)) / per_row
    fig = figure(total)
    for number, (metric, label) in enumerate(panels):
        line, column = divmod(number, per_row)
        ax = axes(fig, left + column * (width + gap), line * one + top, width, lane * 3, total)
        ax.set_ylim(2.5, -0.5)
        found = [value for item in items for value in item.values[metric] if value is not None]
        distribution_axis(ax, found)
        for row in range(3):
            ax.axhline(row, color=COLOUR["grid"], linewidth=1, zorder=0)
            _lane(ax, row, [(item.values[metric][row], item.slow) for item in items])
        _panel_title(ax, label + (" (log scale)" if ax.get_xscale() == "log" else ""))
        _row_labels(ax, ["p50", "p90", "p99"])
    return embed_figure(fig, name, title)


def heat_class(value: float) -> int:
    """Return the class of a speed in the heat map."""
    return sum(value >= limit for limit in HEAT_LIMITS)


def figure(height: float, width: float = WIDTH) -> Any:
    """Return an empty figure, by default of the page's width; in pixels."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams.update({
        "svg.fonttype": "none",  # text stays text: searchable, and readable by screen readers
        "svg.hashsalt": "instinct-fleet",
        "text.parse_math": False,  # a $ in a host's or model's name is literal
        "font.family": "DejaVu Sans",
    })  # fmt: skip
    return Figure(figsize=(width / 72, height / 72), dpi=72)


def axes(fig: Any, left: float, top: float, width: float, height: float, total: float) -> Any:
    """Add axes at pixels from the figure's upper left corner, without frame."""
    page = fig.get_figwidth() * 72
    ax = fig.add_axes((left / page, 1 - (top + height) / total, width / page, height / total))
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.patch.set_visible(False)
    fig.patch.set_visible(False)
    ax.tick_params(length=0, labelsize=11, labelcolor=COLOUR["muted"], pad=5)
    return ax


def value_axis(ax: Any, vertical: bool = False, wide: bool = False) -> None:
    """Draw few round values on an axis, with grid lines."""
    from matplotlib.ticker import MaxNLocator

    axis = ax.yaxis if vertical else ax.xaxis
    axis.set_major_locator(MaxNLocator(5 if wide else 4, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axis.grid(color=COLOUR["grid"], linewidth=1)
    ax.set_axisbelow(True)


def distribution_axis(ax: Any, found: Sequence[float]) -> None:
    """Draw an axis around values, on a log scale if they differ by much."""
    from matplotlib.ticker import NullFormatter, NullLocator

    low, high = min(found, default=0.0), max(found, default=1.0)
    if low > 0 and high / low > 30:
        ax.set_xscale("log")
        ax.set_xlim(low / 1.15, high * 1.15)
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        ax.xaxis.grid(color=COLOUR["grid"], linewidth=1)
        ax.set_axisbelow(True)
        return
    margin = (high - low) * 0.04 or high * 0.05 or 1.0
    ax.set_xlim(low - margin, high + margin)
    value_axis(ax, wide=True)


def _lane(ax: Any, row: int, values: Sequence[tuple[float | None, bool]]) -> None:
    """Draw a dot for each instance, spread over the lane's height; slow ones on top; a tick at the median."""
    import statistics

    for slow in (False, True):
        points = [
            (value, row + ((number * 0.618034) % 1 - 0.5) * 0.62)
            for number, (value, is_slow) in enumerate(values)
            if value is not None and is_slow is slow
        ]
        if points:
            style = {"color": COLOUR["warn" if slow else "series"], "markersize": 5 if slow else 4}
            ax.plot(*zip(*points), "o", markeredgewidth=0, alpha=1.0 if slow else 0.55, **style)
    known = [value for value, _unused in values if value is not None]
    if known:
        median = statistics.median(known)
        ax.plot([median, median], [row - 0.42, row + 0.42], color=COLOUR["ink"], linewidth=2)


def _percentiles(ax: Any, position: int, values: Sequence[float | None], colour: str) -> None:
    known = [value for value in values if value is not None]
    if len(known) > 1:
        ax.plot([min(known), max(known)], [position, position], color=colour, linewidth=2, alpha=0.45)
    for value, (marker, size, filled) in zip(values, (("o", 9, True), ("D", 6.5, True), ("o", 8, False))):
        if value is not None:
            face = colour if filled else COLOUR["page"]
            ax.plot(
                [value], [position], marker, markersize=size, color=colour, markerfacecolor=face,
                markeredgewidth=2 if not filled else 0,
            )  # fmt: skip


def _percentile_key(fig: Any, total: float, left: float) -> None:
    """Draw the legend of the three marks above the panels."""
    ax = axes(fig, left, 2, 300, 20, total)
    ax.set_xlim(0, 300)
    ax.set_ylim(1, -1)
    ax.set_axis_off()
    for number, label in enumerate(("p50", "p90", "p99")):
        values: list[float | None] = [None, None, None]
        values[number] = 6.0 + number * 62
        _percentiles(ax, 0, values, COLOUR["muted"])
        ax.text(16 + number * 62, 0, label, va="center_baseline", fontsize=12, color=COLOUR["muted"])


def _heat_cell(ax: Any, x: float, y: float, cell: Cell, gid: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    face = COLOUR["page"] if cell.value is None else COLOUR[f"heat-{heat_class(cell.value)}"]
    patch = Rectangle((x, y), 1, 1, facecolor=face, edgecolor=COLOUR["page"], linewidth=1.5, gid=gid)
    ax.add_patch(patch)
    if cell.value is None:
        for ends in ((0.7, 0.3), (0.3, 0.7)):
            ax.add_line(Line2D([x + 0.3, x + 0.7], [y + e for e in ends], color=COLOUR["muted"], linewidth=1))


def _beside(ax: Any, x: float, y: float, text: str, colour: str) -> None:
    ax.annotate(
        text, (x, y), xytext=(7, 0), textcoords="offset points", va="center_baseline", fontsize=12,
        color=colour, annotation_clip=False,
    )  # fmt: skip


def _panel_title(ax: Any, label: str) -> None:
    ax.set_title(label, loc="left", fontsize=12, color=COLOUR["ink"], pad=9, fontweight="bold")


def _row_labels(ax: Any, labels: Sequence[str], at: Sequence[float] | None = None) -> None:
    places = range(len(labels)) if at is None else at
    ax.set_yticks(list(places), [_shortened(label) for label in labels], fontsize=12, color=COLOUR["ink"])


def _shortened(label: str, limit: int = 34) -> str:
    """Shorten a long name in the middle, as names differ mostly at their ends."""
    if len(label) <= limit:
        return label
    return f"{label[: limit // 2]}…{label[-(limit // 2 - 1) :]}"


def _label_width(labels: Sequence[str]) -> float:
    return max(len(_shortened(label)) for label in labels) * _CHAR + 14
