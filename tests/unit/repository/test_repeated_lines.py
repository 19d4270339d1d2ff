# SPDX-License-Identifier: Apache-2.0
"""What several files of the plugins need stands in one of them: no two have many equal lines in a row."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, groupby
from pathlib import Path

import pytest

from tests import ROOT
from tests.helpers.some import some

PLUGINS = ROOT / "plugins"
MOST = 15
IMPORT = re.compile(r"import \w|from [.\w]+ import ")
EXCEPTED = {
    "modules/node_state.py": "generated from files of module_utils, by make generate: docs/adr/script-module.md",
}
"""Files that may repeat others, and why."""


def own_lines(text: str) -> list[tuple[int, str]]:
    """The lines of a file by their numbers, without indentation, blank lines and imports."""
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    found = []
    for number, line in lines:
        if IMPORT.match(line):
            if line.endswith("("):
                next(end for _, end in lines if end.startswith(")"))
        elif line:
            found.append((number, line))
    return found


def repeated(files: Mapping[str, str], most: int = MOST) -> list[str]:
    """Where pairs of files begin to have more equal lines in a row than that."""
    lines = {file: own_lines(text) for file, text in files.items()}
    common = Counter(line for own in lines.values() for line in {line for _, line in own})
    places: dict[tuple[str, ...], dict[str, int]] = defaultdict(dict)
    for file, own in lines.items():
        for number, window in _windows(own, common, most + 1):
            places[window].setdefault(file, number)
    pairs: dict[tuple[str, str], str] = {}
    for found in places.values():
        for first, second in combinations(found, 2):
            pairs.setdefault((first, second), f"{first}:{found[first]} = {second}:{found[second]}")
    return sorted(pairs.values())


def _windows(
    lines: Sequence[tuple[int, str]], common: Mapping[str, int], size: int
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Each so many lines in a row that other files have too, with the number of the first."""
    for shared, group in groupby(lines, lambda line: common[line[1]] > 1):
        row = list(group)
        for at in range(len(row) - size + 1 if shared else 0):
            yield row[at][0], tuple(line for _, line in row[at : at + size])


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_no_two_files_have_many_equal_lines() -> None:
    files = {path.relative_to(PLUGINS).as_posix(): read(path) for path in sorted(PLUGINS.rglob("*.py"))}
    own = {name: text for name, text in some(files.items(), 600) if name not in EXCEPTED}
    assert repeated(own) == [], (
        "move these lines where both files take them from: a function, a table, or for documentation a fragment in "
        "plugins/doc_fragments"
    )


@pytest.mark.parametrize("name", EXCEPTED)
def test_what_is_excepted_repeats_others(name: str) -> None:
    files = {path.relative_to(PLUGINS).as_posix(): read(path) for path in PLUGINS.rglob("observe/*.py")}
    assert repeated({**files, name: read(PLUGINS / name)})


LINES = [f"value_{number} = {number}" for number in range(MOST + 1)]


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        (LINES, LINES, 1),
        (LINES[1:], LINES[1:], 0),
        (["import os", *LINES], ["if True:", *(f"    {line}" for line in LINES)], 1),
        (["", *LINES[:4], "", *LINES[4:]], LINES, 1),
        (["from a import (", "    b,", ")", *LINES[1:]], ["from a import (", "    b,", ")", *LINES[1:]], 0),
        ([*LINES[:8], "other = 0", *LINES[8:]], LINES, 0),
        ([*LINES, *LINES], ["only = 1"], 0),
    ],
)
def test_what_counts(first: list[str], second: list[str], count: int) -> None:
    assert len(repeated({"a.py": "\n".join(first), "b.py": "\n".join(second)})) == count
