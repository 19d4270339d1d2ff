# SPDX-License-Identifier: Apache-2.0
"""The replica with a perturbed tensor is found, equal ones are not, and a release's shift is classified."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.nll import (
    BROKEN,
    OK,
    OUTLIER,
    SAME,
    SHIFTED,
    SUSPECT,
    SUSPICIOUS,
    UNMEASURED,
    NllLimits,
    PassageScore,
    judge_change,
    judge_replicas,
    mean_nll,
    typical,
)

from tests.worlds.catalogue import knowledge

LIMITS = NllLimits(**knowledge().accuracy["nll_limits"])


def passages(
    shift: float = 0.0, noise: float = 0.0, seed: int = 0, scatter: float = 0.0
) -> dict[str, PassageScore]:
    """28 passages of 80 tokens. shift: nat per token; scatter: of both signs, so that the mean stays."""
    truth, rng = random.Random(1), random.Random(seed)
    found = {}
    for number in range(28):
        mean = truth.uniform(1.5, 3.5) + shift + rng.gauss(0, noise) + scatter * (-1) ** number
        found[f"p{number}"] = PassageScore(80 * mean, 80)
    return found


def fleet(
    size: int, noise: float = 0.001, **odd: Mapping[str, PassageScore]
) -> dict[str, Mapping[str, PassageScore]]:
    return {f"n{number}": passages(noise=noise, seed=number) for number in range(size)} | odd


def states(
    replicas: Mapping[str, Mapping[str, PassageScore]], **more: Mapping[str, PassageScore]
) -> dict[str, str]:
    return {one.name: one.state for one in judge_replicas(replicas, LIMITS, more or None)}


@pytest.mark.parametrize("size", [3, 4, 8, 64])
@pytest.mark.parametrize("shift", [0.02, -0.02, 0.5])
def test_a_perturbed_replica_is_found_and_no_other(size: int, shift: float) -> None:
    found = states(fleet(size, n1=passages(shift, noise=0.001)))
    assert found.pop("n1") == OUTLIER
    assert set(found.values()) == {OK}


def test_a_shift_that_cancels_out_over_the_passages_is_found() -> None:
    odd = passages(scatter=0.05)
    assert mean_nll(odd) == pytest.approx(mean_nll(passages()))
    assert states(fleet(4, n2=odd))["n2"] == OUTLIER


def test_a_hundred_healthy_fleets_have_no_outlier() -> None:
    rng = random.Random(7)
    for _fleet in range(100):
        replicas = {f"n{number}": passages(noise=0.002, seed=rng.randrange(10**9)) for number in range(8)}
        assert set(states(replicas).values()) == {OK}


def test_a_fleet_that_scatters_by_itself_raises_its_own_limit() -> None:
    assert set(states(fleet(8, noise=0.02)).values()) == {OK}


def test_of_two_replicas_the_one_that_moved_is_the_outlier() -> None:
    pair = {"n0": passages(), "n1": passages(0.2)}
    assert states(pair, n0=passages(), n1=passages()) == {"n0": OK, "n1": OUTLIER}
    assert states(pair, n0=passages(0.2), n1=passages(0.2)) == {"n0": OUTLIER, "n1": OK}


def test_of_two_replicas_without_a_past_both_are_suspect() -> None:
    pair = {"n0": passages(), "n1": passages(0.2)}
    assert states(pair) == {"n0": SUSPECT, "n1": SUSPECT}
    assert states(pair, n0=passages(1.0), n1=passages(1.0)) == {"n0": SUSPECT, "n1": SUSPECT}
    assert states({"n0": passages(), "n1": passages(0.002)}) == {"n0": OK, "n1": OK}


@pytest.mark.parametrize("each", [2, 3, 8])
def test_of_two_hosts_the_one_with_wrong_weights_is_found(each: int) -> None:
    """All replicas of a host read the same files, so half of them are wrong, and no majority is right."""
    right = {f"n1/{number}": passages(noise=0.001, seed=number) for number in range(each)}
    wrong = {f"n2/{number}": passages(0.2, noise=0.001, seed=99 - number) for number in range(each)}
    now = right | wrong
    assert set(states(now).values()) == {SUSPECT}
    before = {name: passages(noise=0.001, seed=7 + number) for number, name in enumerate(now)}
    found = states(now, **before)
    assert {name for name, state in found.items() if state == OUTLIER} == set(wrong)
    assert {found[name] for name in right} == {OK}


def test_of_three_hosts_one_with_several_wrong_replicas_is_found_without_a_past() -> None:
    right = {f"n{number % 2}/{number}": passages(noise=0.001, seed=number) for number in range(4)}
    wrong = {f"n2/{number}": passages(0.2, noise=0.001, seed=99 - number) for number in range(2)}
    found = states(right | wrong)
    assert {name for name, state in found.items() if state == OUTLIER} == set(wrong)
    assert {found[name] for name in right} == {OK}


def test_one_replica_has_nothing_to_differ_from() -> None:
    (one,) = judge_replicas({"n0": passages()}, LIMITS)
    assert (one.state, one.distance) == (OK, None)


def test_what_gave_no_log_likelihoods_is_not_measured_and_changes_nothing() -> None:
    found = judge_replicas(fleet(3, n9={}), LIMITS)
    assert [(one.state, one.nll) for one in found if one.name == "n9"] == [(UNMEASURED, None)]
    assert {one.state for one in found if one.name != "n9"} == {OK}


@pytest.mark.parametrize(
    ("shift", "state"),
    [
        (0.0, SAME),
        (0.004, SAME),
        (0.02, SHIFTED),
        (-0.02, SHIFTED),
        (0.05, SUSPICIOUS),
        (0.2, BROKEN),
        (-0.2, BROKEN),
    ],
)
def test_a_release_against_the_one_before(shift: float, state: str) -> None:
    change = judge_change(passages(), passages(shift), LIMITS)
    assert change is not None
    assert change.state == state
    assert change.change == pytest.approx(shift)
    assert f"{shift:+.4f} nat" in change.text


def test_another_tokenizer_cannot_be_compared() -> None:
    other = {name: PassageScore(score.total, 70) for name, score in passages().items()}
    assert judge_change(passages(), other, LIMITS) is None
    assert judge_change({}, passages(), LIMITS) is None


def test_a_passage_counts_by_its_tokens() -> None:
    assert mean_nll({"a": PassageScore(10, 10), "b": PassageScore(90, 30)}) == pytest.approx(2.5)
    assert mean_nll({}) is None


def test_one_bad_replica_does_not_move_the_typical_score() -> None:
    middle = typical([passages(), passages(5.0), passages()])
    assert middle == passages()
