# SPDX-License-Identifier: Apache-2.0
"""Render the history of a deployment: one self-contained page, and a line for the terminal.

Control node only: Jinja and matplotlib are imported when a page is rendered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base.node_answers import file_name
from ...base.text import plural
from ..measurement.history import CellHistory, HistoryPoint
from ..summary.tables import MINUS, UNKNOWN, rate
from .report import TEMPLATES

_DIGEST = 19
"""Characters of a digest that are shown: sha256: and twelve digits."""


def render_history(deployment: str, histories: Sequence[CellHistory]) -> str:
    """Return the page of a deployment. It loads nothing from elsewhere, and every text is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from ..plots.history_plot import history_plot

    cells = [
        {**_cell(history), "svg": Markup(history_plot(f"h{number}", history))}  # escaped by matplotlib
        for number, history in enumerate(histories)
    ]
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = {"deployment": deployment, "summary": history_text(deployment, histories), "cells": cells}
    return environment.get_template("history.html.j2").render(page)


def history_text(deployment: str, histories: Sequence[CellHistory]) -> str:
    """Return what a history has, in one line."""
    points = [point for history in histories for point in history.points]
    changes = {point.run for point in points if "digest" in point.changed}
    runs = plural(len({point.run for point in points}), "run")
    return (
        f"{deployment}: {runs}, {plural(len(histories), 'cell')}, "
        f"{plural(len(changes), 'run')} with another image digest than the one before"
    )


def page_name(deployment: str) -> str:
    """Return the file name of a deployment's page."""
    return f"{file_name(deployment)}.html"


def _cell(history: CellHistory) -> dict[str, Any]:
    return {
        "title": history.cell,
        "subtitle": f"{history.kind}, {history.load.text}, {plural(history.gpus, 'GPU')}",
        "metric": f"{history.metric.label} ({history.metric.unit}), "
        + ("more is better" if history.metric.more_is_better else "less is better"),
        "rows": [
            _row(point, before)
            for point, before in zip(history.points, (None, *history.points[:-1]), strict=True)
        ][::-1],
    }


def _row(point: HistoryPoint, before: HistoryPoint | None) -> dict[str, Any]:
    interval = UNKNOWN
    if point.low is not None and point.high is not None:
        interval = f"{rate(point.low)} to {rate(point.high)}"
    return {
        "run": point.run,
        "started": point.started.replace("T", " ").replace("Z", " UTC") or "unknown",
        "value": rate(point.value),
        "interval": interval,
        "runs": str(point.runs),
        "instances": str(point.instances),
        "change": UNKNOWN if before is None else _percent(point.value / before.value - 1),
        "vllm": point.vllm or UNKNOWN,
        "image": point.image or UNKNOWN,
        "digest": ", ".join(digest[:_DIGEST] for digest in point.digest.split(", ")) or UNKNOWN,
        "changed": "digest" in point.changed,
    }


def _percent(share: float) -> str:
    rounded = round(share * 100, 1)
    return f"{MINUS if rounded < 0 else '+' if rounded > 0 else '±'}{abs(rounded):.1f}%"
