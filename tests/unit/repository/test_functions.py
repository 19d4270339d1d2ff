# SPDX-License-Identifier: Apache-2.0
"""Functions of the plugins are short and flat, so that a reader can hold one in mind.

`python -m tests.unit.repository.test_functions` lists the longest and the deepest ones.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests import ROOT

LINES, DEPTH = 60, 4
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match, ast.AsyncFor, ast.AsyncWith)
LONG = {
    "plugin_utils/planning/observed/node_state.py from_json": "a line a field, read for every host of a run",
}
"""Functions that may be longer, and why."""


def depth(node: ast.AST) -> int:
    """How many blocks stand in each other below a node; functions inside are counted by themselves, elif is none."""
    deepest = 0
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, (*FUNCTIONS, ast.ClassDef)):
                continue
            is_elif = isinstance(node, ast.If) and name == "orelse" and value == [child]
            counts = isinstance(child, BLOCKS) and not (is_elif and isinstance(child, ast.If))
            deepest = max(deepest, depth(child) + counts)
    return deepest


def functions() -> Iterator[tuple[str, int, int]]:
    """File and name of every function of the plugins, its lines and its depth."""
    for path in sorted((ROOT / "plugins").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, FUNCTIONS):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                yield f"{path.relative_to(ROOT / 'plugins')} {node.name}", lines, depth(node)


def test_functions_are_short_and_flat() -> None:
    found = list(functions())
    long = {name: lines for name, lines, _deep in found if lines > LINES}
    deep = {name: blocks for name, _lines, blocks in found if blocks > DEPTH}
    assert not {name: lines for name, lines in long.items() if name not in LONG}, f"more than {LINES} lines"
    assert not deep, f"more than {DEPTH} blocks in each other"
    assert not LONG.keys() - long.keys(), "no exception is needed any more"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("return 1", 0),
        ("if a:\n  b", 1),
        ("if a:\n  b\nelif c:\n  d\nelse:\n  e", 1),
        ("if a:\n  b\nelse:\n  if c:\n    d\n  e", 2),
        ("for a in b:\n  with c:\n    try:\n      d\n    except E:\n      while f:\n        g", 4),
        ("def inner():\n  if a:\n    b", 0),
    ],
)
def test_depth(body: str, wanted: int) -> None:
    assert depth(ast.parse(body)) == wanted


def main() -> None:
    """List the longest functions and the deepest ones."""
    for at, what in ((1, "lines"), (2, "blocks")):
        for row in sorted(functions(), key=lambda row: -row[at])[:12]:
            print(f"{row[at]:4} {what} {row[0]}")


if __name__ == "__main__":
    main()
