# SPDX-License-Identifier: Apache-2.0
"""What a release or a model does stands in the catalogue, and not in the code that plans."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.worlds.catalogue import knowledge

DECIDES = ROOT / "plugins/plugin_utils"
ALLOWED = {
    ("planning/desired/deployment.py", "0.11.1"): "shows how a version is written",
    ("measuring/measurement/steady.py", "0.15.0"): "a result is read without the catalogue",
}
"""Releases in texts, and why."""
ROOMS = ("tuning", "instances", "feasibility")
ENGLISH = ("step", "TransformersForCausalLM")
"""Words of models that mean something else as well."""
MINORS = range(6, 100)
"""Of vLLM's releases, which all begin with 0."""


def texts(path: Path) -> Iterator[str]:
    """The texts of a file that are no docstrings, and its tuples that may be releases, as texts."""
    tree = ast.parse(path.read_text())
    described = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in described:
            yield node.value
        if isinstance(node, ast.Tuple):
            numbers = [part.value for part in node.elts if isinstance(part, ast.Constant)]
            whole = len(numbers) == len(node.elts) and all(type(number) is int for number in numbers)
            if whole and len(numbers) in (2, 3) and numbers[0] == 0 and numbers[1] in MINORS:
                yield ".".join(map(str, [*numbers, 0][:3]))


def either(words: set[str]) -> re.Pattern[str]:
    listed = "|".join(sorted(map(re.escape, words), key=len, reverse=True))
    return re.compile(rf"(?<![A-Za-z0-9.])({listed})(?![A-Za-z]|\.?[0-9])")


RELEASES = either(set(knowledge().line.releases))
KINDS = {word.group() for kind in knowledge().families if (word := re.match("[a-z]+", kind))}
MODELS = either({*knowledge().families, *KINDS, *knowledge().architectures} - set(ENGLISH))


def test_no_release_stands_in_the_code() -> None:
    found = {
        (str(path.relative_to(DECIDES)), release)
        for path in sorted(DECIDES.rglob("*.py"))
        for text in texts(path)
        for release in RELEASES.findall(text)
    }
    assert found == set(ALLOWED)


def test_no_model_stands_in_the_code() -> None:
    found = {
        (str(path.relative_to(DECIDES)), model)
        for room in ROOMS
        for path in sorted((DECIDES / "planning" / room).rglob("*.py"))
        for text in texts(path)
        for model in MODELS.findall(text)
    }
    assert not found


@pytest.mark.parametrize(("source", "expected"), [
    ('inside("0.11.1")', ["0.11.1"]), ('"""Since 0.11.1."""', []), ('f"{a} from 0.11.1 on"', ["0.11.1"]),
    ('x = "127.0.0.1"', []), ("x = (0, 11)", ["0.11.0"]), ("x = (0, 0)", []), ('x = "10.11.1"', []),
])  # fmt: skip
def test_what_is_taken_for_a_release(tmp_path: Path, source: str, expected: list[str]) -> None:
    (tmp_path / "a.py").write_text(source)
    assert [item for text in texts(tmp_path / "a.py") for item in RELEASES.findall(text)] == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("models of type llama", ["llama"]), ("Qwen3MoeForCausalLM", ["Qwen3MoeForCausalLM"]), ("a step", []),
    ("decode_step", []), ("gemma2", ["gemma2"]), ("optional", []),
])  # fmt: skip
def test_what_is_taken_for_a_model(text: str, expected: list[str]) -> None:
    assert MODELS.findall(text) == expected
