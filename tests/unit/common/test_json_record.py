# SPDX-License-Identifier: Apache-2.0
"""The JSON of dataclasses, from their fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.json_record import JsonRecord, Text


@dataclass(frozen=True)
class Inner(JsonRecord, omit=("note",)):
    size: int
    note: str = ""


@dataclass(frozen=True)
class Outer(JsonRecord, hide=("secret",)):
    kind: Literal["a", "b"]
    name: Text
    share: float | None
    ends: tuple[int, int]
    pairs: tuple[tuple[str, int], ...] = ()
    parts: tuple[Inner, ...] = ()
    by_name: Mapping[str, Inner] = field(default_factory=dict)
    one: Inner | None = None
    secret: str = "no"

    @cached_property
    def count(self) -> int:
        return len(self.parts)


@pytest.mark.parametrize("cached", [False, True])
def test_json_is_the_fields(cached: bool) -> None:
    made = Outer("a", "x", None, (1, 2), (("p", 1),), (Inner(1), Inner(2, "n")), {"k": Inner(3)}, Inner(4))
    if cached:
        assert made.count == 2
    assert made.to_json() == {
        "kind": "a",
        "name": "x",
        "share": None,
        "ends": [1, 2],
        "pairs": [["p", 1]],
        "parts": [{"size": 1}, {"size": 2, "note": "n"}],
        "by_name": {"k": {"size": 3}},
        "one": {"size": 4},
    }
    assert made.secret == "no"


def test_texts_of_ansible_are_texts() -> None:
    """Options are of classes of its own, which only derive from str and the like."""

    class Tagged(str):
        __slots__ = ()

    made = Outer("a", Tagged("x"), 1.5, (1, 2), ((Tagged("p"), 1),), by_name={"k": Inner(1, Tagged("n"))})
    assert (made.to_json()["pairs"], made.to_json()["by_name"]) == (
        [["p", 1]],
        {"k": {"size": 1, "note": "n"}},
    )


def test_what_is_returned_is_the_callers() -> None:
    made = Outer("a", "x", 1.5, (1, 2))
    made.to_json()["parts"].append(1)
    made.to_json().clear()
    assert (made.parts, made.to_json()["share"]) == ((), 1.5)


def test_a_class_has_fields_of_its_own() -> None:
    @dataclass(frozen=True)
    class More(Inner):
        last: str = "z"

    assert Inner(1).to_json() == {"size": 1}
    assert More(1).to_json() == {"size": 1, "note": "", "last": "z"}
