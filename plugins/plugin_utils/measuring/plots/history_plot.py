# SPDX-License-Identifier: Apache-2.0
"""Draw a cell's history: one mark for each run with its interval, and a line where the image's digest changed."""

from __future__ import annotations

from ..measurement.history import CellHistory
from .plots import WIDTH, axes, figure, value_axis
from .svg import COLOUR, embed_figure

LABELS = 8
"""Maximum number of dates on the axis."""


def history_plot(name: str, history: CellHistory) -> str:
    """Return the plot as an <svg> element; its axis of values begins at zero."""
    left, top, height, bottom = 76, 26, 200, 30
    total = top + height + bottom
    fig = figure(total)
    ax = axes(fig, left, top, WIDTH - left - 20, height, total)
    points = history.points
    ends = [end for point in points for end in (point.value, point.high) if end is not None]
    ax.set_ylim(0, max(ends) * 1.1)
    ax.set_xlim(-0.5, len(points) - 0.5)
    value_axis(ax, vertical=True)
    ax.plot(
        range(len(points)), [point.value for point in points], color=COLOUR["pale"], linewidth=2, zorder=1
    )
    for at, point in enumerate(points):
        if point.low is not None and point.high is not None:
            ax.plot([at, at], [point.low, point.high], color=COLOUR["series"], linewidth=2, alpha=0.6)
        ax.plot([at], [point.value], "o", color=COLOUR["series"], markersize=7, markeredgewidth=0)
        if "digest" in point.changed:
            ax.axvline(at - 0.5, color=COLOUR["warn"], linewidth=1, linestyle=(0, (3, 3)))
            ax.annotate(
                point.vllm or "digest", (at - 0.5, 1), xycoords=("data", "axes fraction"), xytext=(3, 4),
                textcoords="offset points", fontsize=11, color=COLOUR["warn"],
            )  # fmt: skip
    step = -(-len(points) // LABELS)
    shown = range(0, len(points), step)
    dates = [points[at].started[:10] or points[at].run for at in shown]
    ax.set_xticks(list(shown), dates, fontsize=11, color=COLOUR["muted"])
    title = f"{history.cell}: {history.metric.label} over {len(points)} runs"
    return embed_figure(fig, name, title)
