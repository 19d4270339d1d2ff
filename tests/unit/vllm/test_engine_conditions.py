# SPDX-License-Identifier: Apache-2.0
"""From vLLM's sources to conditions on arguments: small sources in, conditions and verdicts out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.rules.conditions import (
    UNKNOWN,
    evaluate,
    holds,
)

from catalog.tools.alternatives import merged
from catalog.tools.checks import checks
from catalog.tools.expressions import FALSE, NONE, TRUE, choice, decided, operation, simplified, together
from catalog.tools.registries import registered, registries
from catalog.tools.sources import read_module

ENGINE = """
from vllm.config import {classes}

class EngineArgs:
    size: int = 1
    other: int | None = None
    names: list[str] | None = None
    method: str | None = None
    graphs: GraphConfig | None = None
    speculative_config: dict | None = None

    def create_speculative_config(self, target):
        return SpeculativeConfig(**self.speculative_config)

    def create_engine_config(self):
{body}
"""
CONFIG = """
from typing import Literal
from pydantic import Field, model_validator

Methods = Literal["one", "two"]

class GraphConfig:
    sizes: list[int | str] = Field(default=None)
    ops: list[str] = Field(default=None)

    def __post_init__(self):
{graphs}

class SpeculativeConfig:
    method: Methods | Literal["three"] | None = None
    model: str | None = None
    tokens: int = None

    def __post_init__(self):
{draft}

class VllmConfig:
    graphs: GraphConfig | None = None
    speculative_config: SpeculativeConfig | None = None
"""
FLAGS = ["--size", "--other", "--names", "--method", "--graphs", "--speculative-config"]


def conditions(tmp_path: Path, body: str = "pass", graphs: str = "pass", draft: str = "pass") -> list[Any]:
    """The conditions of a vLLM with these function bodies."""
    package = tmp_path / "vllm"
    for name, text in (
        (
            "engine/arg_utils.py",
            ENGINE.format(classes="GraphConfig, SpeculativeConfig, Methods", body=_in(body)),
        ),
        ("config/__init__.py", CONFIG.format(graphs=_in(graphs), draft=_in(draft))),
    ):
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [json.loads(text) for text in checks(package, FLAGS, ["--graphs", "--speculative-config"])]


def _in(body: str) -> str:
    return "\n".join(f"        {line}" for line in body.splitlines())


def stops(found: list[Any], **facts: Any) -> bool:
    """Whether one of the conditions holds; what is not named is not given."""
    known = {name.replace("__", "."): value for name, value in facts.items()}
    given = {
        "EngineArgs.other": None, "EngineArgs.names": None, "EngineArgs.method": None,
        "EngineArgs.graphs": {}, "EngineArgs.speculative_config": {}, "EngineArgs.size": 1, **known,
    }  # fmt: skip
    return any(holds(item, lambda fact: given.get(fact, UNKNOWN)) for item in found)


RAISE = "    raise ValueError('no')"


@pytest.mark.parametrize(("body", "bad", "good"), [
    (f"if self.size < 1:\n{RAISE}", {"size": 0}, {"size": 1}),
    ("assert self.size in (1, 2)", {"size": 3}, {"size": 2}),
    (f"if self.names:\n    for name in self.names:\n        if name not in ('a', 'b'):\n        {RAISE}",
     {"names": ["a", "c"]}, {"names": ["a", "b"]}),
    (f"if self.names and any(len(name) > 3 for name in self.names):\n{RAISE}", {"names": ["long"]}, {"names": ["a"]}),
    (f"if self.names and not all(name.startswith('+') for name in self.names):\n{RAISE}",
     {"names": ["+a", "b"]}, {"names": ["+a"]}),
    (f"if self.names and self.names.count('a') + self.names.count('b') > 1:\n{RAISE}",
     {"names": ["a", "b"]}, {"names": ["a", "c"]}),
    (f"if self.names and len(set(self.names)) != len(self.names):\n{RAISE}", {"names": ["a", "a"]}, {"names": ["a"]}),
    (f"if self.names and isinstance(self.names[0], str) and self.names[-1] == 'x':\n{RAISE}",
     {"names": ["a", "x"]}, {"names": ["x", "a"]}),
    ("rest = 8 % self.size", {"size": 0}, {"size": 3}),
    (f"from typing import get_args\nif self.method is not None and self.method not in get_args(Methods):\n{RAISE}",
     {"method": "four"}, {"method": "two"}),
    (f"if self.size != EngineArgs.size:\n{RAISE}", {"size": 2}, {"size": 1}),
    (f"try:\n    if self.size > 4:\n    {RAISE}\nexcept TypeError:\n    raise", {"size": 5}, {"size": 4}),
    (f"total = self.size\ntotal += 1\nif total > 4:\n{RAISE}", {"size": 4}, {"size": 3}),
    (f"least = self.other or 4\nif self.size > least:\n{RAISE}", {"size": 5}, {"size": 4}),
    (f"if (double := self.size * 2) > 4:\n{RAISE}", {"size": 3}, {"size": 2}),
])  # fmt: skip
def test_what_stops_a_release(tmp_path: Path, body: str, bad: dict[str, Any], good: dict[str, Any]) -> None:
    found = conditions(tmp_path, body)
    assert stops(found, **{f"EngineArgs__{name}": value for name, value in bad.items()}), found
    assert not stops(found, **{f"EngineArgs__{name}": value for name, value in good.items()}), found


def test_no_condition_follows_from_what_is_installed(tmp_path: Path) -> None:
    text = "HAS = find_spec('triton') is not None\nif HAS:\n    if not drivers():\n        HAS = False\n"
    assert "HAS" not in read_module("vllm.config", text).values
    assert "HAS" in read_module("vllm.config", "HAS = False\n").values
    found = conditions(tmp_path, f"if self.size > 4 and not HAS:\n{RAISE}")
    assert not stops(found, EngineArgs__size=5), found


def test_a_division_counts_only_where_it_is_reached(tmp_path: Path) -> None:
    found = conditions(tmp_path, "if self.size > 0 and 8 % self.size == 3:\n    pass")
    assert not stops(found, EngineArgs__size=0), found


@pytest.mark.parametrize("body", [
    f"try:\n    if self.size > 4:\n    {RAISE}\nexcept ValueError:\n    pass",
    f"for name in self.names:\n    if name == 'b':\n        continue\n    if name == 'b':\n    {RAISE}",
    f"limit = asked_of_the_host()\nif self.size > limit:\n{RAISE}",
])  # fmt: skip
def test_what_is_not_certain_is_no_condition(tmp_path: Path, body: str) -> None:
    found = conditions(tmp_path, body)
    assert not stops(found, EngineArgs__size=5, EngineArgs__names=["b"]), found


def test_functions_of_the_module_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "vllm/engine/arg_utils.py"
    conditions(tmp_path, "if self.size > 2:\n    stop('size')")
    path.write_text(path.read_text() + "\n\ndef stop(name):\n    raise NotImplementedError(name)\n")
    found = [json.loads(text) for text in checks(tmp_path / "vllm", FLAGS, [])]
    assert found == [[">", "EngineArgs.size", ["=", 2]]]


def test_entries_of_json(tmp_path: Path) -> None:
    body = f"for op in self.ops:\n    if op not in ('all', 'none') and not op.startswith(('+', '-')):\n    {RAISE}"
    found = conditions(tmp_path, graphs=body)
    assert stops(found, GraphConfig__ops=["+a", "b"])
    assert not stops(found, GraphConfig__ops=["+a", "none"])


DRAFT = f"""if self.method in ("one", "two"):
    if self.model is None:
    {RAISE}
if self.method == "three":
    self.model = "three"
if self.tokens is None:
{RAISE}"""


def test_each_method_is_walked_once(tmp_path: Path) -> None:
    found = conditions(tmp_path, "self.create_speculative_config(None)", draft=DRAFT)
    key = ["given", "SpeculativeConfig.method", NONE]
    assert any(["in", key, ["=", ["one", "two"]]] in item or ["not", ["in", key, ["=", [None, "three"]]]] in item
               for item in found), found  # fmt: skip
    assert stops(found, SpeculativeConfig__method="two", SpeculativeConfig__tokens=1)
    assert not stops(found, SpeculativeConfig__method="three", SpeculativeConfig__tokens=1)
    assert not stops(
        found, SpeculativeConfig__method="one", SpeculativeConfig__model="m", SpeculativeConfig__tokens=1
    )
    assert stops(found, SpeculativeConfig__method="three")


@pytest.mark.parametrize(("made", "expected"), [
    (operation("==", ["if", "a", ["=", 1], ["=", 2]], ["=", 1]), "a"),
    (operation("in", ["if", "a", ["=", 1], "b"], ["=", [1]]), ["or", "a", ["in", "b", ["=", [1]]]]),
    (operation("==", ["enum", "A"], ["enum", "A"]), TRUE),
    (operation("in", ["=", "."], NONE), None),
    (choice("a", ["if", "a", "b", "c"], "d"), ["if", "a", "b", "d"]),
    (together("a", ["or", ["<", "a", "b"], ["<", "b", "a"]], ["<", "a", "b"]), ["and", "a", ["<", "a", "b"]]),
    (simplified(["and", "b", ["not", "a"]], decided("a", holds=True)), FALSE),
    (simplified(["+", "a", ["=", 1]], decided("a", holds=True)), ["+", "a", ["=", 1]]),
])  # fmt: skip
def test_how_conditions_become_short(made: Any, expected: Any) -> None:
    assert made == expected


def test_conditions_that_differ_in_the_method_become_one() -> None:
    key = ["given", "SpeculativeConfig.method", NONE]
    found = [(["and", ["==", key, ["=", name]], "x"], "f") for name in ("a", "b")]
    assert merged(found, {"SpeculativeConfig": ["a", "b", "c"]}) == [
        (["and", ["not", ["==", key, ["=", "c"]]], "x"], "f")
    ]
    assert merged(found, {"SpeculativeConfig": ["a", "b"]}) == [("x", "f")]


@pytest.mark.parametrize(("condition", "value"), [
    (["any", "item.0", ["=", [1, 2]], [">", "item.0", ["=", 1]]], True),
    (["any", "item.0", ["=", []], [">", "item.0", ["=", 1]]], False),
    (["any", "item.0", "what", "item.0"], UNKNOWN),
    (["at", ["=", [1]], ["=", 3]], UNKNOWN),
    (["startswith", ["=", "+a"], ["=", ["+", "-"]]], True),
    (["count", ["=", ["a", "a"]], ["=", "a"]], 2),
    (["isinstance", ["=", "a"], ["=", "int"]], False),
    (["lower", ["=", 1]], UNKNOWN),
])  # fmt: skip
def test_conditions_evaluated(condition: Any, value: Any) -> None:
    assert evaluate(condition, lambda _: UNKNOWN) is value or evaluate(condition, lambda _: UNKNOWN) == value


def test_what_a_release_registers(tmp_path: Path) -> None:
    text = """
KVConnectorFactory.register_connector("A", "module", "A")
@ToolParserManager.register_module(["b", "c"])
class B: pass
@ToolParserManager.register_module(name="d")
class D: pass
_PARSERS_TO_REGISTER = {"e": ("file", "E")}
OTHERS = {"f": 1}
other("g")
"""
    assert list(registered(text)) == ["e", "A", "b", "c", "d"] or sorted(registered(text)) == [
        "A",
        "b",
        "c",
        "d",
        "e",
    ]
    place = tmp_path / "reasoning/__init__.py"
    place.parent.mkdir()
    place.write_text('_REASONING_PARSERS_TO_REGISTER: dict = {"qwen3": ()}')
    assert registries(tmp_path) == {"reasoning_parser.qwen3": {}}
