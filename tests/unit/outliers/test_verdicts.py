# SPDX-License-Identifier: Apache-2.0
"""Every GPU has a verdict, with the cause by what differs and a next step; what the runs do not show is not said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.outliers.causes import causes
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.outliers.evidence import (
    physical_indices,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.outliers.samples import cell_speeds
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.outliers.verdicts import (
    GpuVerdict,
    gpu_verdicts,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.earlier import (
    earlier_medians,
    read_earlier,
)

from tests.worlds.gpu_fleet import GpuFleet, row


def judged(fleet: GpuFleet) -> dict[tuple[str, int | None], GpuVerdict]:
    return {(item.gpu.host, item.gpu.index): item for item in gpu_verdicts(fleet.rows(), fleet.hosts())}


def of_pair(*outputs: list[float]) -> dict[str, GpuVerdict]:
    rows = [row(node, 0, output, None) for node, output in enumerate(outputs)]
    return {item.gpu.host: item for item in gpu_verdicts(rows, {})}


def test_64_gpus_one_slow_one_throttled_one_with_ecc_are_named_with_their_causes() -> None:
    fleet = GpuFleet(
        slower={(2, 5): 0.08, (4, 1): 0.10},
        telemetry={
            (2, 5): {"power_cap_w": 600, "power_w": 560.0, "gfx_clock_mhz": 1780.0},
            (4, 1): {"throttled": {"ppt": 0.1, "hbm_thermal": 0.23}, "memory_c": 97.0},
            (6, 7): {"ecc_uncorrectable": 2, "ecc_uncorrectable_new": 1},
        },
    )
    found = judged(fleet)
    assert {key: item.verdict for key, item in found.items() if item.verdict != "ok"} == {
        ("n3", 5): "slow",
        ("n5", 1): "bad",
        ("n7", 7): "bad",
    }
    assert len(found) == 64
    slow, throttled, ecc = found["n3", 5], found["n5", 1], found["n7", 7]
    assert slow.scope == "gpu"
    assert slow.reasons[0].startswith("output tok/s 8% below the median of its node")
    named = {cause.factor: (cause.value, cause.others) for cause in slow.causes}
    assert named["power cap, W"] == ("600", 0)
    assert named["GFX clock"] == ("below the usual 2000 MHz", 0)
    assert "NUMA node" not in named
    assert "driver" not in named
    assert slow.next_step == "Set the power cap of the other GPUs (amd-smi set --power-cap WATTS --gpu 5)."
    assert throttled.reasons[0] == "throttled by temperature (hbm_thermal 23.0% of the time)"
    assert throttled.speed == "slow"
    assert ecc.reasons == ("2 uncorrectable memory errors, 1 of them during the measurement",)
    assert ecc.speed == "ok"
    assert "replace the GPU" in (ecc.next_step or "")


def test_a_slow_node_is_distinguished_from_a_slow_gpu() -> None:
    fleet = GpuFleet(slower={(3, None): 0.12, (5, 2): 0.12}, host_facts={3: {"driver": "6.12.12"}})
    found = judged(fleet)
    slow = {key: item.scope for key, item in found.items() if item.verdict == "slow"}
    assert slow == {**{("n4", gpu): "node" for gpu in range(8)}, ("n6", 2): "gpu"}
    node = found["n4", 0]
    assert node.reasons[0].startswith("the whole node: output tok/s 1")
    cause = next(cause for cause in node.causes if cause.factor == "driver")
    assert (cause.value, cause.slow, cause.of_slow, cause.others) == ("6.12.12", 8, 9, 0)
    assert cause.lift > 6
    assert (
        node.next_step
        == "Install the driver of the other hosts on n4: drain it, install the driver, reboot, measure again."
    )
    assert found["n6", 2].next_step == (
        "Test it with playbooks/burnin.yml --limit n6,load_balancer, which drains what it tests."
    )


@pytest.mark.parametrize(
    ("outputs", "verdict", "reason"),
    [
        pytest.param(([100.0], [80.0]), None, "without at least 3 runs of both", id="no repeats"),
        pytest.param(([100.0] * 3, [98.0] * 3), "ok", "", id="less than 3 %"),
        pytest.param(
            ([99.0, 100.0, 101.0], [90.0, 91.0, 92.0]),
            "suspect",
            "nothing shows which of the two is at fault",
            id="shown",
        ),
        pytest.param(([90.0, 100.0, 110.0], [80.0, 92.0, 104.0]), "ok", "", id="intervals overlap"),
    ],
)
def test_of_two_hosts_none_is_called_slow(
    outputs: tuple[list[float], ...], verdict: str | None, reason: str
) -> None:
    found = of_pair(*outputs)
    assert found["n1"].verdict == "ok"
    assert found["n2"].verdict == verdict
    assert reason in " ".join(found["n2"].reasons)


def test_the_interval_of_another_metric_shows_nothing() -> None:
    rows = [
        row(node, 0, output, None) for node, output in enumerate(([99.0, 100.0, 101.0], [90.0, 91.0, 92.0]))
    ]
    rows = [{**item, "metric": "request_throughput"} for item in rows]
    found = {item.gpu.host: item for item in gpu_verdicts(rows, {})}
    assert found["n2"].verdict is None
    assert "without at least 3 runs of both" in found["n2"].reasons[0]


def test_a_load_balancer_is_no_measurement_of_a_gpu() -> None:
    fleet = GpuFleet(nodes=1, slower={(0, 4): 0.15})
    rows = fleet.rows()
    assert gpu_verdicts([{**item, "live": True} for item in rows], fleet.hosts()) == []
    assert cell_speeds([{**rows[0], "live": True}]) == []


def test_errors_of_a_call_count_once_however_many_runs_it_had() -> None:
    fleet = GpuFleet(nodes=1, telemetry={(0, 0): {"ecc_uncorrectable": 5, "ecc_uncorrectable_new": 2}})
    rows = [{**item, "cell": cell} for item in fleet.rows() for cell in ("c1", "c2", "c3")]
    first = gpu_verdicts(rows, fleet.hosts())[0]
    assert first.reasons == ("5 uncorrectable memory errors, 2 of them during the measurement",)


def test_two_nodes_of_eight_gpus_show_a_slow_gpu_and_no_slow_node() -> None:
    found = judged(GpuFleet(nodes=2, slower={(1, None): 0.10, (0, 3): 0.12}))
    verdicts = {key: item.verdict for key, item in found.items() if item.verdict != "ok"}
    assert verdicts == {**{("n2", gpu): "suspect" for gpu in range(8)}, ("n1", 3): "slow"}
    assert found["n2", 0].scope == "pair"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"runs": 1}, "in one run only", id="one run"),
        pytest.param({"runs": 2}, "in 2 runs only", id="two runs"),
        pytest.param({"median_tpot_ms": 31.2}, "TPOT p50 is not worse", id="throughput alone"),
        pytest.param({"output_throughput": 3000.0}, "but output tok/s is not", id="TPOT alone"),
    ],
)
def test_one_run_or_one_metric_makes_a_suspect(change: dict[str, Any], reason: str) -> None:
    fleet = GpuFleet(nodes=1, spread=0.002, cv=0.002, slower={(0, 4): 0.15})
    rows = fleet.rows()
    rows[4].update(change)
    found = {item.gpu.index: item for item in gpu_verdicts(rows, fleet.hosts())}
    assert found[4].verdict == "suspect"
    assert reason in found[4].reasons[0]
    assert "at least 3 runs" in (found[4].next_step or "")
    assert {item.verdict for index, item in found.items() if index != 4} == {"ok"}


def test_at_a_fixed_rate_the_time_per_token_decides() -> None:
    fleet = GpuFleet(nodes=1, slower={(0, 4): 0.15})
    rows = [
        {
            **item,
            "request_rate": 4,
            "output_throughput": 3000.0,
            "median_e2el_ms": 1000 * item["median_tpot_ms"],
        }
        for item in fleet.rows()
    ]
    slow = [item for item in gpu_verdicts(rows, fleet.hosts()) if item.verdict == "slow"]
    assert [item.gpu.index for item in slow] == [4]
    assert slow[0].reasons[0].startswith("TPOT p50 1")
    assert "above the median" in slow[0].reasons[0]


@pytest.mark.parametrize(
    ("kind", "metric", "sign"),
    [("throughput", "total_token_throughput", 1), ("latency", "mean_batch_latency_ms", -1)],
)
def test_offline_benchmarks_have_one_metric(kind: str, metric: str, sign: int) -> None:
    fleet = GpuFleet(nodes=1, slower={(0, 4): 0.15})
    rows = [{**item, "kind": kind, metric: item["output_throughput"] ** sign} for item in fleet.rows()]
    assert [item.gpu.index for item in gpu_verdicts(rows, fleet.hosts()) if item.verdict == "slow"] == [4]


def test_single_runs_give_the_same_verdict_as_their_summary() -> None:
    runs = []
    for number in range(3):
        fleet = GpuFleet(nodes=1, runs=1, seed=3, slower={(0, 4): 0.15})
        runs += [{**item, "runs": None, "interval": None} for item in fleet.rows(number)]
    # Sessions differ by 2 % for all, which is the same for every GPU.
    slow = [item for item in gpu_verdicts(runs, fleet.hosts()) if item.verdict == "slow"]
    assert [(item.gpu.index, item.runs) for item in slow] == [(4, 3)]


def test_only_like_is_compared_with_like() -> None:
    rows = [row(0, 0, [100.0] * 3, None), {**row(1, 0, [10.0] * 3, None), "max_concurrency": 8}]
    rows += [
        {**row(2, 0, [10.0] * 3, None), "deployment": "x"},
        {**row(3, 0, [9.0] * 3, None), "gpus": [0, 1]},
    ]
    found = gpu_verdicts(rows, {})
    assert {item.relative for item in found} <= {None, 1.0}
    assert not any(item.verdict in ("slow", "suspect") for item in found)


def test_an_instance_of_several_gpus_says_that_they_are_slow_together() -> None:
    rows = [{**row(node, 0, [100.0 - 20 * (node == 1)] * 3, None), "gpus": [0, 1, 2, 3]} for node in range(5)]
    hosts = GpuFleet(nodes=5).hosts()
    slow = [item for item in gpu_verdicts(rows, hosts) if item.verdict == "slow"]
    assert [(item.gpu.host, item.gpu.index, item.scope) for item in slow] == [
        ("n2", gpu, "instance") for gpu in range(4)
    ]


@pytest.mark.parametrize(
    ("seen", "reason", "step"),
    [
        ({"link_width": 8}, "PCIe link x8 of x16", "reseat"),
        ({"throttled": {"prochot": 0.001}}, "throttled by temperature (prochot 0.1% of the time)", "fans"),
        ({"ecc_uncorrectable": 1}, "1 uncorrectable memory errors, all before the measurement", "replace"),
    ],
)
def test_a_fault_is_bad_without_any_comparison(seen: dict[str, Any], reason: str, step: str) -> None:
    fleet = GpuFleet(nodes=1, per_node=1, telemetry={(0, 0): seen})
    (found,) = judged(fleet).values()
    assert (found.verdict, found.speed) == ("bad", None)
    assert found.reasons[0] == reason
    assert step in (found.next_step or "")


def test_power_at_its_cap_on_all_gpus_is_no_finding() -> None:
    fleet = GpuFleet(telemetry={(0, gpu): {"throttled": {"ppt": 0.9}} for gpu in range(8)})
    assert {item.verdict for item in judged(fleet).values()} == {"ok"}


@pytest.mark.parametrize(
    ("logical", "partitions", "expected"),
    [([0, 7], 8, [0]), ([8, 15], 8, [1]), ([3], 1, [3]), ([5], 0, [5])],
)
def test_partitions_belong_to_their_gpu(logical: list[int], partitions: int, expected: list[int]) -> None:
    gpus = [{"index": index, "partitions": partitions} for index in range(8 if partitions < 2 else 2)]
    assert physical_indices(logical, gpus) == expected


@pytest.mark.parametrize(
    ("slow", "others", "expected"),
    [
        pytest.param(["a"], ["b"] * 7, ["a"], id="only the slow one has it"),
        pytest.param(["a"], ["a"] * 31 + ["b"] * 32, [], id="half of all have it: no connection"),
        pytest.param(["a"] * 6, ["a"] * 26 + ["b"] * 32, ["a"], id="six of six, where half have it"),
        pytest.param(["a"] * 2, ["a"] * 62, [], id="all have it"),
        pytest.param(["a"], [], [], id="nothing to compare with"),
    ],
)
def test_causes_are_what_is_more_frequent_among_the_slow(
    slow: list[str], others: list[str], expected: list[str]
) -> None:
    found = causes({"f": "a"}, [{"f": value} for value in slow], [{"f": value} for value in others])
    assert [cause.value for cause in found] == expected


def test_the_gpus_own_past_names_what_the_fleet_does_not_show() -> None:
    fleet = GpuFleet(nodes=1, seed=6, slower={(0, 6): 0.05})
    assert {item.verdict for item in judged(fleet).values()} == {"ok"}
    past = earlier_medians(
        {"benchmarks": fleet.rows(session, ill=False), "hosts": fleet.hosts()} for session in (1, 2, 3)
    )
    found = [item for item in gpu_verdicts(fleet.rows(), fleet.hosts(), past) if item.verdict != "ok"]
    assert [(item.gpu.index, item.verdict) for item in found] == [(6, "slow")]
    assert "slower than in its earlier runs, relative to the others" in found[0].reasons[0]


def test_a_past_of_other_cells_or_other_gpus_says_nothing() -> None:
    fleet = GpuFleet(nodes=1, slower={(0, 6): 0.05})
    rows = [{**item, "cell": "other"} for item in fleet.rows(1, ill=False)]
    past = earlier_medians([{"benchmarks": rows, "hosts": fleet.hosts()}])
    assert gpu_verdicts(fleet.rows(), fleet.hosts(), past) == gpu_verdicts(fleet.rows(), fleet.hosts())


def test_a_history_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    fleet = GpuFleet(nodes=1, per_node=2)
    texts = {
        "r1": json.dumps({"benchmarks": fleet.rows(), "hosts": fleet.hosts()}),
        "r2": "{",
        "r3": "[]",
        "r4": '{"benchmarks": [{"host": "n1"}], "hosts": {}}',
        "r5": '{"other": 1}',
    }
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(text)
    (tmp_path / "latest").symlink_to("r1")
    (tmp_path / "empty").mkdir()
    past = read_earlier(tmp_path)
    assert sorted(past) == ["00000000", "00000001"]
    assert [len(values) for values in past["00000000"].values()] == [1]
    assert read_earlier(tmp_path / "missing") == {}


@pytest.mark.parametrize(
    ("failed", "others", "verdict", "reason"),
    [
        (0, 0, "ok", ()),
        (6, 0, "ok", ()),
        (60, 0, "suspect", ("9% of its requests failed, unlike those of the others",)),
        (640, 0, "suspect", ("100% of its requests failed, unlike those of the others",)),
        (60, 60, None, ("9% of its requests failed, as those of the others",)),
    ],
)
def test_an_instance_is_not_ok_by_the_requests_that_did_not_fail(
    failed: int, others: int, verdict: str | None, reason: tuple[str, ...]
) -> None:
    fleet = GpuFleet(nodes=1)
    rows = fleet.rows()
    mine = rows[0]["instance"]
    for item in rows:
        count = failed if item["instance"] == mine else others
        item.update(completed=640 - count, failed=count)
        if count == 640:
            item.update(output_throughput=0.0, median_tpot_ms=None)
    found = [item for item in gpu_verdicts(rows, fleet.hosts()) if mine in item.gpu.instances]
    assert [(item.verdict, item.reasons) for item in found] == [(verdict, reason)]
    assert bool(found[0].next_step) == (verdict == "suspect")


def test_a_search_may_fail_requests() -> None:
    fleet = GpuFleet(nodes=1)
    rows = fleet.rows()
    rows.append({**rows[0], "probe": 1, "completed": 10, "failed": 90})
    assert {item.verdict for item in gpu_verdicts(rows, fleet.hosts())} == {"ok"}
