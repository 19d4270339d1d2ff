# SPDX-License-Identifier: Apache-2.0
"""Schemas that are made of types. That the files are made anew is a row of test_assemble.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.json_record import JsonRecord, Text
from jsonschema import Draft202012Validator

from tests.schemas.derive import schema


@dataclass(frozen=True)
class LostThing(JsonRecord, hide=("secret",), omit=("late", "note"), add=("size",)):
    """A thing.

    kind, name: what it is. late: it came
    late.
    """

    kind: Literal["a", "b"]
    name: Text
    secret: int = 1
    late: bool = False
    note: str = ""
    parts: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Return its size."""
        return len(self.parts)


@dataclass(frozen=True)
class Other:
    inside: Any


class Written(TypedDict):
    of: str


class Whole(TypedDict):
    schema: Literal[1]
    things: Mapping[str, LostThing]  # by name
    # how much of it,
    # if it is known
    share: Annotated[float | None, {"maximum": 1}]
    pair: tuple[int, str] | None
    either: LostThing | Written | None
    mode: NotRequired[Literal["x", "y"] | None]
    other: NotRequired[Other]


MADE = schema("whole.json", Whole, {Other: Written})
THING = LostThing("a", "n", parts=(1,)).to_json()
WHOLE = {"schema": 1, "things": {"t": THING}, "share": 0.5, "pair": [1, "x"], "either": None}


def test_what_is_said_of_keys() -> None:
    thing = MADE["$defs"]["lost_thing"]
    assert {name: key.get("description") for name, key in thing["properties"].items()} == {
        "kind": "What it is.",
        "name": "What it is.",
        "late": "It came late.",
        "note": None,
        "parts": None,
        "size": "Its size.",
    }
    assert thing["required"] == ["kind", "name", "parts", "size"]
    said = {name: key["description"] for name, key in MADE["properties"].items() if "description" in key}
    assert said == {"things": "By name.", "share": "How much of it, if it is known."}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"share": None, "pair": None, "mode": None},
        {"either": {"of": "x"}, "mode": "x", "other": {"of": "x"}},
        {"either": LostThing("b", "n", late=True, note="!").to_json()},
    ],
    ids=str,
)
def test_what_the_schema_accepts(changes: Any) -> None:
    Draft202012Validator(MADE).validate({**WHOLE, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"more": 1},
        {"things": {"t": {**THING, "secret": 1}}},
        {"things": {"t": {**THING, "kind": "c"}}},
        {"things": {"t": {**THING, "name": ""}}},
        {"things": {"t": {**THING, "late": False}}},
        {"things": {"t": {key: value for key, value in THING.items() if key != "size"}}},
        {"share": 2},
        {"pair": [1]},
        {"pair": ["x", 1]},
        {"either": {"of": 1}},
        {"mode": "z"},
        {"other": {"inside": 1}},
    ],
    ids=str,
)
def test_what_the_schema_refuses(changes: Any) -> None:
    assert not Draft202012Validator(MADE).is_valid({**WHOLE, **changes})


def test_two_classes_of_one_name() -> None:
    keys = {"one": Written, "other": type("Written", (Other,), {})}
    with pytest.raises(ValueError, match="called written"):
        schema("pair.json", TypedDict("Pair", keys))
