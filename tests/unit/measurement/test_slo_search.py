# SPDX-License-Identifier: Apache-2.0
"""The search for the highest load that keeps an SLO, on servers whose knee is known."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measurement.slo_search import (
    Probe,
    SearchResult,
    SearchRules,
    keeps,
    next_probe,
    wilson,
)

Measure = Callable[[float], Probe]
TARGET = 0.95


def search(measure: Measure, rules: SearchRules) -> tuple[SearchResult, list[Probe]]:
    history: list[Probe] = []
    while not isinstance(found := next_probe(history, rules), SearchResult):
        assert len(history) < rules.most_probes
        history.append(measure(found))
    return found, history


def exact(knee: float, errors: float = 0.0) -> Measure:
    """A server that keeps the SLO for every request up to its knee, and for none beyond."""
    return lambda load: Probe(load, 1000, 0, errors) if load <= knee else Probe(load, 0, 1000, errors)


def noisy(knee: float, requests: int, rng: random.Random, sigma: float = 0.2, power: float = 2.0) -> Measure:
    """A server whose latency is log-normal, and grows with a power of the load: at the knee TARGET keeps its limit."""
    margin = statistics.NormalDist().inv_cdf(TARGET)

    def measure(load: float) -> Probe:
        level = (margin * sigma - power * math.log(load / knee)) / sigma
        kept = sum(rng.gauss(0, 1) < level for _ in range(requests))
        return Probe(load, kept, requests - kept)

    return measure


@pytest.mark.parametrize("knee", [16.0, 17.9, 31.0, 100.0, 333.0, 500.0])
@pytest.mark.parametrize("whole", [True, False])
def test_a_known_knee_is_found_in_ten_probes(knee: float, whole: bool) -> None:
    found, history = search(exact(knee), SearchRules(16, whole))
    assert found.load is not None
    assert found.low is not None
    assert found.high is not None
    assert len(history) <= 10
    assert knee / 1.05 - whole <= found.load <= knee
    assert found.low == found.load
    assert knee < found.high <= max(found.low * 1.05, found.low + whole)


@pytest.mark.deep
@pytest.mark.parametrize("whole", [True, False])
def test_acceptance(whole: bool) -> None:
    """Within 5 % of the knee in at most ten probes, and the interval contains the knee in at least 90 %."""
    rng = random.Random(4)
    close, covered, probes = [], [], []
    for _ in range(200):
        knee = math.exp(rng.uniform(math.log(16), math.log(400)))
        found, history = search(noisy(knee, 1000, rng), SearchRules(16, whole, TARGET))
        assert found.load is not None
        probes.append(len(history))
        close.append(abs(found.load / knee - 1) <= 0.05 or (whole and abs(found.load - knee) <= 1))
        covered.append((found.low or 0) <= knee <= (found.high or math.inf))
    share, cover = statistics.fmean(close), statistics.fmean(covered)
    print(f"whole {whole}: within 5 % {share:.1%}, covered {cover:.1%}, probes up to {max(probes)}")
    assert max(probes) <= 10
    assert share >= 0.95
    assert cover >= 0.90


def test_it_searches_downwards_too() -> None:
    found, history = search(exact(5.0), SearchRules(64, whole=True))
    assert [probe.load for probe in history] == [64, 32, 16, 8, 4, 6, 5]
    assert found == SearchResult(5, 5, 6, 7, "the loads around the limit are close")


@pytest.mark.parametrize(
    ("knee", "rules", "result"),
    [
        (0.5, SearchRules(4, whole=True), SearchResult(None, None, 1, 3, "the lowest load breaks the SLO")),
        (
            99.0,
            SearchRules(4, whole=True, most=16),
            SearchResult(16, 16, None, 3, "the highest load keeps the SLO"),
        ),
        (
            99.0,
            SearchRules(4, whole=False, least=3, most_probes=2),
            SearchResult(8, 8, None, 2, "2 probes were made"),
        ),
    ],
)
def test_ends_without_a_knee(knee: float, rules: SearchRules, result: SearchResult) -> None:
    assert search(exact(knee), rules)[0] == result


def test_a_load_with_errors_is_too_high() -> None:
    rules = SearchRules(4, whole=True)
    assert keeps(Probe(4, 100, 0, 0.01), rules)
    assert not keeps(Probe(4, 100, 0, 0.011), rules)
    assert not keeps(Probe(4, 0, 0), rules)
    assert next_probe([Probe(4, 100, 0), Probe(8, 100, 0, 0.2)], rules) == 6


def test_luck_beyond_the_knee_does_not_count() -> None:
    rules = SearchRules(4, whole=True)
    history = [Probe(4, 1000, 0), Probe(8, 0, 1000), Probe(16, 1000, 0)]
    assert next_probe(history, rules) == 6


# Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17, 1998, table I.
@pytest.mark.parametrize(
    ("kept", "decided", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)],
)
def test_wilsons_interval_is_the_published_one(kept: int, decided: int, low: float, high: float) -> None:
    assert wilson(kept, decided) == pytest.approx((low, high), abs=5e-5)
    assert wilson(0, 0) == (0.0, 1.0)


def test_few_requests_are_never_sure() -> None:
    few = lambda load: Probe(load, 20, 0) if load <= 20 else Probe(load, 0, 20)  # noqa: E731
    found, _ = search(few, SearchRules(16, whole=True, target=0.99))
    assert (found.load, found.low, found.high) == (20, None, 21)
