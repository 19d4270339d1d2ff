# SPDX-License-Identifier: Apache-2.0
"""One run: its steady window, percentiles, goodput and a client that is too slow, against a simulated truth."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.client_bound import (
    client_bound,
    send_lag_ms,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.goodput import (
    LatencyLimits,
    goodput,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.requests import (
    LoadPoint,
    Requests,
    read_requests,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.run_fields import (
    run_fields,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.steady import steady_state
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.statistics.percentiles import (
    null_unsupported,
    requests_needed,
    shortfall,
    supported_percentiles,
)

from tests.worlds.request_timings import Client, Server, cpu_share, simulate


def read(raw: dict[str, Any]) -> Requests:
    found = read_requests(raw)
    assert found is not None
    return found


# ---- steady state ----------------------------------------------------------------------------------

COLD = Server(cold=20.0)


@pytest.mark.parametrize("jitter", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_steady_throughput_is_the_truth_despite_a_cold_phase_and_a_drain(jitter: float, seed: int) -> None:
    """Acceptance: within 1 %. The whole run is 8 % off or more."""
    server = Server(cold=20.0, jitter=jitter)
    raw = simulate(server, Client(1600, concurrency=64), seed=seed)
    found = steady_state(read(raw), LoadPoint("concurrency", 64))
    truth = server.truth(64, 200)
    assert found.throughput is not None
    assert found.share is not None
    assert found.start is not None
    print(f"jitter {jitter:.0%} seed {seed}: {found.throughput / truth - 1:+.2%}, {found}")
    assert found.throughput == pytest.approx(truth, rel=0.01)
    assert raw["output_throughput"] < 0.93 * truth
    assert found.start >= 15
    assert found.warnings == ()


def test_a_run_at_a_rate_is_steady_after_half_a_minute_or_three_answers() -> None:
    requests = read(simulate(Server(), Client(1000, rate=10)))
    found = steady_state(requests, LoadPoint("rate", 10))
    assert found.throughput == pytest.approx(2000, rel=0.05)
    assert found.start is not None
    assert found.start >= 30
    slow = read(simulate(Server(tpot=0.1), Client(1000, rate=10)))  # p95 of E2EL is about 21.6 s
    late = steady_state(slow, LoadPoint("rate", 10))
    assert late.start is not None
    assert late.start >= 60


@pytest.mark.parametrize(
    ("raw", "load", "why"),
    [
        (simulate(Server(), Client(100, rate=10)), LoadPoint("rate", 10), "too short"),
        (
            simulate(Server(), Client(32, concurrency=64)),
            LoadPoint("concurrency", 64),
            "never reached its load",
        ),
        (
            simulate(Server(), Client(64, concurrency=64)),
            LoadPoint("concurrency", 64),
            "never reached its load",
        ),
        (simulate(Server(), Client(1, concurrency=1)), LoadPoint("concurrency", 1), "fewer than two"),
        (
            {**simulate(Server(), Client(64, concurrency=8)), "start_times": None},
            LoadPoint("concurrency", 8),
            "from 0.15.0 on",
        ),
    ],
)
def test_without_a_steady_window_there_is_no_number_and_a_reason(
    raw: dict[str, Any], load: LoadPoint, why: str
) -> None:
    found = steady_state(read(raw), load)
    assert (found.start, found.end, found.throughput, found.share) == (None,) * 4
    assert why in found.warnings[0]


def test_requests_that_are_all_sent_at_once_have_no_steady_part() -> None:
    found = steady_state(read(simulate(Server(), Client(64, concurrency=64))), LoadPoint("all"))
    assert (found.throughput, found.warnings) == (None, ())


def test_a_small_window_is_warned_of() -> None:
    found = steady_state(read(simulate(Server(), Client(100, concurrency=64))), LoadPoint("concurrency", 64))
    assert found.share is not None
    assert found.share < 0.5
    assert "use more requests" in found.warnings[0]


def test_a_server_that_grows_slower_is_not_steady() -> None:
    raw = simulate(Server(jitter=0.02), Client(1600, concurrency=64))
    slower = {**raw, "start_times": [], "itls": [], "ttfts": []}
    for start, first, gaps in zip(raw["start_times"], raw["ttfts"], raw["itls"], strict=True):
        seen = start - 1000 + np.concatenate(([0.0, first], first + np.cumsum(gaps)))
        later = seen * (1 + seen / 1000)  # 20 % slower after 100 s
        slower["start_times"].append(float(later[0]))
        slower["ttfts"].append(float(later[1] - later[0]))
        slower["itls"].append(np.diff(later[1:]).tolist())
    found = steady_state(read(slower), LoadPoint("concurrency", 64))
    assert any(text.startswith("not yet steady: the throughput fell") for text in found.warnings)


def test_steady_runs_are_seldom_called_unsteady() -> None:
    """At a level of 1 %."""
    found = [
        steady_state(
            read(simulate(Server(), Client(640, concurrency=32), 100, seed)), LoadPoint("concurrency", 32)
        )
        for seed in range(100)
    ]
    assert sum("not yet steady" in text for run in found for text in run.warnings) <= 4


# ---- reading ---------------------------------------------------------------------------------------


def test_requests_of_releases_without_times_of_sending_and_with_failures() -> None:
    raw = {
        "duration": 10.0,
        "ttfts": [0.5, 0.0, 0.25],
        "itls": [[0.1, 0.1], [], [0.25]],
        "output_lens": [3, 0, 4],
        "errors": ["", "Connection reset", ""],
    }
    found = read(raw)
    assert (found.starts, found.ends, found.failed) == (None, None, 1)
    assert found.e2el.tolist() == pytest.approx([0.7, 0.5])
    assert found.tpot.tolist() == pytest.approx([0.1, 0.25 / 3])
    with pytest.raises(ValueError, match="start_times"):
        found.produced(np.zeros(1))
    assert read({**raw, "errors": None}).failed == 1  # older releases leave no text
    assert read_requests({"completed": 3}) is None


def test_gaps_that_were_left_out_follow_from_latencies() -> None:
    """As vllm_bench carries large results: the steady throughput, E2EL and TPOT are the same."""
    server = Server(cold=20.0)
    raw = simulate(server, Client(1600, concurrency=64))
    whole = read(raw)
    latencies = [first + sum(gaps) for first, gaps in zip(raw["ttfts"], raw["itls"], strict=True)]
    small = read({**{key: raw[key] for key in raw if key != "itls"}, "latencies": latencies})
    assert small.e2el == pytest.approx(whole.e2el)
    assert small.tpot == pytest.approx(whole.tpot)
    found = steady_state(small, LoadPoint("concurrency", 64))
    assert found.throughput == pytest.approx(server.truth(64, 200), rel=0.01)
    assert read_requests({"ttfts": [0.1], "output_lens": [3]}) is None


def test_no_time_is_spent_on_each_token_whose_arrival_is_unknown() -> None:
    """A fleet has tens of thousands of runs: of one with 4 million tokens, only the requests are looked at."""
    count, tokens = 1000, 4096
    sent = [20.0 * (at // 100) for at in range(count)]
    raw = {
        "ttfts": [0.25] * count, "latencies": [20.0] * count, "output_lens": [tokens] * count, "errors": [""] * count,
        "start_times": sent, "duration": 200.0,
    }  # fmt: skip
    began = time.process_time()
    found = steady_state(read(raw), LoadPoint("concurrency", 100))
    assert time.process_time() - began < 0.25
    assert found.throughput == pytest.approx(100 * tokens / 20, rel=0.001)


def test_tokens_arrive_at_once_and_then_evenly() -> None:
    raw = {
        "ttfts": [1.0, 1.0, 2.0], "latencies": [5.0, 1.0, 2.0], "output_lens": [5, 1, 0], "start_times": [0.0, 1.0, 0.0]
    }  # fmt: skip
    times = np.array([0.5, 1.0, 2.0, 3.5, 5.0, 9.0])
    assert read(raw).produced(times).tolist() == pytest.approx([0, 1, 3, 4.5, 6, 6])
    whole = read({**raw, "itls": [[1.0] * 4, [], []]})
    assert whole.produced(times).tolist() == pytest.approx([0, 1, 3, 4, 6, 6])


def test_a_request_without_a_latency_has_failed() -> None:
    found = read({"ttfts": [0.1, 0.1], "output_lens": [3, 1], "latencies": [None, 0.1], "duration": 1.0})
    assert (len(found.ttft), found.failed) == (1, 1)


def test_times_of_sending_with_a_gap_are_none() -> None:
    raw = {"ttfts": [0.1, 0.1], "itls": [[], []], "output_lens": [1, 1], "start_times": [0.0, None]}
    assert read(raw).starts is None


def test_tokens_are_spread_over_the_pieces_of_an_answer() -> None:
    raw = {
        "duration": 3.0,
        "ttfts": [0.5, 0.5],
        "itls": [[1.0], []],
        "output_lens": [6, 1],
        "errors": ["", ""],
        "start_times": [101.0, 100.0],
    }
    produced = read(raw).produced(np.array([0.4, 0.5, 1.4, 1.5, 2.4, 2.5, 9.0]))
    assert produced.tolist() == pytest.approx([0, 1, 1, 4, 4, 7, 7])


# ---- percentiles -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("percentile", "needed"), [(90, 44), (95, 90), (99, 459), (99.9, 4603), (10, 44)])
def test_requests_that_a_percentile_needs(percentile: float, needed: int) -> None:
    """p90, p95 and p99 as MLPerf's early stopping has them."""
    assert requests_needed(percentile) == needed


def test_percentiles_that_a_number_of_requests_supports() -> None:
    assert supported_percentiles((50, 90, 95, 99), 90) == (50, 90, 95)
    assert shortfall((50, 90, 95, 99), 60) == "60 requests are too few: p95 needs 90, p99 needs 459"
    assert shortfall((50, 90), 60) == ""


@pytest.mark.parametrize("percentile", [0, 100, -1])
def test_no_percentile(percentile: float) -> None:
    with pytest.raises(ValueError, match="is not a percentile"):
        requests_needed(percentile)


@pytest.mark.parametrize(
    ("completed", "kept"),
    [(43, [50]), (44, [50, 90]), (458, [50, 90, 95]), (459, [50, 90, 95, 99]), (None, [50])],
)
def test_percentiles_without_enough_requests_are_null(completed: int | None, kept: list[int]) -> None:
    given = {f"p{at}_ttft_ms": 1.0 for at in (50, 90, 95, 99)} | {"completed": completed, "mean_ttft_ms": 2.0}
    found = null_unsupported(given)
    assert [at for at in (50, 90, 95, 99) if found[f"p{at}_ttft_ms"] is not None] == kept
    assert (found["mean_ttft_ms"], found["completed"]) == (2.0, completed)


def test_batches_count_like_requests() -> None:
    given = {"p90_batch_latency_ms": 1.0, "p25_batch_latency_ms": 1.0, "completed": None, "iterations": 5}
    assert null_unsupported(given) == {**given, "p90_batch_latency_ms": None}


def test_a_server_that_stalls_shows_it_in_the_p99_of_a_rate_run() -> None:
    """Acceptance: 2 s every 30 s is a p99 TTFT of at least 1.5 s; a short run shows none at all."""
    server = Server(stall=2.0)
    raw = simulate(server, Client(1500, rate=10))
    found = null_unsupported(raw)
    print(f"p99 TTFT {found['p99_ttft_ms']:.0f} ms")
    assert found["p99_ttft_ms"] >= 1500
    assert null_unsupported(simulate(server, Client(400, rate=10)))["p99_ttft_ms"] is None


# ---- goodput ---------------------------------------------------------------------------------------


def three() -> Requests:
    """Requests of 0.5 s + twice 0.1 s, one token after 0.5 s, 0.25 s + 0.25 s for 4 tokens; one failed; 10 s."""
    return read(
        {
            "duration": 10.0,
            "ttfts": [0.5, 0.5, 0.25, 0.0],
            "itls": [[0.1, 0.1], [], [0.25], []],
            "output_lens": [3, 1, 4, 0],
            "errors": ["", "", "", "reset"],
        }
    )


@pytest.mark.parametrize(
    ("slo", "rate"),
    [
        (LatencyLimits(), 0.3),
        (LatencyLimits(ttft=400), 0.1),
        (LatencyLimits(ttft=500), 0.3),
        (LatencyLimits(tpot=90), 0.1),
        (LatencyLimits(tpot=101), 0.2),
        (LatencyLimits(tpot=101, ttft=400), 0.1),
        (LatencyLimits(e2el=600), 0.2),
    ],
)
def test_goodput_of_any_slo(slo: LatencyLimits, rate: float) -> None:
    assert goodput(three(), slo) == pytest.approx(rate)


def test_a_run_without_a_duration_has_no_goodput() -> None:
    assert goodput(replace(three(), duration=0.0), LatencyLimits()) is None


# ---- the client ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "load", "bound"),
    [
        (Client(640, concurrency=64), LoadPoint("concurrency", 64), False),
        (Client(640, concurrency=64, lag=0.008), LoadPoint("concurrency", 64), True),
        (Client(640, concurrency=64, chunk_cost=300e-6), LoadPoint("concurrency", 64), True),
        (Client(640, rate=10), LoadPoint("rate", 10), False),
        (Client(640, rate=10, spacing=0.11), LoadPoint("rate", 10), True),
    ],
)
def test_a_cell_that_the_client_bounds_is_marked(client: Client, load: LoadPoint, bound: bool) -> None:
    raw = simulate(Server(), client)
    lag = send_lag_ms(read(raw), load)
    print(f"{client}: lag {lag} ms, CPU {cpu_share(client, raw):.0%}")
    assert client_bound(cpu_share(client, raw), lag) is bound


def test_the_lag_is_the_median_delay_of_a_send() -> None:
    raw = simulate(Server(), Client(640, concurrency=64, lag=0.008))
    assert send_lag_ms(read(raw), LoadPoint("concurrency", 64)) == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("cpu", "lag", "bound"),
    [(None, None, None), (0.8, 5.0, False), (0.81, None, True), (None, 5.1, True), (None, 1.0, False)],
)
def test_marks_at_the_limits(cpu: float | None, lag: float | None, bound: bool | None) -> None:
    assert client_bound(cpu, lag) is bound


# ---- the fields of a row ---------------------------------------------------------------------------


def test_fields_of_a_row() -> None:
    raw = simulate(Server(), Client(640, concurrency=32))
    fields, warnings = run_fields(
        raw, LoadPoint("concurrency", 32), {"chat": LatencyLimits(ttft=310), "all": LatencyLimits()}, 0.9
    )
    assert fields["steady_output_throughput"] == pytest.approx(Server().truth(32, 200), rel=0.01)
    assert 0.5 < fields["steady_share"] < 1
    assert (fields["client_cpu_share"], fields["client_bound"]) == (0.9, True)
    assert fields["send_lag_ms"] == pytest.approx(0)
    assert 0 < fields["goodput"]["chat"] < fields["goodput"]["all"]
    assert fields["goodput"]["all"] == pytest.approx(640 / raw["duration"])
    assert fields["slo_attainment"]["all"] == 1
    assert fields["slo_attainment"]["chat"] == pytest.approx(
        fields["goodput"]["chat"] * raw["duration"] / 640
    )
    assert warnings == ()


def test_a_result_without_details_has_fields_without_values() -> None:
    fields, warnings = run_fields({"completed": 5}, LoadPoint("all"), {"chat": LatencyLimits(ttft=310)})
    assert fields == {
        "steady_output_throughput": None,
        "steady_share": None,
        "client_cpu_share": None,
        "send_lag_ms": None,
        "client_bound": None,
        "goodput": {"chat": None},
        "slo_attainment": {"chat": None},
    }
    assert warnings == ()
