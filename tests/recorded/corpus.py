# SPDX-License-Identifier: Apache-2.0
"""The record: cases, what is kept of their results, and what differs from it on the present tree."""

from __future__ import annotations

import difflib
import hashlib
import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.recorded.play import Case, play, split

DATA = ROOT / "tests/data/recorded"
CASES, RESULTS = DATA / "cases.jsonl.xz", DATA / "results.jsonl.xz"
SHORT = 20
"""Values of which the JSON is at most so long are kept as they are, others as hashes."""
DEPTH = 4
"""A part is at most so deep: plan.hosts.NAME.servers."""
WHOLE = 8
"""Of every so many cases, all of the result is kept, so that a difference can be read."""
SIDES = {"does": "parts", "says": "texts"}
"""What may differ, and by which hashes it is known."""
Record = dict[str, Any]
"""id; parts: of what the result does, by their places, and texts: of all texts, as hashes; shown: what the operator
reads, as it is; whole: of some cases what it does, as it is."""


def read(path: Path, first: int = 0, step: int = 1) -> Iterator[dict[str, Any]]:
    """Return the lines of a file, each of a case; of every so many the first."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, islice(file, first, None, step))


def write(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of one line for each case."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{_text(line)}\n" for line in lines)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def record(case: Case, number: int) -> Record:
    """Return what is kept of a case's result on the present tree. number: its place in the file."""
    behaviour, texts = split(play(case))
    return {
        "id": case["id"],
        "parts": _parts(behaviour),
        "texts": _parts(_grouped(texts)),
        "shown": [texts.get(key, "") for key in ("msg", "printed")],
        **({"whole": behaviour} if number % WHOLE == 0 else {}),
    }


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _parts(value: Mapping[str, Any], place: str = "", depth: int = DEPTH) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        here = f"{place}.{key}" if place else str(key)
        if isinstance(item, dict) and item and depth > 1:
            found |= _parts(item, here, depth - 1)
        else:
            text = _text(item)
            found[here] = item if len(text) <= SHORT else hashlib.sha256(text.encode()).hexdigest()[:8]
    return found


def _grouped(texts: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return texts by the parts that have them: plan.hosts.NAME."""
    found: dict[str, list[Any]] = {}
    for place, text in texts.items():
        found.setdefault(".".join(place.split(".")[: DEPTH - 1]), []).append([place, text])
    return found


def differing(before: Record, after: Record, keys: Iterable[str] = SIDES.values()) -> list[str]:
    """Return the places of the parts and of the texts that two records do not share."""
    pairs = [(before[key], after[key]) for key in keys]
    return sorted(
        {name for old, new in pairs for name in {*old, *new} if old.get(name, ...) != new.get(name, ...)}
    )


def difference(before: Record, after: Record) -> list[str]:
    """Return what differs as lines for people: places, then what is kept of both sides as a diff."""
    places = [
        f"  {verb}: {', '.join(names)}"
        for verb, key in SIDES.items()
        if (names := differing(before, after, [key]))
    ]
    keys = ["shown"]
    if differing(before, after, ["parts"]) and "whole" in before and "whole" in after:
        keys.append("whole")
    old, new = (_lines([one[key] for key in keys]) for one in (before, after))
    lines = difflib.unified_diff(old, new, "recorded", "now", lineterm="", n=1)
    return [*places, *(f"    {line}" for line in lines)]


def _lines(value: Any) -> list[str]:
    """Return JSON as lines, and the lines of its texts as such."""
    return json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False).replace("\\n", "\n").splitlines()
