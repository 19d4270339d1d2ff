# SPDX-License-Identifier: Apache-2.0
"""Check that a text has the form in which vLLM's client reads a data set. Pure.

The client itself ends with a KeyError, or leaves out what it does not understand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def wrong_format(dataset: str, name: str, text: str) -> str:
    """Return what is wrong with a file that does not have the form of its data set, and where; "" if nothing is.

    `dataset` is one of FORMATS, and `name` the file's.
    """
    return next(FORMATS[dataset](name, text), "")


def _sharegpt(_name: str, text: str) -> Iterator[str]:
    """Yield what is wrong with a list of {"conversations": [{"value": a prompt}, {"value": its answer}, …]}.

    The client leaves out conversations with fewer turns.
    """
    try:
        entries = json.loads(text)
    except ValueError as error:
        yield f"not JSON: {error}"
        return
    if not isinstance(entries, list):
        yield "not a list of conversations"
        return
    usable = 0
    for number, entry in enumerate(entries, 1):
        turns = entry.get("conversations", ()) if isinstance(entry, Mapping) else None
        if not isinstance(turns, (list, tuple)):
            yield f'entry {number} is not a map with "conversations", a list of turns'
            return
        for turn, item in enumerate(turns[:2] if len(turns) > 1 else (), 1):
            if not isinstance(item, Mapping) or not isinstance(item.get("value"), str):
                yield f'entry {number}, turn {turn}: it has no text "value"'
        usable += len(turns) > 1
    if not usable:
        yield f"none of its {len(entries)} entries has a conversation of two turns, a prompt and its answer"


def _custom(name: str, text: str) -> Iterator[str]:
    if not name.endswith(".jsonl"):
        yield "its name must end in .jsonl"
    for number, item in _lines(text):
        if not isinstance(item, Mapping) or not isinstance(item.get("prompt"), str):
            yield f'line {number} is not a map with "prompt", a text'


def _spec_bench(_name: str, text: str) -> Iterator[str]:
    for number, item in _lines(text):
        turns = item.get("turns") if isinstance(item, Mapping) else None
        if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
            yield f'line {number} is not a map with "turns", a list of texts'


def _lines(text: str) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line of JSON; for an invalid line, the error as its value."""
    found = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            found = True
            try:
                yield number, json.loads(line)
            except ValueError as error:
                yield number, error
    if not found:
        yield 1, None


FORMATS: Mapping[str, Callable[[str, str], Iterator[str]]] = {
    "sharegpt": _sharegpt,
    "custom": _custom,
    "spec_bench": _spec_bench,
}
