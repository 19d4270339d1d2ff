# SPDX-License-Identifier: Apache-2.0
"""Does a release answer as rightly as the one before: what stops it, and how often simulated ones are stopped.

`python -m tests.unit.canary.test_accuracy` prints how often, as docs/canary.md shows it.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.nll import (
    NllLimits,
    PassageScore,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.pairing import ItemOutcome
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.results import (
    SANITY,
    DeploymentRun,
    TaskRun,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.canary.accuracy import (
    AccuracyComparison,
    AccuracyEvidence,
    compare_accuracy,
    read_accuracy,
)

from tests.worlds.accuracy_answers import ITEMS, PASSAGES, entry
from tests.worlds.catalogue import knowledge

LIMITS = NllLimits(**knowledge().accuracy["nll_limits"])
FP8 = "--quantization fp8"
TOLERANCE = 2.0


def evidence(**about: Any) -> AccuracyEvidence:
    """What one release answered; about: as of `entry`."""
    return read_accuracy({"instances": [entry(**about)]}, ITEMS, LIMITS)


def release(**about: Any) -> DeploymentRun:
    run = evidence(**about).run
    assert run
    return run


def compared(old: dict[str, Any], new: dict[str, Any], tolerance: float = TOLERANCE) -> AccuracyComparison:
    return compare_accuracy(release(**old), evidence(**new), tolerance)


# What the old release and the new one are; why it is stopped ("" if it is not), and what is warned of.
CASES: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    ("equal", {}, {}, "", ""),
    ("both know little", {"wrong": 280}, {"wrong": 280}, "", ""),
    ("better", {"wrong": 30}, {}, "", ""),
    ("6 items are 2 points", {}, {"wrong": 6}, "", "worth a run of accuracy.yml, but not enough to stop"),
    ("7 items are more", {}, {"wrong": 7}, "sanity set 2.33 points worse (interval of the loss 1.2", ""),
    ("15 items", {}, {"wrong": 15}, "sanity set 5.00 points worse", ""),
    ("another release of vLLM", {}, {"wrong": 15, "vllm": "0.2", "image": "new"}, "sanity set 5.00 points", ""),
    ("a few failed requests are not scored", {}, {"failed": 3}, "",
     "3 of 300 items of the sanity set got no answer and are not scored: HTTP 500: x"),
    ("but may hide a loss", {}, {"failed": 3}, "",
     "sanity set not clear: equal (interval of the loss -0.90 to 0.90, tolerance 2, p = 1.000, n = 297); with 3 more"),
    ("nor those of the old release", {"failed": 60}, {"wrong": 60}, "", "with 60 more items, unanswered in one of"),
    ("another model", {}, {"wrong": 90, "model": "other"}, "",
     "less accurate, but ignored, because the model, its commit or its quantization changed: sanity set 30.00 points"),
    ("another commit", {}, {"wrong": 90, "shift": 0.2, "commit": "beef"}, "",
     "points worse (interval of the loss 25.84 to 34.51, tolerance 2, p = 0.000, n = 300); NLL +0.2000"),
    ("another quantization", {"quantization": "of the checkpoint"}, {"wrong": 90, "quantization": FP8}, "",
     "but ignored"),
    ("it is named", {"quantization": "of the checkpoint"}, {"quantization": FP8}, "",
     f"quantization: of the checkpoint → {FP8}"),
    ("the old one did not say", {}, {"wrong": 15, "quantization": "of the checkpoint"}, "sanity set 5.00", ""),
    ("another endpoint", {}, {"wrong": 90, "endpoint": "chat", "shift": None}, "",
     "the sanity set was not compared: 300 of 300 items were sent with another prompt"),
    ("kernels round otherwise", {}, {"shift": 0.02}, "", ""),
    ("a broken kernel", {}, {"shift": 0.04}, "NLL +0.0400 nat per token, more than another weight format", ""),
    ("a broken tensor", {}, {"shift": 0.2}, "NLL +0.2000 nat per token, as with a broken kernel or tensor", ""),
    ("the old one was broken", {"shift": 0.2}, {}, "", "NLL -0.2000 nat per token"),
    ("no log likelihoods any more", {}, {"shift": None}, "", "it gives no log likelihoods of prompts"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "less", "warning"), [row[1:] for row in CASES], ids=[r[0] for r in CASES]
)
def test_what_stops_a_release(old: dict[str, Any], new: dict[str, Any], less: str, warning: str) -> None:
    found = compared(old, new)
    assert less in "; ".join(found.less)
    assert bool(found.less) == bool(less)
    assert warning in "; ".join(found.warnings)
    assert bool(found.warnings) == bool(warning)
    assert not found.unanswered


def test_a_larger_tolerance_accepts_a_larger_loss() -> None:
    assert compared({}, {"wrong": 20}, 6).less
    found = compared({}, {"wrong": 20}, 7)
    assert not found.less
    assert "6.67 points worse" in found.warnings[0]


def test_one_that_answers_no_item_is_not_called_inaccurate() -> None:
    found = compared({}, {"failed": 300})
    assert (
        found.unanswered == "300 of 300 items of the sanity set got no answer and are not scored: HTTP 500: x"
    )
    assert not found.less
    assert not compared({"failed": 300}, {"failed": 300}).unanswered


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            {},
            {"failed": 4},
            "sanity: 4 of 300 requests failed, more than 1% (addition-00, addition-01, addition-02, ",
        ),
        ({}, {"failed": 4, "model": "other"}, "sanity: 4 of 300 requests failed"),
        ({}, {"failed": 150}, "sanity: 150 of 300 requests failed"),
        ({"failed": 4}, {"failed": 7}, ""),  # three more than before
        ({"failed": 4}, {"failed": 8}, "sanity: 4 of 300 requests failed"),
        (
            {},
            {"failed_passages": 1},
            "canary/llama-0: gave no log likelihoods of 1 of 28 passages, and the previous ",
        ),
        ({"failed_passages": 1}, {"failed_passages": 1}, ""),
        ({}, {"failed_passages": 28}, ""),  # an engine may refuse them for its options
    ],
)
def test_one_that_fails_where_the_old_release_answers_is_not_called_equal(
    old: dict[str, Any], new: dict[str, Any], why: str
) -> None:
    found = compared(old, new)
    assert found.unanswered.startswith(why)
    assert bool(found.unanswered) == bool(why)
    assert found.warnings


def test_what_was_not_asked_is_not_compared() -> None:
    assert compare_accuracy(None, evidence(wrong=90), TOLERANCE) == AccuracyComparison()
    dead = read_accuracy({"failed": True, "msg": "no route to host"}, ITEMS, LIMITS)
    assert dead.run is None
    found = compare_accuracy(release(), dead, TOLERANCE)
    assert found.warnings == ("the accuracy could not be measured: no route to host",)
    embeds = read_accuracy({"instances": [entry((), shift=None, note="generates no text")]}, ITEMS, LIMITS)
    assert (embeds.run, embeds.notes) == (None, ())


def test_the_items_that_only_the_old_release_has_right_are_listed() -> None:
    found = compared({"wrong": 2}, {"wrong": 5})
    assert [(lost.item.id, lost.answer) for lost in found.lost] == [
        (item.id, "no idea") for item in ITEMS[2:5]
    ]
    assert found.scores == ((298, 300), (295, 300))
    assert found.to_json()["lost"][0]["accepted"] == list(ITEMS[2].accepted)
    assert ITEMS[2].question == "What is 269 + 37?"


# ---- simulated releases ----------------------------------------------------------------------------


def stopped(tries: int, loss: float, flips: float, noise: float = 0.002, seed: int = 20261124) -> float:
    """Return the share of releases that are stopped.

    loss: share of the items that the new release does not answer rightly any more. flips: share of the items whose
    answer is right in one of two runs of an equal release, and wrong in the other. noise: of a passage, nat per token.
    """
    rng, count = random.Random(seed), 0

    def asked(knows: list[bool]) -> DeploymentRun:
        outcomes = {
            item.doc: ItemOutcome("p", known != (rng.random() < flips / 2))
            for item, known in zip(ITEMS, knows, strict=True)
        }
        passages = {one["id"]: PassageScore(70 * (2 + rng.gauss(0, noise)), 70) for one in PASSAGES}
        return DeploymentRun({}, {SANITY: TaskRun(outcomes)}, {"canary": passages})

    for _try in range(tries):
        truth = [rng.random() < 0.9 for _item in ITEMS]
        worse = [known and rng.random() >= loss / 0.9 for known in truth]
        now = AccuracyEvidence(asked(worse), LIMITS)
        count += bool(compare_accuracy(asked(truth), now, TOLERANCE).less)
    return count / tries


@pytest.mark.parametrize("flips", [0.0, 0.01, 0.04])
def test_equal_releases_are_not_stopped(flips: float) -> None:
    assert stopped(150, 0.0, flips) <= 0.01


@pytest.mark.parametrize(
    ("loss", "flips", "share"), [(0.05, 0.0, 0.97), (0.05, 0.01, 0.85), (0.1, 0.04, 0.97)]
)
def test_worse_ones_are(loss: float, flips: float, share: float) -> None:
    assert stopped(60, loss, flips) >= share


@pytest.mark.deep
@pytest.mark.parametrize("flips", [0.0, 0.01, 0.02, 0.04, 0.08])
def test_equal_releases_are_not_stopped_over_many_tries(flips: float) -> None:
    assert stopped(2000, 0.0, flips) <= 0.01


def main() -> None:
    """Print the table of docs/canary.md."""
    losses = (0.0, 0.02, 0.03, 0.05, 0.07, 0.1)
    print(f"| Answers that flip by chance | {' | '.join(f'{100 * loss:g} points' for loss in losses)} |")
    for flips in (0.0, 0.01, 0.02, 0.04, 0.08):
        print(f"| {flips:.0%} | {' | '.join(f'{stopped(2000, loss, flips):.1%}' for loss in losses)} |")


if __name__ == "__main__":
    main()
