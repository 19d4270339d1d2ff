# SPDX-License-Identifier: Apache-2.0
"""A child process of the control node has a time limit: one that hangs would hold up the run of the whole fleet."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests import ROOT

ROOMS = ("action", "callback", "lookup", "plugin_utils")
WITH_TIMEOUT = ("run", "call", "check_call", "check_output")
"""Functions of subprocess that end the child themselves; Popen does not."""
NEVER = {
    ("os", "system"),
    ("os", "popen"),
    ("os", "spawnv"),
    ("subprocess", "Popen"),
    ("subprocess", "getoutput"),
}


def unlimited(tree: ast.AST) -> Iterator[str]:
    """Yield the calls that start a child process which nothing ends."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "subprocess":
            yield f"line {node.lineno}: import the module subprocess, so that calls are seen"
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        place, name = node.func.value, node.func.attr
        module = place.id if isinstance(place, ast.Name) else ""
        limited = any(keyword.arg == "timeout" for keyword in node.keywords)
        if (module, name) in NEVER or (module == "subprocess" and name in WITH_TIMEOUT and not limited):
            yield f"line {node.lineno}: {module}.{name}"


@pytest.mark.parametrize("room", ROOMS)
def test_no_child_process_of_the_control_node_is_without_a_time_limit(room: str) -> None:
    paths = sorted((ROOT / "plugins" / room).rglob("*.py"))
    assert paths
    found = [
        f"{path.relative_to(ROOT)}, {text}"
        for path in paths
        for text in unlimited(ast.parse(path.read_text("utf-8")))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("subprocess.run(['x'], check=True)", 1),
        ("subprocess.run(['x'], timeout=5)", 0),
        ("subprocess.Popen(['x'])", 1),
        ("os.system('x')", 1),
        ("from subprocess import run", 1),
        ("loop.run('x')", 0),
    ],
)
def test_what_counts(line: str, count: int) -> None:
    assert len(list(unlimited(ast.parse(line)))) == count
