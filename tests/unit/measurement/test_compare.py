# SPDX-License-Identifier: Apache-2.0
"""Verdicts about two sides: how often they are wrong on simulated fleets, and what they rest on."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.cells import Side
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.compare import (
    BETTER,
    NOT_CLEAR,
    SAME,
    WORSE,
    CellVerdict,
    ComparisonRules,
    cell_json,
    compare,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.statistics.designs import (
    BEFORE_AFTER,
    CROSSED,
    INTERLEAVED,
    ONE_ORDER,
)

from tests.worlds.compared_runs import before_after, crossed, interleaved, row, side

Design = Callable[..., tuple[Side, Side]]
COMPARISONS = 200


def verdicts(design: Design, change: float, cv: float, drift: float, seed: int = 13) -> Counter[str]:
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    for _ in range(COMPARISONS):
        (cell,) = compare(*design(rng, change, cv, drift)).cells
        found[cell.verdict] += 1
    print(f"{design.__name__}, a {change:+.0%}, CV {cv:.1%}, drift {drift:.0%}: {dict(found)}")
    return found


# ---- acceptance ------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("cv", [0.005, 0.01, 0.02, 0.05])
@pytest.mark.parametrize("drift", [0.0, 0.01, 0.02, 0.03])
@pytest.mark.parametrize("design", [before_after, interleaved, crossed])
def test_equal_releases_are_seldom_called_worse(design: Design, cv: float, drift: float) -> None:
    """Acceptance: at most 5 % of 200 comparisons, and no more are called better."""
    found = verdicts(design, 0.0, cv, drift)
    assert found[WORSE] <= 0.05 * COMPARISONS
    assert found[BETTER] <= 0.05 * COMPARISONS


@pytest.mark.deep
@pytest.mark.parametrize("drift", [0.0, 0.01, 0.02, 0.03])
@pytest.mark.parametrize("design", [interleaved, crossed])
def test_a_loss_of_5_percent_is_found(design: Design, drift: float) -> None:
    """Acceptance: in at least 95 % of the comparisons at a CV of 1 %, whatever the drift between sessions."""
    assert verdicts(design, -0.05, 0.01, drift)[WORSE] >= 0.95 * COMPARISONS


@pytest.mark.deep
@pytest.mark.parametrize("drift", [0.0, 0.03])
@pytest.mark.parametrize("design", [before_after, interleaved, crossed])
def test_much_noise_is_not_clear_rather_than_wrong(design: Design, drift: float) -> None:
    """Acceptance: at a CV of 5 %, a loss of 5 % is nearly never called better or the same."""
    found = verdicts(design, -0.05, 0.05, drift)
    assert found[BETTER] + found[SAME] <= 0.01 * COMPARISONS
    assert found[NOT_CLEAR] >= 0.5 * COMPARISONS


@pytest.mark.deep
def test_before_and_after_finds_what_exceeds_the_drift() -> None:
    assert verdicts(before_after, -0.12, 0.01, 0.0)[WORSE] >= 0.95 * COMPARISONS
    assert verdicts(before_after, -0.05, 0.01, 0.0)[NOT_CLEAR] >= 0.95 * COMPARISONS


@pytest.mark.deep
def test_of_many_equal_cells_seldom_one_is_called_worse() -> None:
    """Holm over 12 cells: in at most 5 % of the comparisons any."""
    rng = random.Random(5)
    wrong = 0
    for _ in range(COMPARISONS):
        rows: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
        for number in range(12):
            load = {"kind": "concurrency", "value": 2**number}
            for name, part in zip("ab", interleaved(rng, 0.0, 0.03, 0.02, nodes=3), strict=True):
                rows[name] += [{**item, "cell": f"c{2**number}", "load": load} for item in part.rows]
        wrong += bool(compare(side("a", rows["a"]), side("b", rows["b"])).worse)
    print(f"any of 12 equal cells called worse: {wrong} of {COMPARISONS}")
    assert wrong <= 0.05 * COMPARISONS


# ---- single verdicts -------------------------------------------------------------------------------


def runs(
    speeds: list[float], minute: int = 0, step: int = 5, host: str = "n1", **more: Any
) -> list[dict[str, Any]]:
    """minute, step: of the start of the first, and between two."""
    return [row(host, minute + step * number, speed, **more) for number, speed in enumerate(speeds)]


STEADY = [1000.0, 1001.0, 999.0, 1000.5, 999.5, 1000.2, 999.8, 1000.1]


def in_turns(
    a: list[float], b: list[float], first: str = "ab", **more: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Turns on one node; first: which side begins the turns, over and over."""
    rows: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
    for turn, values in enumerate(zip(a, b, strict=True)):
        for name, value in zip("ab", values, strict=True):
            late = 30 * (name != first[turn % len(first)])
            rows[name].append(row("n1", 60 * turn + late, value, run=f"{name}-{turn}", **more))
    return rows["a"], rows["b"]


def turns(speed: float, **more: Any) -> tuple[Side, Side]:
    """Eight turns of each on one node, a with `speed` times the throughput."""
    a, b = in_turns([value * speed for value in STEADY], STEADY, **more)
    return side("a", a), side("b", b)


def only(pair: tuple[Side, Side], **rules: float) -> CellVerdict:
    (cell,) = compare(*pair, ComparisonRules(**rules)).cells
    return cell


@pytest.mark.parametrize(
    ("speed", "verdict"),
    [(0.5, WORSE), (0.975, WORSE), (0.985, SAME), (1.0, SAME), (1.015, SAME), (1.025, BETTER)],
)
def test_verdicts_of_turns(speed: float, verdict: str) -> None:
    cell = only(turns(speed))
    assert (cell.verdict, cell.design, cell.runs) == (verdict, INTERLEAVED, (8, 8))
    assert cell.change == pytest.approx(speed - 1, abs=1e-3)
    assert cell.needs == ""


def test_longer_latencies_are_worse_at_a_rate() -> None:
    rate = {"load": {"kind": "rate", "value": 4}, "cell": "r4"}
    cell = only(turns(0.9, **rate))
    assert (cell.metric.key, cell.verdict) == ("median_e2el_ms", WORSE)
    assert cell.change == pytest.approx(1 / 0.9 - 1, abs=1e-3)
    assert cell.others is not None
    assert cell.others["median_ttft_ms"] == pytest.approx(1 / 0.9 - 1, abs=1e-3)


def test_embedding_models_are_judged_by_their_requests() -> None:
    cell = only(turns(0.9, output_throughput=0.0, median_tpot_ms=None))
    assert (cell.metric.key, cell.verdict) == ("request_throughput", WORSE)


@pytest.mark.parametrize(
    ("b", "a", "needs"),
    [
        ([1000.0], [900.0], "needs 4 runs of each"),
        (
            [1000.0] * 3,
            [1000.0] * 3,
            "drift hides it: needs a and b alternating on one instance, each of them first in half of the turns",
        ),
        ([1000.0, 1100.0, 900.0], [700.0, 770.0, 630.0], "needs 4 runs of each"),
    ],
)
def test_before_and_after_needs_runs_or_turns(b: list[float], a: list[float], needs: str) -> None:
    cell = only((side("a", runs(a, 1440)), side("b", runs(b))))
    assert (cell.verdict, cell.design, cell.needs) == (NOT_CLEAR, BEFORE_AFTER, needs)


def test_two_nodes_with_three_runs_show_a_large_loss() -> None:
    b = [*runs(STEADY[:3]), *runs([2000.0, 2002.0, 1998.0], host="n2")]
    a = [*runs([800.0, 801.0, 799.0], 1440), *runs([1600.0, 1602.0, 1598.0], 1440, host="n2")]
    cell = only((side("a", a), side("b", b)))
    assert (cell.verdict, cell.units) == (WORSE, 2)
    assert cell.low is not None
    assert cell.high is not None
    # Drift of 2 % a session on each side of -20 %: ± 5.5 % of it.
    assert (cell.low, cell.high) == pytest.approx(
        (0.8 * math.exp(-0.0554) - 1, 0.8 * math.exp(0.0554) - 1), abs=3e-3
    )
    assert only((side("a", a), side("b", b)), drift=0.2).verdict == NOT_CLEAR


def test_few_turns_name_the_pairs_that_they_need() -> None:
    a, b = in_turns([955.0, 945.0, 950.0, 951.0], [1000.0, 1010.0, 990.0, 1001.0])
    cell = only((side("a", a), side("b", b)))
    assert (cell.verdict, cell.needs) == (NOT_CLEAR, "needs 6 pairs")


@pytest.mark.parametrize("trend", [-0.04, -0.01, 0.01, 0.04])
@pytest.mark.parametrize("first", ["a", "b", "ab", "ba", "aab"])
@pytest.mark.parametrize("count", [3, 8, 18])
def test_a_trend_over_the_turns_makes_no_release_worse(trend: float, first: str, count: int) -> None:
    """Equal releases on a machine that heats up. In b a b a … the drift has the same sign in every pair."""
    seed = 20261128
    rng, found = random.Random(seed), Counter[str]()
    for _try in range(20):
        equal = [[1000 * math.exp(rng.gauss(0, 0.003)) for _turn in range(count)] for _side in "ab"]
        a, b = in_turns(*equal, first)
        for order, item in enumerate(sorted((*a, *b), key=lambda item: item["started"])):
            item["output_throughput"] *= math.exp(trend * order)
        found[only((side("a", a), side("b", b))).verdict] += 1
    print(f"seed {seed}, trend {trend:+.0%} a session, first {first}, {count} turns: {dict(found)}")
    assert found[WORSE] + found[BETTER] <= 1


def test_turns_of_one_order_are_compared_with_their_neighbours() -> None:
    speeds = [value for value in (*STEADY, *STEADY) for _both in "ab"][:18]
    for change, verdict in ((0.9, WORSE), (1.0, SAME)):
        a, b = in_turns([value * change for value in speeds], speeds, first="b")
        cell = only((side("a", a), side("b", b)))
        assert (cell.verdict, cell.design) == (verdict, ONE_ORDER)
    a, b = in_turns([900.0] * 8, [1000.0] * 8, first="b")
    cell = only((side("a", a), side("b", b)))
    assert (cell.verdict, cell.needs) == (NOT_CLEAR, "needs 6 pairs, with a first in half of them")


@pytest.mark.parametrize("named", [True, False])
def test_sessions_that_follow_each_other_are_known_by_their_run(named: bool) -> None:
    """a b, b a, …: without names, the second and the third would be one session, and every pair have one order."""
    a, b = in_turns([900.0] * 6, [1000.0] * 6)
    rows = [[item if named else {**item, "run": ""} for item in own] for own in (a, b)]
    cell = only((side("a", rows[0]), side("b", rows[1])))
    assert (cell.verdict, cell.design) == ((WORSE, INTERLEAVED) if named else (NOT_CLEAR, ONE_ORDER))


def test_nodes_that_changed_sides_are_crossed_over() -> None:
    cell = only(crossed(random.Random(1), -0.06, 0.005, 0.05))
    assert (cell.verdict, cell.design, cell.units) == (WORSE, CROSSED, 8)
    small = only(crossed(random.Random(1), -0.06, 0.005, 0.05, nodes=2))
    assert (small.verdict, small.needs) == (NOT_CLEAR, "needs 8 instances")


def test_what_failed_altogether_is_worse() -> None:
    b = side("b", runs(STEADY[:4]))
    dead = only((side("a", runs([1.0] * 2, 1440, completed=0, failed=640)), b))
    assert (dead.verdict, dead.a, dead.notes[0]) == (WORSE, None, "no request succeeded in a")


@pytest.mark.parametrize(
    ("a", "b", "speed", "verdict", "needs", "notes"),
    [
        (0, 0, 1.0, SAME, "", ()),
        (6, 6, 1.0, SAME, "", ()),  # 1 % of 640
        (40, 0, 1.0, WORSE, "", ("6% of the requests failed in a",)),
        (40, 0, 1.5, WORSE, "", ("6% of the requests failed in a",)),  # it is fast with those that are left
        (40, 0, 0.5, WORSE, "", ("6% of the requests failed in a",)),
        (0, 40, 1.0, NOT_CLEAR, "needs runs of b whose requests succeed", ("6% of the requests failed in b",)),
        (0, 40, 1.5, NOT_CLEAR, "needs runs of b whose requests succeed", ("6% of the requests failed in b",)),
        (0, 40, 0.5, NOT_CLEAR, "needs runs of b whose requests succeed", ("6% of the requests failed in b",)),
        (40, 40, 0.5, NOT_CLEAR, "needs runs of a and b whose requests succeed",
         ("6% of the requests failed in a", "6% of the requests failed in b")),
    ],
)  # fmt: skip
def test_failed_requests_are_no_speed(
    a: int, b: int, speed: float, verdict: str, needs: str, notes: tuple[str, ...]
) -> None:
    new, old = in_turns([value * speed for value in STEADY], STEADY)
    for rows, failed in ((new, a), (old, b)):
        for item in rows:
            item.update(completed=640 - failed, failed=failed)
    cell = only((side("a", new), side("b", old)))
    assert (cell.verdict, cell.needs, cell.notes) == (verdict, needs, notes)


def test_an_instance_without_results_on_one_side_is_named() -> None:
    new, old = turns(1.0)
    died = [row("n2", 60 * number, 1000.0, completed=0, failed=640) for number in range(2)]
    lived = [row("n2", 60 * number, 1000.0) for number in range(2)]
    cell = only((side("a", [*new.rows, *died]), side("b", [*old.rows, *lived])))
    assert cell.verdict == WORSE
    assert "not compared, as only b has results: n2/llama-0" in cell.notes


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"commit": "other"}, "commit: 1605565b47bb9346c5515c34102e054115b4f98b and other"),
        ({"load": {"kind": "rate", "value": 4}, "cell": "r4"}, "load: concurrency 128 and rate 4 requests/s"),
        ({"shape": {"input": 128, "output": 1024}}, "shape: 1024 in, 1024 out and 128 in, 1024 out"),
        ({"gpus": [0]}, "gpus: 8 and 1"),
        ({"serve_command": "vllm serve x --quantization=fp8"}, "precision: none and --quantization fp8"),
        (
            {"command": "vllm bench serve --dataset-path /dataset/12ab/chats.json"},
            "dataset: none and /dataset/12ab/chats.json",
        ),
        ({"deployment": "qwen"}, ""),
    ],
)
def test_only_equal_work_is_compared(change: dict[str, Any], differs: str) -> None:
    found = compare(side("a", runs(STEADY)), side("b", runs(STEADY, 1440, **change)))
    assert found.cells == ()
    assert (found.unmatched[0].side, found.unmatched[0].differs) == ("a", differs)
    assert len(found.unmatched) == 2


def test_another_partition_is_other_work() -> None:
    found = compare(side("a", runs(STEADY)), side("b", runs(STEADY, 1440), memory_partition="NPS4"))
    assert found.unmatched[0].differs == "partition: SPX/NPS1 and SPX/NPS4"


def test_other_flags_and_images_are_not() -> None:
    changed = {"serve_command": "vllm serve x --max-num-seqs 64", "image": "other", "digest": None}
    assert len(compare(side("a", runs(STEADY)), side("b", runs(STEADY, 1440, **changed))).cells) == 1


def test_instances_that_only_one_side_has_do_not_count() -> None:
    cell = only((side("a", runs(STEADY)), side("b", runs(STEADY, 1440, host="n2"))))
    assert (cell.verdict, cell.needs, cell.change) == (NOT_CLEAR, "needs runs of both on one instance", None)


def test_the_mean_is_of_speed() -> None:
    rate = {"load": {"kind": "rate", "value": 4}, "cell": "r4"}
    a, b = turns(0.9), turns(0.9, **rate)
    found = compare(
        Side("a", (*a[0].rows, *b[0].rows), a[0].hosts), Side("b", (*a[1].rows, *b[1].rows), a[1].hosts)
    )
    assert [cell.level for cell in found.cells] == [0.975, 0.975]
    assert found.mean == pytest.approx(-0.1, abs=1e-3)


def test_a_cell_as_json() -> None:
    found = cell_json(only(turns(0.9)))
    assert (found["verdict"], found["needs"], found["runs"], found["load"]) == (
        WORSE, None, [8, 8], {"kind": "concurrency", "value": 128.0},
    )  # fmt: skip
    assert found["interval"][0] < found["change"] < found["interval"][1] < 0
