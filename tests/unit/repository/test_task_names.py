# SPDX-License-Identifier: Apache-2.0
"""Tasks at which lab tests kill a run are tasks of the playbooks: most of these run at night only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.playbook_variables import load, tasks

FILES = sorted((ROOT / "tests/lab").glob("test_*.py"))


def names_of(path: Path) -> Iterator[str]:
    """The tasks that a file gives to killed_at(): as texts, constants of the file, or rows of parametrize."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = {
        ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)
    }
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        given = [
            call.args[0]
            for call in ast.walk(function)
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".killed_at")
        ]
        for value in given:
            if isinstance(value, ast.Name):
                yield from _named(value.id, function, constants)
            else:
                yield ast.literal_eval(value)


def _named(name: str, function: ast.FunctionDef, constants: dict[str, ast.expr]) -> Iterator[str]:
    if name in constants:
        yield ast.literal_eval(constants[name])
        return
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.parametrize":
            columns, rows = ast.literal_eval(decorator.args[0]), decorator.args[1]
            if name in columns:
                table = ast.literal_eval(constants.get(ast.unparse(rows), rows))
                yield from (row[columns.index(name)] for row in table)


NAMES = sorted({(path.name, name) for path in FILES for name in names_of(path)})


@pytest.fixture(scope="module")
def patterns() -> list[re.Pattern[str]]:
    """The names of all tasks; templates in them stand for a word."""
    files = [path for room in ("playbooks", "roles") for path in (ROOT / room).rglob("*.yml")]
    names = {
        item["name"] for path in files for item in tasks(load(path)) if isinstance(item.get("name"), str)
    }
    return [re.compile(r"\S+".join(map(re.escape, re.split(r"\{\{.*?\}\}", name)))) for name in names]


@pytest.mark.parametrize(("file", "name"), NAMES)
def test_a_run_is_killed_at_a_task_that_is_there(
    file: str, name: str, patterns: list[re.Pattern[str]]
) -> None:
    assert any(pattern.fullmatch(name) for pattern in patterns), f"{file}: no task is called {name!r}"


def test_all_files_that_kill_runs_are_read() -> None:
    killing = {path.name for path in FILES if ".killed_at(" in path.read_text(encoding="utf-8")}
    assert {file for file, _name in NAMES} == killing
