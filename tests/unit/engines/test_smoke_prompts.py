# SPDX-License-Identifier: Apache-2.0
"""Garbage is what the new engine says where the old one did well."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.bench.smoke_run import endpoint_of, reply
from ansible_collections.instinct.fleet.plugins.module_utils.engines.smoke_prompts import (
    PROMPTS,
    Reply,
    SmokeResult,
    degenerate,
    judge,
)
from ansible_collections.instinct.fleet.plugins.module_utils.serving.health import ProbeAnswer

from tests.worlds.smoke_answers import BANGS, DEAD, GOOD


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        (" \n\n ", "empty"),
        ("!" * 32, "'!' over and over"),
        ("! " * 16, "over and over"),
        ("0000000000000000", "'0' over and over"),
        ("abababababababab", "'ab' over and over"),
        ("the the the the the the the the the", "over and over"),
        ("\ufffd\ufffd\ufffd x \ufffd\ufffd", "unreadable"),
        ("Paris.", ""),
        ("!!!", ""),  # short ones are what they are
        ("8, 9, 10, 11, 12, 13, 14, 15", ""),
        ("blue red green blue red green blue", ""),
        ("東京です。人口は千三百万人で", ""),
        ("caf\ufffd, na\ufffdve and plenty of other text beside them", ""),
    ],
)
def test_degenerate(text: str, why: str) -> None:
    assert (why in degenerate(text)) if why else degenerate(text) == ""


NONSENSE = [Reply("qx zv" * 6) for _ in PROMPTS]
OTHER = [Reply(f"xyzzy {number} something else") for number in range(len(PROMPTS))]


def mix(base: Sequence[Reply], other: Sequence[Reply], count: int) -> list[Reply]:
    """The first `count` replies are of `other`."""
    return [*other[:count], *base[count:]]


# Name, the old one's two rounds, the new one, same model, what is wrong, with which words.
CASES = [
    ("equal", GOOD, GOOD, GOOD, True, "", ""),
    ("equal nonsense of an untrained model", NONSENSE, NONSENSE, NONSENSE, True, "", ""),
    ("an old one that was no better", BANGS, BANGS, BANGS, True, "", ""),
    ("an old one that failed", DEAD, DEAD, GOOD, True, "", ""),
    ("all one token", GOOD, GOOD, BANGS, True, "garbage", "12 of 12 answers are degenerate, such as 'The capital"),
    ("all one token, nonsense before", NONSENSE, NONSENSE, BANGS, True, "garbage", "answers are degenerate"),
    ("two of twelve are one token", GOOD, GOOD, mix(GOOD, BANGS, 2), True, "", ""),
    ("three of twelve are one token", GOOD, GOOD, mix(GOOD, BANGS, 3), True, "garbage", "3 of 12"),
    ("another model, one token", GOOD, GOOD, BANGS, False, "garbage", "degenerate"),
    ("no answers", GOOD, GOOD, DEAD, True, "broken", "12 of 12 prompts got no answer: HTTP 500"),
    ("few answers", GOOD, GOOD, mix(DEAD, GOOD, 4), True, "broken", "8 of 12"),
    ("known answers wrong", GOOD, GOOD, mix(GOOD, OTHER, 4), True, "garbage", "4 of 11 known answers are wrong"),
    ("one known answer wrong", GOOD, GOOD, mix(GOOD, OTHER, 1), True, "", ""),
    ("other nonsense", NONSENSE, NONSENSE, OTHER, True, "garbage", "only 0% of the answers begin like the old"),
    ("other nonsense of another model", NONSENSE, NONSENSE, OTHER, False, "", ""),
    ("an old one that agrees with itself no more", NONSENSE, mix(NONSENSE, GOOD, 7), OTHER, True, "", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "new", "same", "kind", "words"),
    [row[1:] for row in CASES],
    ids=[row[0] for row in CASES],
)
def test_judgements(
    first: list[Reply], second: list[Reply], new: list[Reply], same: bool, kind: str, words: str
) -> None:
    found = judge(first, second, new, same)
    reported = {"broken": found.broken, "garbage": found.garbage}
    assert {name for name, why in reported.items() if why} == ({kind} if kind else set())
    assert words in reported.get(kind, "")


def test_what_is_too_little_to_stop_is_told() -> None:
    found: SmokeResult = judge(GOOD, GOOD, mix(GOOD, BANGS, 2), True)
    assert found.warnings == (
        "2 of 12 answers are degenerate, such as 'The capital of France is' → '!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!'",
    )
    assert [row.wrong for row in found.rows[:3]] == ["'!' over and over", "'!' over and over", ""]


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"choices": [{"text": " Paris"}]}, Reply(" Paris")),
        ({"choices": [{"message": {"role": "assistant", "content": "Paris"}}]}, Reply("Paris")),
        ({"choices": [{"message": {"content": None, "reasoning_content": "The user"}}]}, Reply("The user")),
        ({"choices": [{"message": {"content": "Rome", "reasoning": "Hm. "}}]}, Reply("Hm. Rome")),
        ({"choices": []}, Reply(error='no text in the answer: {"choices": []}')),
    ],
)
def test_replies(answer: object, found: Reply) -> None:
    assert reply(ProbeAnswer(0, 200, json.dumps(answer))) == found


def test_errors_are_replies() -> None:
    assert reply(ProbeAnswer(0, 500, "dead")) == Reply(error="HTTP 500: dead")
    assert reply(ProbeAnswer(0, 0, "POST /v1/completions: refused")) == Reply(
        error="POST /v1/completions: refused"
    )


@pytest.mark.parametrize(
    ("instance", "host"),
    [
        ({"server": {"host": "10.0.0.7"}}, "10.0.0.7"),
        ({"argv": ["vllm", "serve", "m", "--host", "0.0.0.0"]}, "127.0.0.1"),
        ({"argv": ["vllm", "serve", "m"]}, "127.0.0.1"),
    ],
)
def test_the_instance_is_asked_where_it_listens(instance: dict[str, object], host: str) -> None:
    found = endpoint_of({"name": "a-0", "port": 8000, "served_model": "a", **instance}, "key")
    assert (found.host, found.port, found.api_key) == (host, 8000, "key")
