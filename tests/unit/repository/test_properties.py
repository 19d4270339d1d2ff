# SPDX-License-Identifier: Apache-2.0
"""Random tests have a fixed budget, and say how to repeat what failed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests import ROOT

MOST_EXAMPLES = 100


def own_settings(text: str) -> Iterator[str]:
    """Yield what is wrong with the settings that a file's tests have beside the profile."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "settings":
            for item in node.keywords:
                if item.arg != "max_examples":
                    yield f"line {node.lineno}: {item.arg} is the profile's"
                elif isinstance(item.value, ast.Constant) and item.value.value > MOST_EXAMPLES:
                    yield f"line {node.lineno}: {item.value.value} examples"


def test_the_profile_bounds_examples_and_does_not_shrink() -> None:
    profile = settings.get_profile("unit")
    assert profile.max_examples <= MOST_EXAMPLES
    assert {Phase.shrink, Phase.explain}.isdisjoint(profile.phases)
    assert Phase.generate in profile.phases
    assert profile.deadline is None
    assert profile.print_blob
    assert not profile.derandomize


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("@settings(max_examples=20)", []),
        ("@settings(max_examples=20, deadline=None)", ["line 1: deadline is the profile's"]),
        ("@settings(max_examples=1000)", ["line 1: 1000 examples"]),
    ],
)
def test_what_a_test_may_set(line: str, wrong: list[str]) -> None:
    assert list(own_settings(f"{line}\ndef test() -> None: ...\n")) == wrong


def test_no_test_has_a_budget_of_its_own() -> None:
    files = [path for path in Path(ROOT, "tests").rglob("*.py") if "hypothesis" in path.read_text("utf-8")]
    assert len(files) > 8
    found = {
        str(path.relative_to(ROOT)): wrong
        for path in files
        if path.name != "conftest.py" and (wrong := list(own_settings(path.read_text("utf-8"))))
    }
    assert found == {}
