# SPDX-License-Identifier: Apache-2.0
"""Published scores are shown beside ours, and decide only where the key is equal."""

from __future__ import annotations

import math
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.expectations import (
    ABOVE,
    BELOW,
    WITHIN,
    ScoreKey,
    compare,
)

from tests.worlds.catalogue import knowledge

SHIPPED = knowledge().accuracy["expectations"]
LLAMA = "meta-llama/Llama-3.1-405B-Instruct"
COMMIT = "069992c75aed59df00ec06c17177e76c63296a26"


def own(**more: Any) -> dict[str, Any]:
    found = {"model": "m/m", "task": "t", "commit": "c", "task_hash": "h", "shots": 5, "template": "none"}
    return {**found, "precision": "FP8", "kind": "score", "score": 0.9, "n": 1319, "source": "s", **more}


def key(**more: Any) -> ScoreKey:
    return ScoreKey(
        **{
            "model": "m/m",
            "task": "t",
            "commit": "c",
            "task_hash": "h",
            "shots": 5,
            "template": "none",
            **more,
        }
    )


@pytest.mark.parametrize(
    ("right", "state"), [(1187, WITHIN), (1150, WITHIN), (1100, BELOW), (1250, ABOVE), (0, BELOW)]
)
def test_the_state_regards_both_intervals(right: int, state: str) -> None:
    (note,) = compare([own()], key(), right, 1319)
    assert (note.state, note.decides) == (state, True)


def test_a_minimum_is_missed_only_by_the_whole_interval() -> None:
    (note,) = compare([own(kind="minimum", n=None)], key(), 1180, 1319)
    assert note.state == WITHIN
    (note,) = compare([own(kind="minimum", n=None)], key(), 1150, 1319)
    assert note.state == BELOW


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"commit": "d"}, "commit of the model"),
        ({"task_hash": None}, "task"),
        ({"shots": 8}, "number of examples"),
        ({"template": "chat"}, "chat template"),
    ],
)
def test_another_key_is_information_only(change: dict[str, Any], words: str) -> None:
    (note,) = compare([own()], key(**change), 0, 1319)
    assert note.differs == (words,)
    assert not note.decides
    assert f"information only, other or unknown: {words}" in note.text


def test_what_a_publication_does_not_name_is_never_equal() -> None:
    (note,) = compare([own(commit=None)], key(commit=None), 1187, 1319)
    assert not note.decides


def test_another_model_or_task_is_not_shown() -> None:
    assert compare([own()], key(model="m/n"), 1, 2) == compare([own()], key(task="u"), 1, 2) == ()


def test_the_values_of_the_seeds_are_there_and_their_n_explains_their_errors() -> None:
    """sqrt(p (1 - p) / n) are the errors that AMD printed."""
    printed = {0.8466: 0.0135, 0.848: 0.0134, 0.9052: 0.0081, 0.8954: 0.0084}
    found = {item["score"]: item["n"] for item in SHIPPED if item["score"] in printed}
    assert set(found) == set(printed)
    for score, n in found.items():
        assert math.sqrt(score * (1 - score) / n) == pytest.approx(printed[score], abs=6e-5)


def test_every_expectation_is_of_a_known_task() -> None:
    tasks = knowledge().accuracy["tasks"]
    assert {item["task"] for item in SHIPPED} <= set(tasks)


def test_the_shipped_ones_are_information() -> None:
    notes = compare(SHIPPED, ScoreKey(LLAMA, "mmlu_pro_biology", COMMIT, "h", 5, "none"), 600, 717)
    assert [note.state for note in notes] == [WITHIN, WITHIN]
    assert all(note.differs == ("task", "chat template") for note in notes)
