# SPDX-License-Identifier: Apache-2.0
"""Score answers to the shipped items by one exact rule for each category. Pure.

The items are catalog/accuracy/sanity.jsonl, written by catalog/tools/sanity.py. The answer is the first line that is
not empty: a base model continues with questions of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ....module_utils.common.hashing import text_hash
from .pairing import ItemOutcome

ANSWER_TOKENS = 40
"""Maximum length of an answer: the longest accepted one has about 25 tokens."""

_NUMBER = re.compile(r"-?\d[\d,]*")


@dataclass(frozen=True)
class SanityItem:
    """A question, its category, and the accepted answers; these are patterns in the category as_json."""

    id: str
    category: str
    prompt: str
    accepted: tuple[str, ...]

    @cached_property
    def doc(self) -> str:
        """Return the item's hash, by which runs are paired."""
        return text_hash(json.dumps([self.id, self.category, self.prompt, self.accepted]))[:16]

    @property
    def question(self) -> str:
        """Return the question itself, without the answered ones before it."""
        return self.prompt.rpartition("Q: ")[2].removesuffix("\nA:")


def parse_items(text: str) -> tuple[SanityItem, ...]:
    """Read a file of items, one JSON object a line. Raise ValueError for a category without a rule."""
    found = []
    for line in filter(None, text.splitlines()):
        data = json.loads(line)
        if data["category"] not in RULES:
            raise ValueError(f"{data['id']}: no rule for the category {data['category']}")
        found.append(SanityItem(data["id"], data["category"], data["prompt"], tuple(data["accepted"])))
    return tuple(found)


def is_right(item: SanityItem, answer: str) -> bool:
    """Return whether an answer is right by the rule of the item's category."""
    line = next((line.strip() for line in answer.splitlines() if line.strip()), "")
    rule = RULES[item.category]
    return any(rule(line, accepted) for accepted in item.accepted)


def outcome(item: SanityItem, endpoint: str, text: str, error: str) -> ItemOutcome:
    """Return an item's outcome; `endpoint` (completions or chat) is part of how it was asked."""
    prompt = text_hash(f"{endpoint}\n{ANSWER_TOKENS}\n{item.prompt}")[:16]
    return ItemOutcome(prompt, None if error else is_right(item, text))


def _number(line: str, accepted: str) -> bool:
    """The line's first number; thousands may have commas."""
    found = _NUMBER.search(line)
    return found is not None and found[0].replace(",", "") == accepted


def _word(line: str, accepted: str) -> bool:
    """The whole line, without regard to case, quotes and a final stop."""
    return line.strip("\"'`*. ").casefold() == accepted.casefold()


def _text(line: str, accepted: str) -> bool:
    """The whole line, letter by letter; only quotes around it are ignored."""
    return line.strip("\"'`") == accepted


def _list(line: str, accepted: str) -> bool:
    """The elements in their order, without regard to case, brackets and spaces around them."""
    return _elements(line) == _elements(accepted)


def _elements(line: str) -> list[str]:
    return [element.strip(" \"'`").casefold() for element in line.strip("[]().` ").split(",")]


def _pattern(line: str, accepted: str) -> bool:
    """The whole line matches the pattern."""
    return bool(re.fullmatch(accepted, line.strip("` ")))


RULES: Mapping[str, Callable[[str, str], bool]] = {
    **dict.fromkeys(
        ("addition", "subtraction", "multiplication", "counting", "comparison", "sequence", "lookup"), _number
    ),
    **dict.fromkeys(("copying", "uppercase", "date"), _text),
    **dict.fromkeys(("sorting_numbers", "sorting_words", "reversal"), _list),
    "translation": _word,
    "as_json": _pattern,
}
"""The rule of each category: whether a line is an accepted answer."""
