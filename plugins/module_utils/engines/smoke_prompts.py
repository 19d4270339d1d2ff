# SPDX-License-Identifier: Apache-2.0
"""Judge whether a new engine answers a dozen prompts as well as the old one. Pure; vllm_smoke sends them.

No answer is judged by itself: a small or untrained model always answers nonsense. A prompt counts if the old engine
answered it well both times and the new one does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOKENS = 32
"""Length limit of an answer."""
SHARE = 0.25
"""Fraction of the prompts that must go wrong: fewer can be chance, because other kernels round differently."""
MAX_DISAGREEMENT = 0.5
"""How far the new engine's agreement with the old one may fall below the old engine's with itself."""

_FIRST = 8  # length in characters of the prefix that is compared: about two tokens
_SHORTEST = 12  # characters; shorter text is not checked for repetition
_LONGEST_UNIT = 4  # characters of a repeated unit
_WORDS = 8  # equal words in a row


@dataclass(frozen=True)
class Prompt:
    """A prompt, and the texts of which a right answer contains one; no texts if any answer is right."""

    name: str
    text: str
    right: tuple[str, ...] = ()


PROMPTS = (
    Prompt("capital", "The capital of France is", ("paris",)),
    Prompt("planet", "The largest planet of the solar system is", ("jupiter",)),
    Prompt("sum", "12 + 30 =", ("42",)),
    Prompt("product", "Question: What is 7 times 8?\nAnswer:", ("56", "fifty-six")),
    Prompt("count", "1, 2, 3, 4, 5, 6, 7,", ("8",)),
    Prompt("week", "Monday, Tuesday, Wednesday, Thursday,", ("friday",)),
    Prompt("repetition", "red green blue red green blue red green blue red green", ("blue",)),
    Prompt("python", "def add(a, b):\n    return", ("a + b", "a+b", "sum")),
    Prompt("sql", "-- names of all users\nSELECT", ("from", "name")),
    Prompt("german", "Die Hauptstadt von Italien ist", ("rom",)),
    Prompt("japanese", "日本の首都は", ("東京",)),
    Prompt("story", "Once upon a time, in a village by the sea, there lived"),
)


@dataclass(frozen=True)
class Reply:
    """An answer, or in `error` why there is none."""

    text: str = ""
    error: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the reply as baselines and canary.json have it."""
        return {"text": self.text, "error": self.error}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reply:
        return cls(str(data.get("text") or ""), str(data.get("error") or ""))


@dataclass(frozen=True)
class PromptComparison:
    """One prompt's answers, and what is wrong with the new one ("" if nothing)."""

    prompt: Prompt
    old: Reply
    new: Reply
    wrong: str = ""


@dataclass(frozen=True)
class SmokeResult:
    """The outcome. `broken`: missing answers; `garbage`: bad answers; both are empty if all is well."""

    broken: str
    garbage: str
    warnings: tuple[str, ...]
    rows: tuple[PromptComparison, ...]
    self_agreement: float | None
    agreement: float | None


def degenerate(text: str) -> str:
    """Return why a text is degenerate (empty, unreadable, repeating itself), or "" if it is not."""
    said = text.strip()
    if not said:
        return "empty"
    if said.count("\ufffd") > max(2, len(said) // 10):
        return "unreadable characters"
    if len(said) >= _SHORTEST:
        for length in range(1, _LONGEST_UNIT + 1):
            if said[length:] == said[:-length]:
                return f"{said[:length]!r} over and over"
    words = said.split()
    if len(words) >= _WORDS and len(set(words)) == 1:
        return f"{words[0]!r} over and over"
    return ""


def is_right(prompt: Prompt, reply: Reply) -> bool:
    """Return whether the reply contains a known answer; False for prompts without one."""
    return any(text in reply.text.casefold() for text in prompt.right)


def agreement(one: Sequence[Reply], other: Sequence[Reply]) -> float:
    """Return the fraction of prompts (0 to 1) whose two answers begin alike. Raise ValueError without prompts."""
    if not one or len(one) != len(other):
        raise ValueError("an agreement needs the same prompts on both sides")
    return sum(map(_alike, one, other)) / len(one)


def _alike(one: Reply, other: Reply) -> bool:
    return not one.error and not other.error and one.text.strip()[:_FIRST] == other.text.strip()[:_FIRST]


def judge(
    first: Sequence[Reply], second: Sequence[Reply], new: Sequence[Reply], same_model: bool
) -> SmokeResult:
    """Judge the new engine's replies to PROMPTS against both rounds of the old engine's.

    same_model: model and commit equal the old engine's, so that first tokens should agree.
    """
    rows = []
    fine = right = 0
    for prompt, one, two, now in zip(PROMPTS, first, second, new):
        wrong = ""
        if not any(reply.error or degenerate(reply.text) for reply in (one, two)):
            fine += 1
            wrong = "no answer" if now.error else degenerate(now.text)
        if is_right(prompt, one) and is_right(prompt, two):
            right += 1
            wrong = wrong or ("" if is_right(prompt, now) else "wrong")
        rows.append(PromptComparison(prompt, one, now, wrong))
    itself = agreement(first, second) if first and len(first) == len(second) else None
    with_old = agreement(first, new) if same_model and len(first) == len(new) and first else None
    unanswered = [row for row in rows if row.wrong == "no answer"]
    senseless = [row for row in rows if row.wrong not in ("", "no answer", "wrong")]
    mistaken = [row for row in rows if row.wrong == "wrong"]
    broken = garbage = ""
    warnings: list[str] = []
    if unanswered:
        what = f"{len(unanswered)} of {fine} prompts got no answer: {unanswered[0].new.error}"
        if len(unanswered) >= _limit(fine, 1):
            broken = what
        else:
            warnings.append(what)
    bad: list[str] = []
    for found, of, least, say in (
        (senseless, fine, 1, "answers are degenerate"),
        (mistaken, right, 2, "known answers are wrong"),
    ):
        if found:
            row = found[0]
            what = f"{len(found)} of {of} {say}, such as {_short(row.prompt.text)} → {_short(row.new.text)}"
            (bad if len(found) >= _limit(of, least) else warnings).append(what)
    if itself is not None and with_old is not None and not broken and with_old < itself - MAX_DISAGREEMENT:
        bad.append(
            f"only {with_old:.0%} of the answers begin like the old engine's, which agreed with itself on {itself:.0%}"
        )
    garbage = "; ".join(bad)
    return SmokeResult(broken, garbage, tuple(warnings), tuple(rows), itself, with_old)


def _limit(of: int, least: int) -> int:
    return max(least, math.ceil(SHARE * of))


def _short(text: str, length: int = 40) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= length else text[: length - 1] + "…")
