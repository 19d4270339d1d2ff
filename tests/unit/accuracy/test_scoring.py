# SPDX-License-Identifier: Apache-2.0
"""The shipped items, and the rules by which their answers are right."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.scoring import (
    RULES,
    SanityItem,
    is_right,
    outcome,
    parse_items,
)

from catalog.tools.sanity import items
from tests.worlds.catalogue import knowledge

TEXT = knowledge().accuracy_set("sanity")
SHIPPED = parse_items(TEXT)
JSON = r'\{\s*"apple"\s*:\s*7\s*\}'


def test_the_shipped_file_is_what_its_script_writes() -> None:
    made = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items())
    assert made == TEXT, "python -m catalog.tools.sanity > catalog/accuracy/sanity.jsonl"


def test_there_are_300_different_items_of_every_category() -> None:
    assert len(SHIPPED) == 300
    assert len({item.id for item in SHIPPED}) == len({item.doc for item in SHIPPED}) == 300
    assert len({item.prompt for item in SHIPPED}) == 300
    counts = Counter(item.category for item in SHIPPED)
    assert set(counts) == set(RULES)
    assert min(counts.values()) >= 10


@pytest.mark.parametrize("item", SHIPPED[::7], ids=lambda item: str(item.id))
def test_the_accepted_answer_is_right_and_others_are_not(item: SanityItem) -> None:
    right = item.accepted[0]
    if item.category == "as_json":
        right = right.replace(r"\{\s*", "{ ").replace(r"\s*\}", "}").replace(r"\s*:\s*", ":")
    assert is_right(item, f" {right}\nQ: another one?\nA: 7")
    assert not is_right(item, "")
    assert not is_right(item, "!!!!!!!!!!")
    assert not is_right(item, f"\n0 {right}")


@pytest.mark.parametrize(
    ("category", "accepted", "answer", "right"),
    [
        ("addition", "1234", " 1,234", True),
        ("addition", "1234", "The answer is 1234.", True),
        ("addition", "1234", "12 + 1222 = 1234", False),
        ("addition", "1234", "12345", False),
        ("subtraction", "-5", "-5", True),
        ("subtraction", "5", "-5", False),
        ("translation", "Wasser", " wasser.", True),
        ("translation", "Wasser", '"Wasser"', True),
        ("translation", "Wasser", "das Wasser", False),
        ("copying", "apple bridge", "apple bridge", True),
        ("copying", "apple bridge", "Apple bridge", False),
        ("copying", "apple bridge", "apple bridge candle", False),
        ("uppercase", "APPLE", "Apple", False),
        ("date", "2001-02-03", "2001-02-03", True),
        ("date", "2001-02-03", "2001-2-3", False),
        ("sorting_numbers", "1, 2, 3", "1,2,3", True),
        ("sorting_numbers", "1, 2, 3", "[1, 2, 3]", True),
        ("sorting_numbers", "1, 2, 3", "1, 3, 2", False),
        ("sorting_words", "apple, bridge", "Apple, Bridge", True),
        ("reversal", "apple, bridge", "apple", False),
        ("as_json", JSON, '{"apple": 7}', True),
        ("as_json", JSON, '`{"apple":7}`', True),
        ("as_json", JSON, '{"apple": "7"}', False),
        ("as_json", JSON, '{"apple": 7}, done', False),
    ],
)
def test_rules(category: str, accepted: str, answer: str, right: bool) -> None:
    assert is_right(SanityItem("i", category, "p", (accepted,)), answer) is right


def test_a_failed_request_is_neither_right_nor_wrong() -> None:
    item = SHIPPED[0]
    assert outcome(item, "completions", item.accepted[0], "HTTP 500").correct is None
    assert outcome(item, "completions", item.accepted[0], "").correct is True
    assert outcome(item, "completions", "", "").correct is False


def test_another_endpoint_is_another_prompt() -> None:
    one, other = (outcome(SHIPPED[0], endpoint, "", "") for endpoint in ("completions", "chat"))
    assert one.prompt != other.prompt


def test_a_category_without_a_rule_is_refused() -> None:
    line = json.dumps({"id": "x-1", "category": "poetry", "prompt": "p", "accepted": ["a"]})
    with pytest.raises(ValueError, match="x-1: no rule for the category poetry"):
        parse_items(line)
