# SPDX-License-Identifier: Apache-2.0
"""The interpreter of conditions: maps as people write them, what is unknown, and that both forms say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.rules.conditions import (
    THERE,
    UNKNOWN,
    Condition,
    evaluate,
    holds,
    names,
    truth,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.catalogue import knowledge

FACTS: dict[str, Any] = {
    "number": 3, "text": "eagle3-llama", "flag": True, "none": None, "empty": "", "items": ["a", "b"],
    "map": {"x": 1}, "json": '{"x": 1}', "unknown": UNKNOWN, "there": THERE,
    "line": knowledge().line, "repository": "org/Llama-3.3-70B-FP8",
}  # fmt: skip


@pytest.mark.parametrize(("condition", "expected"), [
    ({}, True),
    ({"number": 3}, True),
    ({"number": 4}, False),
    ({"number": [3, 4]}, True),
    ({"number": {"min": 3, "max": 3}}, True),
    ({"number": {"below": 3}}, False),
    ({"number": {"not": [3]}}, False),
    ({"number": {"not": {"min": 4}}}, True),
    ({"text": {"min": 4}}, None),  # no number
    ({"text": {"mentions": ["dflash", "eagle3"]}}, True),
    ({"text": {"like": "eagle"}}, True),
    ({"text": {"like": "llama"}}, False),  # it begins with something else
    ({"none": None}, True),
    ({"none": {"given": True}}, False),
    ({"empty": {"given": True, "empty": True}}, True),
    ({"items": ["b", "c"]}, True),
    ({"items": ["c"]}, False),
    ({"items": {"like": "b$"}}, True),
    ({"items": {"is": "list", "mentions": ["c"]}}, False),
    ({"map": {"keys": ["x"]}}, True),
    ({"map": {"is": "map"}, "json": {"is": "json map"}}, True),
    ({"json": {"is": "map"}}, False),
    ({"flag": {"is": "integer"}}, False),
    ({"unknown": 1}, None),
    ({"unknown": {"not": [1]}}, None),
    ({"unknown": 1, "number": 4}, False),
    ({"there": {"empty": False}}, None),
    ({"any": [{"number": 4}, {"flag": True}]}, True),
    ({"any": [{"number": 4}, {"unknown": 1}]}, None),
    ({"all": [{"number": 3}, [">", "number", ["=", 2]]]}, True),
    ({"not": {"number": 3}}, False),
    ({"not": "flag"}, False),
    ({"repositories": ["*/Llama-3.3-70B*"]}, True),
    ({"repositories": ["*/Llama-3.1*"]}, False),
    ({"since": "0.10.0", "until": "0.12.0"}, True),
    ({"since": "0.12.0"}, False),
    ({"until": "0.11.2", "number": 3}, False),
    ({"forks": ["amd-0.9.1"]}, False),
    ({"forks": ["amd-0.9.1"], "since": "0.11.0"}, True),
    (["mentions", "text", ["=", ["llama"]]], True),
    (["join", ["only", "items", ["=", ["b", "z"]]]], "b"),
])  # fmt: skip
def test_conditions(condition: Condition, expected: Any) -> None:
    facts = {**FACTS, "release": knowledge().release("0.11.2")}
    value = evaluate(condition, facts.__getitem__)
    assert value == expected if isinstance(expected, str) else truth(value) is expected
    assert holds(condition, facts.__getitem__) == bool(expected)


def test_a_fork_that_is_named() -> None:
    fork = knowledge().release("0.9.1+gb432b7a28")
    facts = {**FACTS, "release": fork}.__getitem__
    assert holds({"forks": [fork.fork]}, facts)
    assert holds({"forks": [fork.fork], "since": "0.12.0"}, facts)
    assert not holds({"forks": ["another"]}, facts)


def test_a_fact_that_nobody_knows_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        holds({"nubmer": 3}, FACTS.__getitem__)


def test_the_names_of_a_condition() -> None:
    condition = {"since": "0.9.0", "a": 1, "any": [{"b": 2}, ["==", "c", ["=", "x"]]], "not": {"d": 3}}
    assert list(names(condition)) == ["a", "b", "c", "d"]


LETTERS = "abcd"
VALUES = st.integers(0, 3)
WANTED = st.one_of(
    VALUES,
    st.lists(VALUES, min_size=1, max_size=2),
    st.dictionaries(st.sampled_from(["min", "max", "below", "not"]), VALUES, min_size=1),
)
MAPS: st.SearchStrategy[Any] = st.recursive(
    st.dictionaries(st.sampled_from(LETTERS), WANTED, max_size=3),
    lambda inner: st.fixed_dictionaries(
        {}, optional={"any": st.lists(inner, max_size=2), "all": st.lists(inner, max_size=2), "not": inner}
    ),
    max_leaves=5,
)
KNOWN = st.fixed_dictionaries({name: st.one_of(VALUES, st.just(UNKNOWN)) for name in LETTERS})
_SIGNS = {"min": ">=", "max": "<=", "below": "<"}


def as_list(condition: Mapping[str, Any]) -> Condition:
    """The same condition as a list with operators."""
    parts: list[Condition] = []
    for name, wanted in condition.items():
        if name in ("any", "all"):
            parts.append(["or" if name == "any" else "and", *map(as_list, wanted)])
        elif name == "not":
            parts.append(["not", as_list(wanted)])
        else:
            parts.append(_test(name, wanted))
    return ["and", *parts]


def _test(name: str, wanted: Any) -> Condition:
    if isinstance(wanted, Mapping):
        return ["and", *(
            ["not", _test(name, limit)] if test == "not" else [_SIGNS[test], name, ["=", limit]]
            for test, limit in wanted.items()
        )]  # fmt: skip
    return ["in", name, ["=", wanted]] if isinstance(wanted, list) else ["==", name, ["=", wanted]]


@given(MAPS, KNOWN)
def test_a_map_and_its_list_say_the_same(condition: Any, facts: dict[str, Any]) -> None:
    value = truth(evaluate(condition, facts.__getitem__))
    assert value is truth(evaluate(as_list(condition), facts.__getitem__))
    assert truth(evaluate({"not": condition}, facts.__getitem__)) is (None if value is None else not value)


@given(MAPS, KNOWN, st.lists(VALUES, min_size=4, max_size=4))
def test_what_holds_does_so_whatever_is_unknown(
    condition: Any, facts: dict[str, Any], rest: list[int]
) -> None:
    whole = {
        name: other if value is UNKNOWN else value
        for (name, value), other in zip(facts.items(), rest, strict=True)
    }
    value = truth(evaluate(condition, facts.__getitem__))
    assert value is None or value is truth(evaluate(condition, whole.__getitem__))
