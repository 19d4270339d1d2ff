# SPDX-License-Identifier: Apache-2.0
"""Draw the GPUs of a fleet by their PCI address: a lane for each address, a dot for each GPU. Control node only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..summary.gpu_spread import READINGS, GpuReading, lanes
from .plots import WIDTH, axes, distribution_axis, figure
from .svg import COLOUR, embed_figure

NAMED = 4
"""GPUs that need attention and are named in a panel; the table has all of them."""
_WITH_INTERVALS = 4  # maximum number of dots in a lane with space for intervals


def spread_plot(name: str, title: str, readings: Sequence[GpuReading], width: float = WIDTH) -> str:
    """Draw a panel for each known reading; GPUs that need attention are orange, and named in the first panel."""
    addresses = lanes(readings)
    panels = [(key, label) for key, label in READINGS if any(key in reading.values for reading in readings)]
    phone = width < WIDTH
    across = 1 if phone else min(2, len(panels))
    left, gap, lane, top, bottom = 104, 116, 22, 34, 34
    one = top + lane * len(addresses) + bottom
    lines = -(-len(panels) // across)
    fig = figure(one * lines, width)
    panel = (width - left - 22 - gap * (across - 1)) / across
    for number, (key, label) in enumerate(panels):
        line, column = divmod(number, across)
        ax = axes(
            fig, left + column * (panel + gap), line * one + top, panel, lane * len(addresses), one * lines
        )
        ax.set_ylim(len(addresses) - 0.5, -0.5)
        _panel(ax, readings, addresses, key)
        ax.set_title(label, loc="left", fontsize=12, color=COLOUR["ink"], pad=9, fontweight="bold")
        ax.set_yticks(range(len(addresses)), addresses, fontsize=12, color=COLOUR["ink"])
    return embed_figure(fig, name, title)


def _panel(ax: Any, readings: Sequence[GpuReading], addresses: Sequence[str], key: str) -> None:
    found = [reading for reading in readings if key in reading.values and reading.bdf in addresses]
    ends = [end for r in found for end in (r.values[key], *((r.interval or ()) if key == "per_gpu" else ()))]
    distribution_axis(ax, ends)
    for at, address in enumerate(addresses):
        ax.axhline(at, color=COLOUR["grid"], linewidth=1, zorder=0)
        own = [reading for reading in found if reading.bdf == address]
        _lane(ax, at, sorted(own, key=lambda item: item.flagged), key)
    if key == "per_gpu":
        _names(ax, [reading for reading in found if reading.flagged], addresses)


def _lane(ax: Any, at: int, own: Sequence[GpuReading], key: str) -> None:
    few = len(own) <= _WITH_INTERVALS
    places = [at + _offset(number, len(own)) for number in range(len(own))]
    for flagged in (False, True):
        colour = COLOUR["warn" if flagged else "series"]
        shown = [(reading, place) for reading, place in zip(own, places) if reading.flagged is flagged]
        for reading, place in shown:
            if few and key == "per_gpu" and reading.interval:
                ax.plot(reading.interval, [place] * 2, color=colour, linewidth=1.5, alpha=0.5)
        # All dots in one go: a fleet has thousands.
        ax.plot(
            [reading.values[key] for reading, _place in shown], [place for _reading, place in shown], "o", color=colour,
            markersize=6 if few else 4.5, markeredgewidth=0, alpha=1.0 if few or flagged else 0.55,
        )  # fmt: skip


def _names(ax: Any, flagged: Sequence[GpuReading], addresses: Sequence[str]) -> None:
    """Name the slowest GPU that needs attention in each lane, in as many lanes as there is space for."""
    low, high = ax.get_xlim()
    taken: set[str] = set()
    for reading in sorted(flagged, key=lambda item: item.values["per_gpu"]):
        if reading.bdf in taken or len(taken) == NAMED:
            continue
        taken.add(reading.bdf)
        value = reading.values["per_gpu"]
        right = value < (low + high) / 2
        ax.annotate(
            reading.host, (value, addresses.index(reading.bdf)), xytext=(9 if right else -9, 0),
            textcoords="offset points", ha="left" if right else "right", va="center_baseline", fontsize=11,
            color=COLOUR["warn"],
        )  # fmt: skip


def _offset(number: int, count: int) -> float:
    """Return the position of a dot in its lane: side by side if there are few, else spread evenly."""
    if count <= _WITH_INTERVALS:
        return (number - (count - 1) / 2) * 0.2
    return ((number * 0.618034) % 1 - 0.5) * 0.62
