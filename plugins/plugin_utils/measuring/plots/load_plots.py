# SPDX-License-Identifier: Apache-2.0
"""Draw throughput per GPU against interactivity, and the change of each load since the previous run.

Control node only. Each plot is drawn for the page's width, and again for a phone's, where it would be too small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..summary.loads import Curve, Interval
from .plots import WIDTH, axes, figure, value_axis
from .svg import COLOUR, embed_figure

PHONE = 360
"""Width of a plot on a phone, in pixels."""
_LINE = 18  # height of a line of text
_MARKS = ("o", "s", "^", "D", "v")
X_TITLE, Y_TITLE = "Interactivity, output tok/s per user (1000 / median TPOT in ms)", "Output tok/s per GPU"


def interactivity_plot(
    name: str, title: str, curves: Sequence[Curve], slos: Mapping[str, float], width: float = WIDTH
) -> str:
    """Draw a line for each curve with the loads next to its points, and the intervals of both axes.

    slos: limits as tok/s per user, by what is written at their lines.
    """
    from matplotlib.ticker import MaxNLocator

    phone = width < WIDTH
    left, right, height, bottom = (52 if phone else 70), (14 if phone else 24), (270 if phone else 340), 52
    top = 26 + _LINE * (len(curves) + len(slos))
    total = top + height + bottom
    fig = figure(total, width)
    ax = axes(fig, left, top, width - left - right, height, total)
    estimates = [
        (point.per_user, point.per_gpu) for curve in curves for _label, point in curve.points
        if point.per_user and point.per_gpu
    ]  # fmt: skip
    ax.set_xlim(0, max(_end(x) for x, _unused in estimates) * 1.1)
    ax.set_ylim(0, max(_end(y) for _unused, y in estimates) * 1.12)
    value_axis(ax, vertical=True, wide=True)
    value_axis(ax, wide=True)
    if not phone:
        ax.xaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 2.5, 5, 10]))
    ax.axhline(0, color=COLOUR["muted"], linewidth=1)
    _slo_lines(ax, slos, height)
    for number, curve in enumerate(curves):
        _curve(ax, curve, number)
    ax.set_xlabel(
        "Interactivity, output tok/s per user" if phone else X_TITLE,
        fontsize=12, color=COLOUR["ink"], labelpad=8,
    )  # fmt: skip
    _legend(fig, curves, total, width)
    beside = 4 - left  # the title begins where the figure does, above the axis
    ax.text(
        beside / (width - left - right), 1 + (7 + _LINE * len(slos)) / height, Y_TITLE,
        transform=ax.transAxes, fontsize=12, color=COLOUR["ink"], va="bottom",
    )  # fmt: skip
    return embed_figure(fig, name, title)


def change_plot(
    name: str, title: str, items: Sequence[tuple[str, Interval, bool]], tolerance: float, width: float = WIDTH
) -> str:
    """Draw the change of each load's speed (a share) with its interval, and the range that does not matter.

    items: label, change, and whether it is worse.
    """
    phone = width < WIDTH
    left = max(len(label) for label, _change, _worse in items) * 7.2 + 14
    top, row, bottom = 8, 24, 44
    if phone:  # labels stand above their marks
        left, row = 22, 40
    total = top + row * len(items) + bottom
    fig = figure(total, width)
    ax = axes(fig, left, top, width - left - 16, row * len(items), total)
    ends = [abs(end) for _label, change, _worse in items for end in _ends(change)]
    reach = min(max([*ends, tolerance * 1.5]) * 1.08, 1.0) * 100
    ax.set_xlim(-reach, reach)
    ax.set_ylim(len(items) - 0.5, -0.5)
    value_axis(ax, wide=not phone)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:+g}%".replace("-", "\u2212") if value else "0%")
    ax.axvspan(-tolerance * 100, tolerance * 100, color=COLOUR["pale"], linewidth=0)
    ax.axvline(0, color=COLOUR["ink"], linewidth=1)
    for at, (label, change, worse) in enumerate(items):
        colour = COLOUR["warn" if worse else "series"]
        place = at + (0.22 if phone else 0)
        ax.plot([end * 100 for end in _ends(change)], [place] * 2, color=colour, linewidth=2, alpha=0.6)
        ax.plot([change.value * 100], [place], "o", color=colour, markersize=7, markeredgewidth=0)
        if phone:
            ax.text(-reach, at - 0.18, label, fontsize=11, color=COLOUR["ink"], va="center")
    labels = [] if phone else [label for label, _change, _worse in items]
    ax.set_yticks(range(len(labels)), labels, fontsize=12, color=COLOUR["ink"])
    ax.set_xlabel("slower \u2190 change of speed \u2192 faster", fontsize=12, color=COLOUR["ink"], labelpad=6)
    return embed_figure(fig, name, title)


def _curve(ax: Any, curve: Curve, number: int) -> None:
    colour, mark = COLOUR[f"line-{number % 5}"], _MARKS[number % 5]
    known = [(label, p.per_user, p.per_gpu) for label, p in curve.points if p.per_user and p.per_gpu]
    ax.plot([x.value for _l, x, _y in known], [y.value for _l, _x, y in known], color=colour, linewidth=2)
    for label, x, y in known:
        if x.low is not None:
            ax.plot([x.low, x.high], [y.value] * 2, color=colour, linewidth=1.5, alpha=0.6)
        if y.low is not None:
            ax.plot([x.value] * 2, [y.low, y.high], color=colour, linewidth=1.5, alpha=0.6)
        ax.plot([x.value], [y.value], mark, color=colour, markersize=7, markeredgewidth=0)
        # Lines fall to the right: there is room above them, and for every second one below.
        above = number % 2 == 0
        ax.annotate(
            label, (x.value, y.value), xytext=(6, 5) if above else (-6, -5), textcoords="offset points",
            ha="left" if above else "right", va="bottom" if above else "top", fontsize=11, color=colour,
        )  # fmt: skip


def _slo_lines(ax: Any, slos: Mapping[str, float], height: float) -> None:
    """Draw a line for each limit; each is named on a line of its own above the plot, so that names never overlap."""
    limit = ax.get_xlim()[1]
    for number, (text, value) in enumerate(sorted(slos.items(), key=lambda item: -item[1])):
        if value >= limit:
            continue
        end = 1 + (_LINE * number + 10) / height
        ax.plot(
            [value, value], [0, end], transform=ax.get_xaxis_transform(), color=COLOUR["muted"], linewidth=1.2,
            linestyle=(0, (4, 3)), clip_on=False, scalex=False, scaley=False,
        )  # fmt: skip
        right = value < limit / 2
        ax.annotate(
            text, (value, end), xycoords=ax.get_xaxis_transform(), xytext=(5 if right else -5, -4),
            textcoords="offset points", ha="left" if right else "right", va="bottom", fontsize=11,
            color=COLOUR["muted"], annotation_clip=False,
        )  # fmt: skip


def _legend(fig: Any, curves: Sequence[Curve], total: float, width: float) -> None:
    """Name the curves above the plot, and say what the numbers at their points are."""
    ax = axes(fig, 0, 0, width, _LINE * len(curves), total)
    ax.set_xlim(0, width)
    ax.set_ylim(_LINE * len(curves), 0)
    ax.set_axis_off()
    for number, curve in enumerate(curves):
        colour, y = COLOUR[f"line-{number % 5}"], _LINE * number + 9
        ax.plot([4, 28], [y, y], color=colour, linewidth=2)
        ax.plot([16], [y], _MARKS[number % 5], color=colour, markersize=7, markeredgewidth=0)
        ax.text(36, y, curve.name, fontsize=12, color=COLOUR["ink"], va="center_baseline")


def _end(estimate: Interval) -> float:
    return estimate.value if estimate.high is None else max(estimate.value, estimate.high)


def _ends(change: Interval) -> tuple[float, float]:
    if change.low is None or change.high is None:
        return change.value, change.value
    return change.low, change.high
