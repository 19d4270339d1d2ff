# SPDX-License-Identifier: Apache-2.0
"""A deployment's cells over its runs, as data and as a page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.history import (
    CellHistory,
    cell_histories,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.history_page import (
    history_text,
    page_name,
    render_history,
)

from tests.worlds.compared_runs import row


def measured(run: str, day: int, speeds: list[float], **more: Any) -> list[tuple[str, dict[str, Any]]]:
    return [
        (run, row(minute=1440 * day + at, speed=speed, block=at + 1, **more))
        for at, speed in enumerate(speeds)
    ]


def history() -> list[tuple[str, dict[str, Any]]]:
    """Three runs of one cell; the second has another image, the third a failed repeat and a second cell."""
    other = {"image": "new", "digest": "sha256:" + "b" * 64, "versions": {"vllm": "0.15.0"}}
    rate = {"load": {"kind": "rate", "value": 4}, "cell": "r4"}
    return [
        *measured("r0", 0, [1000.0]),
        *measured("r1", 1, [1100.0, 1101.0, 1099.0], **other),
        *measured("r2", 2, [1050.0, 1052.0], **other),
        *measured("r2", 2, [0.001], completed=0, **other),
        *measured("r2", 2, [1000.0], **{**other, **rate}),
    ]


def test_each_cell_has_its_points() -> None:
    first, second = cell_histories(history())
    assert [(point.run, point.value, point.runs) for point in first.points] == [
        ("r0", 1000.0, 1), ("r1", 1100.0, 3), ("r2", 1051.0, 2),
    ]  # fmt: skip
    assert [point.changed for point in first.points] == [(), ("image", "digest", "vllm"), ()]
    low, high = first.points[1].low, first.points[1].high
    assert low is not None
    assert high is not None
    assert 1090 < low < 1100 < high < 1110
    assert (first.points[0].low, first.points[2].low) == (None, None)
    assert first.change == pytest.approx(1051 / 1100 - 1)
    assert (second.cell, second.metric.key, second.change) == ("r4", "median_e2el_ms", None)


def test_instances_of_a_run_are_one_point() -> None:
    rows = [*measured("r0", 0, [1000.0, 1010.0]), *measured("r0", 0, [2000.0, 2010.0], host="n2")]
    (cell,) = cell_histories(rows)
    (point,) = cell.points
    assert (point.value, point.runs, point.instances) == (1505.0, 2, 2)


def test_what_never_succeeded_has_no_history() -> None:
    assert cell_histories(measured("r0", 0, [1.0], completed=0)) == []


def page(rows: list[tuple[str, dict[str, Any]]] | None = None) -> str:
    return render_history("llama", cell_histories(history() if rows is None else rows))


def test_the_page_shows_runs_and_marks_new_digests() -> None:
    text = page()
    assert text.count("<svg") == 2
    assert len(re.findall(r'<tr class="changed"><th scope="row">r1</th>', text)) == 1
    assert text.count('class="changed"') == 1
    assert "sha256:bbbbbbbbbbbb<" in text
    assert "+10.0%" in text
    assert history_text("llama", cell_histories(history())) in text
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ET.fromstring(svg)


def test_the_page_loads_nothing_and_escapes_names() -> None:
    evil = "<script>alert(1)</script>"
    text = page(measured(evil, 0, [1000.0], cell=evil, image=evil))
    assert "<script" not in text
    assert not re.search(r"(?:src|href)=[\"'](?!#)", text)


def test_a_text_of_what_there_is() -> None:
    assert history_text("llama", cell_histories(history())) == (
        "llama: 3 runs, 2 cells, 1 run with another image digest than the one before"
    )
    empty: list[CellHistory] = []
    assert history_text("x", empty).startswith("x: 0 runs, 0 cells")


@pytest.mark.parametrize(
    ("name", "file"), [("llama", "llama.html"), ("../a b", "_a_b.html"), ("..", "_.html")]
)
def test_file_names(name: str, file: str) -> None:
    assert page_name(name) == file
