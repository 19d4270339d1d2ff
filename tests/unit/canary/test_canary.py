# SPDX-License-Identifier: Apache-2.0
"""Is a release slower or not: known values of the statistics, the rules, and how often simulated canaries are stopped.

`python -m tests.unit.canary.test_canary` prints how often, for more kinds of noise.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.canary.verdict import (
    METRICS,
    OK,
    SLOWER,
    UNDECIDED,
    Comparison,
    Measurements,
    Metric,
    SpeedVerdict,
    compare,
    judge_speed,
    relative_to_reference,
    runs_of,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.statistics.shift import MIN_RUNS, shift
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout import canary_tolerances
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.canary_tolerances import (
    CanaryTolerances,
)

from tests.worlds.canary_runs import STEADY, runs
from tests.worlds.defaults import rules

RULES = rules()


# ---- statistics ------------------------------------------------------------------------------------


# Critical values of Mann and Whitney's U, two-sided, 5 %: in every table of it. An interval leaves out that many.
@pytest.mark.parametrize(
    ("old", "new", "critical"),
    [(4, 4, 0), (4, 5, 1), (5, 5, 2), (5, 10, 8), (5, 15, 14), (10, 10, 23), (8, 8, 13)],
)
def test_intervals_are_those_of_the_tables(old: int, new: int, critical: int) -> None:
    before = [float(value) for value in range(old)]
    after = [100.0 * (value + 1) for value in range(new)]
    differences = sorted(b - a for b in after for a in before)
    found = shift(before, after)
    assert (found.low, found.high) == (differences[critical], differences[-1 - critical])


def test_the_least_runs_are_those_of_the_statistics() -> None:
    """Planning imports nothing that measures, and refuses fewer before anything is touched."""
    assert canary_tolerances.MIN_RUNS == MIN_RUNS


def test_three_runs_prove_nothing() -> None:
    assert math.isinf(shift([1.0, 2.0, 3.0], [101.0, 102.0, 103.0]).low)


def test_one_wild_run_moves_the_estimate_little() -> None:
    calm = shift(STEADY, STEADY)
    wild = shift(STEADY, [*STEADY[:4], 100.0])
    assert calm.estimate == 0
    assert abs(wild.estimate) < 10


def test_an_interval_needs_runs_and_four_of_them_are_enough() -> None:
    for old, new in (([], [1.0]), ([1.0], []), ([], [])):
        with pytest.raises(ValueError, match=r"^a shift needs runs on both sides$"):
            shift(old, new)
    few = shift([1.0, 2.0, 3.0, 4.0], [11.0, 12.0, 13.0, 14.0])
    assert (few.low, few.estimate, few.high) == (7.0, 10.0, 13.0)
    lone = shift([1.0], [3.0])
    assert (lone.low, lone.estimate, lone.high) == (-math.inf, 2.0, math.inf)
    assert shift([1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]).high == math.inf
    assert shift([1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0, 8.0]).low == 1.0  # one order of 56


@pytest.mark.parametrize(("old", "new"), [(4, 6), (5, 7), (4, 10)])
def test_intervals_are_the_same_both_ways(old: int, new: int) -> None:
    first, second = [float(value) for value in range(old)], [50.0 + 1.7 * value for value in range(new)]
    there, back = shift(first, second), shift(second, first)
    assert (there.low, there.estimate, there.high) == pytest.approx((-back.high, -back.estimate, -back.low))


# ---- rules -----------------------------------------------------------------------------------------


NOISY = (1000.0, 800.0, 1200.0, 900.0, 1100.0)
MUCH = (1000.0, 500.0, 2000.0, 700.0, 1400.0)
# Name, old, looks at the new one, state, runs that are wanted.
JUDGED = [
    ("equal", runs(), [runs()], OK, 0),
    ("faster", runs(), [runs(1.5)], OK, 0),
    ("a little slower", runs(), [runs(0.93)], OK, 0),
    ("slower once", runs(), [runs(0.7)], SLOWER, 10),
    ("slower twice", runs(), [runs(0.7), runs(0.7)], SLOWER, 0),
    ("disturbed at first", runs(), [runs(0.7), runs()], OK, 0),
    ("noisy", runs(of=NOISY), [runs(of=NOISY)], UNDECIDED, 10),
    ("noisy, and clear then", runs(), [runs(of=NOISY), runs()], OK, 0),
    ("noisy to the end", runs(of=NOISY), [runs(of=NOISY), runs(of=NOISY)], OK, 0),
    ("slow, and noisy to the end", runs(of=MUCH), [runs(0.7, of=MUCH), runs(0.7, of=MUCH)], SLOWER, 0),
    ("15 % and noisy to the end", runs(of=MUCH), [runs(0.85, of=MUCH), runs(0.85, of=MUCH)], OK, 0),
    ("TTFT doubled", runs(), [runs(ttft=200.0), runs(ttft=200.0)], SLOWER, 0),
    ("TTFT a fifth longer", runs(), [runs(ttft=120.0)], OK, 0),
    ("TTFT doubled, of milliseconds", runs(ttft=8.0), [runs(ttft=16.0)], OK, 0),
    ("TPOT half as long again", runs(), [runs(tpot=15.0), runs(tpot=15.0)], SLOWER, 0),
    ("nothing in common", {"x": [1.0]}, [runs()], OK, 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "looks", "state", "more"), [row[1:] for row in JUDGED], ids=[row[0] for row in JUDGED]
)
def test_judgements(
    old: dict[str, list[float]], looks: list[dict[str, list[float]]], state: str, more: int
) -> None:
    found = judge_speed(Measurements(old), [Measurements(look) for look in looks], RULES)
    assert (found.state, found.more) == (state, more)


def test_without_a_second_look_the_first_one_counts() -> None:
    found = judge_speed(Measurements(runs()), [Measurements(runs(0.7))], rules(max_runs=5))
    assert (found.state, found.more) == (SLOWER, 0)


@pytest.mark.parametrize(("runs_", "most", "more"), [(5, 15, 10), (5, 9, 4), (5, 8, 0), (5, 5, 0), (4, 8, 4)])
def test_how_many_runs_a_second_look_has(runs_: int, most: int, more: int) -> None:
    assert rules(runs=runs_, max_runs=most).more == more


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (rules(), []),
        (rules(runs=4, max_runs=4), []),
        (rules(runs=3), ["canary_runs"]),
        (rules(runs=5, max_runs=4), ["canary_max_runs"]),
        (rules(tolerance=0), ["canary_tolerance"]),
        (rules(tolerance=0.1, latency_tolerance=0.1), []),
        (rules(tolerance=99.9, latency_tolerance=999), []),
        (rules(tolerance=100, latency_tolerance=1000), ["canary_tolerance", "canary_latency_tolerance"]),
        (rules(runs=3, max_runs=2, latency_tolerance=-1),
         ["canary_runs", "canary_max_runs", "canary_latency_tolerance"]),
    ],
)  # fmt: skip
def test_rules_that_make_no_sense(given: CanaryTolerances, names: list[str]) -> None:
    assert [name for name, _ in given.wrong()] == names
    assert all(text for _, text in given.wrong())


def test_a_window_is_plain_data() -> None:
    window = Measurements(runs(), {"output_throughput": [1.0]})
    assert Measurements.from_json(window.to_json()) == window
    assert Measurements.from_json({"own": {}}) == Measurements({}, None)
    assert (window.runs, Measurements({}).runs, Measurements({"a": [1.0], "b": [1.0, 2.0]}).runs) == (5, 0, 2)


MORE, LESS = METRICS[0], METRICS[1]


@pytest.mark.parametrize(
    ("metric", "change", "low", "high", "text"),
    [
        (MORE, -0.31, -0.33, -0.29, "31 % less output throughput (interval 29 to 33 %), tolerance 10 %"),
        (MORE, 0.31, 0.29, 0.33, "31 % more output throughput (interval 29 to 33 %), tolerance 10 %"),
        (MORE, 0.0, -0.02, 0.01, "0 % less output throughput (interval -1 to 2 %), tolerance 10 %"),
        (LESS, 0.5, 0.4, 0.6, "50 % longer TTFT (interval 40 to 60 %), tolerance 10 %"),
        (LESS, -0.5, -0.6, -0.4, "50 % shorter TTFT (interval 40 to 60 %), tolerance 10 %"),
        (LESS, 0.5, -math.inf, 0.6, "50 % longer TTFT, tolerance 10 %"),
        (LESS, 0.5, 0.4, math.inf, "50 % longer TTFT, tolerance 10 %"),
    ],
)
def test_a_comparison_in_words(metric: Metric, change: float, low: float, high: float, text: str) -> None:
    assert Comparison(metric, 1.0, 1.0, change, low, high, OK, 10.0).text() == text


def test_nothing_can_be_judged_without_a_look() -> None:
    with pytest.raises(ValueError, match="nothing to judge yet"):
        judge_speed(Measurements(runs()), [], RULES)
    found = judge_speed(Measurements({"x": [1.0]}), [Measurements(runs())], RULES)
    assert (found.comparisons, found.warnings) == ((), ("the runs have no numbers that can be compared",))


def test_a_second_look_that_measured_nothing_leaves_the_first() -> None:
    found = judge_speed(Measurements(runs()), [Measurements(runs(0.7)), Measurements({})], RULES)
    assert (found.state, found.more) == (SLOWER, 0)
    found = judge_speed(Measurements(runs()), [Measurements(runs(0.7)), Measurements(runs())], RULES)
    assert found.warnings == (
        "the first 5 runs were slower, the 5 after them were not: the first runs were probably disturbed",
    )
    assert (
        judge_speed(
            Measurements(runs()), [Measurements(runs(of=NOISY)), Measurements(runs())], RULES
        ).warnings
        == ()
    )


def few(*values: float) -> Measurements:
    return Measurements({"output_throughput": list(values)})


@pytest.mark.parametrize(
    ("old", "new", "state"),
    [
        # Too few runs for an interval: the median has to be beyond twice the tolerance.
        ((100, 100, 100), (79, 79, 79), SLOWER),
        ((100, 100, 100), (81, 81, 81), OK),
        # All runs were slower by some: then the tolerance itself.
        ((100, 100, 100, 100), (80, 85, 85, 98), SLOWER),
        ((100, 100, 100, 100), (80, 92, 92, 98), OK),
        ((100, 100, 100, 100), (80, 85, 85, 100), OK),
    ],
)
def test_what_the_median_decides(old: tuple[float, ...], new: tuple[float, ...], state: str) -> None:
    found = judge_speed(few(*old), [few(*new)], rules(runs=5, max_runs=5))
    assert found.state == state
    assert found.warnings[0].startswith("decided by the median")


@pytest.mark.parametrize(
    ("ttft", "state"),
    [
        ((100.0, 131.0), SLOWER),
        ((100.0, 129.0), OK),
        ((50.0, 71.0), SLOWER),
        ((50.0, 70.0), SLOWER),
        ((50.0, 69.0), OK),
    ],
)
def test_a_latency_is_longer_by_share_and_by_milliseconds(ttft: tuple[float, float], state: str) -> None:
    old, new = ({"median_ttft_ms": [value] * 5} for value in ttft)
    assert judge_speed(Measurements(old), [Measurements(new)] * 2, RULES).state == state
    # What is uncertain of a latency alone stops nothing.
    wild = {"median_ttft_ms": [10.0, 1000.0, 20.0, 500.0, 40.0]}
    assert judge_speed(Measurements(wild), [Measurements(wild)], RULES).state == OK


def test_tolerances_are_told_with_what_they_are_of() -> None:
    found = judge_speed(
        Measurements(runs()), [Measurements(runs())], rules(tolerance=12, latency_tolerance=34)
    )
    assert [(item.metric.key, item.tolerance) for item in found.comparisons] == [
        ("output_throughput", 12), ("median_ttft_ms", 34), ("median_tpot_ms", 34),
    ]  # fmt: skip
    assert (found.comparisons[0].old, found.comparisons[0].new) == (1000.0, 1000.0)


@pytest.mark.parametrize(("count", "counts"), [(3, False), (4, True)])
def test_a_reference_needs_runs_in_both_windows(count: int, counts: bool) -> None:
    full, short = (
        Measurements(runs(), runs()),
        Measurements(runs(0.7), {"output_throughput": [700.0] * count}),
    )
    assert relative_to_reference(full, short) is counts
    assert relative_to_reference(short, full) is counts
    assert not relative_to_reference(full, Measurements(runs()))
    requests = {"request_throughput": [1.0] * count}
    assert relative_to_reference(Measurements({}, requests), Measurements({}, requests)) is counts


def test_what_is_decided_by_the_median_is_told() -> None:
    found = judge_speed(Measurements(runs(of=NOISY)), [Measurements(runs(of=NOISY))] * 2, RULES)
    assert found.warnings[0].startswith(
        "decided by the median, because the runs differ too much: 0 % less output throughput"
    )


def test_a_machine_that_became_slower_cancels_out() -> None:
    before, after = Measurements(runs(), runs()), Measurements(runs(0.7), runs(0.7))
    assert judge_speed(before, [after], RULES).state == OK
    assert judge_speed(Measurements(runs()), [Measurements(runs(0.7))], RULES).state == SLOWER
    # A reference that was not measured both times is none.
    assert judge_speed(before, [Measurements(runs(0.7), {})], RULES).state == SLOWER
    worse = judge_speed(before, [Measurements(runs(0.49), runs(0.7))] * 2, RULES)
    assert worse.state == SLOWER
    assert worse.comparisons[0].text() == "30 % less output throughput (interval 30 to 30 %), tolerance 10 %"


def test_models_without_tokens_are_judged_by_their_requests() -> None:
    old, new = ({"request_throughput": [value * speed for value in STEADY]} for speed in (1.0, 0.5))
    found = judge_speed(Measurements(old), [Measurements(new)] * 2, RULES)
    assert found.state == SLOWER
    assert "50 % less request throughput" in found.comparisons[0].text()


def test_runs_are_read_from_what_vllm_writes() -> None:
    raw = {
        "completed": 2,
        "duration": 2.0,
        "total_output_tokens": 50,
        "median_ttft_ms": 7.5,
        "median_tpot_ms": 0.0,
    }
    assert runs_of([raw, {"nothing": 1}]) == {
        "output_throughput": [25.0], "request_throughput": [1.0], "median_ttft_ms": [7.5],
    }  # fmt: skip
    assert set(runs_of([{**raw, "total_output_tokens": 0}])) == {"request_throughput", "median_ttft_ms"}


# ---- simulated canaries ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """Of each run (standard deviation of the log), of the machine between two windows, and the share of wild runs."""

    each: float
    machine: float = 0.0
    wild: float = 0.0


def simulate(seed: int, speed: float, noise: Noise, reference: bool) -> SpeedVerdict:
    """One canary: measured, judged, and looked at again when that is wanted."""
    rng = random.Random(f"{seed} {speed} {noise} {reference}")

    def one(factor: float) -> float:
        value = 1000 * factor * math.exp(rng.gauss(0, noise.each))
        return value * rng.uniform(0.4, 0.8) if rng.random() < noise.wild else value

    def window(count: int, factor: float, machine: float) -> Measurements:
        own = {"output_throughput": [one(factor * machine) for _ in range(count)]}
        beside = {"output_throughput": [one(machine) for _ in range(count)]}
        return Measurements(own, beside if reference else None)

    old = window(RULES.runs, 1.0, 1.0)
    machine = math.exp(rng.gauss(0, noise.machine))
    looks = [window(RULES.runs, speed, machine)]
    found = judge_speed(old, looks, RULES)
    if found.more:
        found = judge_speed(old, [*looks, window(found.more, speed, machine)], RULES)
    return found


def stopped(tries: int, speed: float, noise: Noise, reference: bool) -> float:
    """The share of canaries that are stopped."""
    return sum(simulate(seed, speed, noise, reference).state != OK for seed in range(tries)) / tries


# Noise of each run in the lab is 0.5 to 3 % (its machine idle or busy), on servers 0.5 to 2 %.
@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("noise", [Noise(0.005), Noise(0.01), Noise(0.02), Noise(0.03)])
def test_equal_releases_are_never_stopped_and_slow_ones_always(noise: Noise, reference: bool) -> None:
    assert stopped(500, 1.0, noise, reference) == 0
    assert stopped(500, 0.7, noise, reference) == 1


@pytest.mark.parametrize(
    ("noise", "reference", "equal", "slow"),
    [
        (Noise(0.05), False, 0.005, 0.995),
        (Noise(0.08), False, 0.02, 0.99),
        (Noise(0.02, wild=0.1), False, 0.01, 0.95),
        (Noise(0.03, machine=0.1), True, 0.005, 0.99),
    ],
)
def test_much_noise_stops_few_equal_releases(
    noise: Noise, reference: bool, equal: float, slow: float
) -> None:
    assert stopped(400, 1.0, noise, reference) <= equal
    assert stopped(400, 0.7, noise, reference) >= slow


def test_three_metrics_call_a_release_at_its_tolerances_slower_as_seldom_as_one_would() -> None:
    """Holm over the metrics: in at most 5 % of the looks any, although each would be called so in 2.5 %."""
    seed, tries = 20261128, 1500
    rng = random.Random(seed)
    at = {"output_throughput": 1 - RULES.tolerance / 100}
    at |= dict.fromkeys(("median_ttft_ms", "median_tpot_ms"), 1 + RULES.latency_tolerance / 100)

    def window(factors: dict[str, float]) -> Measurements:
        return Measurements(
            {
                key: [1000 * factor * math.exp(rng.gauss(0, 0.02)) for _ in range(8)]
                for key, factor in factors.items()
            }
        )

    found = [compare(window(dict.fromkeys(at, 1.0)), window(at), RULES) for _ in range(tries)]
    wrong = sum(any(item.state == SLOWER for item in one) for one in found)
    print(f"seed {seed}: any of 3 metrics called slower in {wrong} of {tries} looks")
    assert wrong <= 0.05 * tries
    assert all([item.metric.key for item in one] == list(at) for one in found)


def main() -> None:
    """Print the table of docs/canary.md."""
    speeds = (1.0, 0.95, 0.85, 0.7)
    print(
        f"| Noise of a run | of the machine | wild runs | Reference | {' | '.join(f'{v:.0%}' for v in speeds)} |"
    )
    for noise in (
        Noise(0.01), Noise(0.02), Noise(0.03), Noise(0.05), Noise(0.08), Noise(0.02, 0.05), Noise(0.02, 0.0, 0.1),
    ):  # fmt: skip
        for reference in (False, True):
            shares = " | ".join(f"{stopped(2000, speed, noise, reference):.1%}" for speed in speeds)
            beside = "yes" if reference else "no"
            print(f"| {noise.each:.0%} | {noise.machine:.0%} | {noise.wild:.0%} | {beside} | {shares} |")


if __name__ == "__main__":
    main()
