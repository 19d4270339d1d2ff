# SPDX-License-Identifier: Apache-2.0
"""ACCEPTANCE.md names tests that exist, and says rightly in which make target they run."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT

TESTS = ROOT / "tests"
PAGE = (TESTS / "ACCEPTANCE.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| promise", "|---"))
]
PROOFS = [
    pytest.param(proof, where, id=f"{proof} in {where}")
    for _, proofs, where in ROWS
    for proof in re.findall(r"`([^`]+)`", proofs)
]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def deep(node: ast.AST) -> bool:
    """Whether an expression names the marker `deep`, or a constant of the file that stands for it."""
    return any(isinstance(part, ast.Attribute) and part.attr == "deep" for part in ast.walk(node))


@cache
def parsed(path: Path) -> ast.Module:
    """A file of tests."""
    return ast.parse(path.read_text(encoding="utf-8"))


def runs_in(path: Path, name: str) -> str:
    """Where a test function runs: nightly when it, or its file, is marked deep; AssertionError when it is not there."""
    tree = parsed(path)
    whole = any(
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark" and deep(node.value)
        for node in tree.body
    )
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert len(found) == 1, f"{path.name} has no test {name}"
    own = any(ast.unparse(item) == "pytest.mark.deep" for item in found[0].decorator_list)
    return "nightly" if whole or own else "test"


@pytest.mark.parametrize(("proof", "where"), PROOFS)
def test_a_proof_is_there_and_runs_where_the_page_says(proof: str, where: str) -> None:
    if proof.startswith("make "):
        target = proof.removeprefix("make ")
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)
        text = re.search(
            r"^NIGHTLY := (.*)$" if where == "nightly" else r"^test:(?:.*\n\t.*)*", MAKEFILE, re.MULTILINE
        )
        assert text is not None
        assert re.search(rf"\b{target}\b", text[0])
        return
    file, _, name = proof.partition("::")
    # Some rows of a parametrized test may be deep: what is said of all of them is nightly.
    assert where in {runs_in(TESTS / file, name), "nightly"}


@cache
def texts_of_lab_tests() -> set[str]:
    """Every text that stands in a lab test."""
    nodes = (node for path in (TESTS / "lab").glob("test_*.py") for node in ast.walk(parsed(path)))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.mark.parametrize("book", sorted((ROOT / "docs/runbooks").glob("*.md")), ids=lambda book: book.name)
def test_a_lab_test_opens_each_runbook(book: Path) -> None:
    """What it does with the commands there is the lab tests' own matter; a new runbook is not to be left out."""
    name = book.relative_to(ROOT).as_posix()
    assert name in texts_of_lab_tests()


def test_every_row_has_a_proof() -> None:
    assert len(ROWS) > 40
    assert [
        row for row in ROWS if len(row) != 3 or "`" not in row[1] or row[2] not in ("test", "nightly")
    ] == []
