# SPDX-License-Identifier: Apache-2.0
"""The search for the highest load that keeps an SLO, on servers whose knee is known."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.goodput import (
    LatencyLimits,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.requests import (
    LoadPoint,
    read_requests,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.slo_search import (
    Probe,
    SearchResult,
    SearchRules,
    keeps,
    next_probe,
    read_probe,
)

Measure = Callable[[float], Probe]
KINDS = ("rate", "concurrency")


def search(measure: Measure, rules: SearchRules) -> tuple[SearchResult, list[Probe]]:
    history: list[Probe] = []
    while not isinstance(found := next_probe(history, rules), SearchResult):
        assert len(history) < rules.probes
        history.append(measure(found))
    return found, history


def exact(knee: float, failed: int = 0) -> Measure:
    """A server that keeps the SLO for every request up to its knee, and for none beyond."""
    return lambda load: Probe(load, 1000, 0, failed) if load <= knee else Probe(load, 0, 1000, failed)


def noisy(
    knee: float,
    requests: int,
    rng: random.Random,
    share: float = 0.95,
    power: float = 2.0,
    sigma: float = 0.2,
) -> Measure:
    """A server whose latency is log-normal, and grows with a power of the load: at the knee `share` keeps its limit."""
    margin = statistics.NormalDist().inv_cdf(share)

    def measure(load: float) -> Probe:
        level = (margin * sigma - power * math.log(load / knee)) / sigma
        kept = sum(rng.gauss(0, 1) < level for _ in range(requests))
        return Probe(load, kept, requests - kept)

    return measure


@pytest.mark.parametrize("knee", [16.0, 17.9, 31.0, 100.0, 333.0, 500.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_known_knee_is_found_in_ten_probes(knee: float, kind: str) -> None:
    found, history = search(exact(knee), SearchRules(kind, 16))
    whole = kind == "concurrency"
    assert found.load is not None
    assert found.low is not None
    assert found.high is not None
    assert len(history) <= 10
    assert knee / 1.05 - whole <= found.load <= knee
    assert found.low == found.load
    assert knee < found.high <= max(found.low * 1.055, found.low + whole)


# The fewer requests there are, the steeper a server has to be at its knee for a search to find it within 5 %. At the
# limit of what it can answer, a server is much steeper than these.
@pytest.mark.parametrize(
    ("share", "requests", "power"),
    [(0.95, 1000, 2.0), (0.99, 1500, 2.0), (0.99, 459, 4.0), (0.95, 300, 4.0), (0.9, 300, 4.0)],
)
@pytest.mark.parametrize("kind", KINDS)
def test_acceptance(kind: str, share: float, requests: int, power: float) -> None:
    """Within 5 % of the knee in at most ten probes, and the interval contains the knee in at least 90 %."""
    rng = random.Random(4)
    close, covered, probes = [], [], []
    for _ in range(200):
        knee = math.exp(rng.uniform(math.log(16), math.log(400)))
        measure = noisy(knee, requests, rng, share, power)
        found, history = search(measure, SearchRules(kind, 16, share))
        assert found.load is not None
        probes.append(len(history))
        whole = kind == "concurrency"
        close.append(abs(found.load / knee - 1) <= 0.05 or (whole and abs(found.load - knee) <= 1))
        covered.append((found.low or 0) <= knee <= (found.high or math.inf))
    near, cover = statistics.fmean(close), statistics.fmean(covered)
    print(f"{kind}: within 5 % {near:.1%}, covered {cover:.1%}, probes up to {max(probes)}")
    assert max(probes) <= 10
    assert near >= 0.95
    assert cover >= 0.90


def test_it_searches_downwards_too() -> None:
    found, history = search(exact(5.0), SearchRules("concurrency", 64))
    assert [probe.load for probe in history] == [64, 32, 16, 8, 4, 6, 5]
    assert found == SearchResult(5, 5, 6, 7, "6 at once misses it: 0 of 1000 requests kept it")


@pytest.mark.parametrize(
    ("knee", "rules", "result"),
    [
        (
            0.5,
            SearchRules("concurrency", 4),
            SearchResult(
                None,
                None,
                1,
                3,
                "the lowest load to try, 1 at once, misses the SLO: 0 of 1000 requests kept it",
            ),
        ),
        (
            99.0,
            SearchRules("concurrency", 4, most=16),
            SearchResult(16, 16, None, 3, "the highest load to try, 16 at once, keeps the SLO"),
        ),
        (
            99.0,
            SearchRules("rate", 4, probes=2),
            SearchResult(8, 8, None, 2, "2 probes were made, and 8 requests/s keeps the SLO: start higher"),
        ),
        (
            1.0,
            SearchRules("rate", 4, probes=2),
            SearchResult(
                None,
                None,
                2,
                2,
                "2 probes were made, and 2 requests/s misses the SLO: start lower: 0 of 1000 requests kept it",
            ),
        ),
        (
            5.0,
            SearchRules("rate", 4, probes=3),
            SearchResult(
                4,
                4,
                5.66,
                3,
                "3 probes were made, and 5.66 requests/s misses it: start nearer, or allow more probes: 0 of 1000 "
                "requests kept it",
            ),
        ),
    ],
)
def test_how_it_ends(knee: float, rules: SearchRules, result: SearchResult) -> None:
    assert search(exact(knee), rules)[0] == result


def test_a_load_with_failed_requests_is_too_high() -> None:
    rules = SearchRules("concurrency", 4)
    assert keeps(Probe(4, 100, 0), rules)
    assert not keeps(Probe(4, 0, 0), rules)
    history = [Probe(4, 100, 0), Probe(8, 99, 0, 1)]
    assert next_probe(history, rules) == 6
    history += [Probe(6, 400, 0), Probe(7, 400, 0)]
    found = SearchResult(7, 7, 8, 4, "8 at once misses it: 1 of 100 requests failed")
    assert next_probe(history, rules) == found


def test_a_load_that_the_client_could_not_send_says_nothing_of_the_server() -> None:
    rules = SearchRules("rate", 4, most=8)
    history = [Probe(4, 459, 0), Probe(8, 459, 0, offered=False, client_bound=True)]
    assert next_probe(history, rules) == 5.66
    history += [Probe(load, 459, 0) for load in (5.66, 6.73, 7.34, 7.66, 7.83)]
    why = "8 requests/s misses it: the client could not send as fast"
    assert next_probe(history, rules) == SearchResult(7.83, 7.83, None, 7, why)
    slow = [Probe(4, 459, 0), Probe(4.05, 400, 59, client_bound=True)]
    found = next_probe(slow, rules)
    assert isinstance(found, SearchResult)
    assert found.why.endswith("400 of 459 requests kept it, and the client may have been the limit")


def test_luck_beyond_the_knee_does_not_count() -> None:
    rules = SearchRules("concurrency", 4)
    history = [Probe(4, 1000, 0), Probe(8, 0, 1000), Probe(16, 1000, 0)]
    assert next_probe(history, rules) == 6


def test_few_requests_are_never_sure() -> None:
    few = lambda load: Probe(load, 20, 0) if load <= 20 else Probe(load, 0, 20)  # noqa: E731
    found, _ = search(few, SearchRules("concurrency", 16, share=0.99))
    assert (found.load, found.low, found.high) == (20, None, 21)


def test_a_probe_is_read_from_its_requests() -> None:
    """One answer of one token decides nothing about TPOT, one is late, one failed."""
    raw = {
        "duration": 10.0,
        "start_times": [1.0, 2.0, 3.0, 4.0],
        "ttfts": [0.1, 0.1, 0.9, 0.0],
        "itls": [[0.1], [], [0.1], []],
        "output_lens": [2, 1, 2, 0],
        "errors": ["", "", "", "reset"],
    }
    requests = read_requests(raw)
    assert requests is not None
    limits = LatencyLimits(ttft=500, tpot=110)
    assert read_probe(requests, LoadPoint("rate", 2), limits, False) == Probe(2, 1, 1, 1, True, False)
    # The last was to be sent after 4 / 4 s, and was after 2.
    assert read_probe(requests, LoadPoint("rate", 4), limits, True) == Probe(4, 1, 1, 1, False, True)
    assert read_probe(requests, LoadPoint("concurrency", 4), limits, False).offered


@pytest.mark.parametrize(
    ("late", "clustering"),
    [
        (range(400, 500), 90),  # all in one of ten parts
        (range(0, 1000, 10), 1),
        ((), 1),
    ],
)
def test_requests_that_are_late_together_say_less(late: Sequence[int], clustering: float) -> None:
    ttfts = [0.9 if at in late else 0.1 for at in range(1000)]
    raw = {
        "duration": 100.0,
        "start_times": [at / 10 for at in range(1000)],
        "ttfts": ttfts,
        "itls": [[0.1]] * 1000,
        "output_lens": [2] * 1000,
    }
    requests = read_requests(raw)
    assert requests is not None
    found = read_probe(requests, LoadPoint("rate", 10), LatencyLimits(ttft=500), False)
    assert found.clustering == pytest.approx(clustering, rel=0.3)
    low, high = found.interval
    assert (high - low > 0.2) == (clustering > 1)
