# SPDX-License-Identifier: Apache-2.0
"""What GPUs did during a measurement: amd-smi's spellings, InferenceX's rules for power, and a recorded window."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.bench import telemetry
from ansible_collections.instinct.fleet.plugins.module_utils.bench.power import Energy, agrees, energy
from ansible_collections.instinct.fleet.plugins.module_utils.bench.smi_metrics import (
    parse_metric,
    parse_static,
    throttle_shares,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.telemetry import (
    telemetry_columns,
)

from tests.worlds.gpu_tree import Tree, write
from tests.worlds.gpusim_tools import Run, cpx, node

RELEASES = ("release=6.3.2", "release=6.4.1", "release=7.0.2", "release=10.0.0")


# ---- amd-smi ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_of_the_tool_is_read(release: str) -> None:
    machine = node(release, "fault:thermal=1", "fault:ecc=2@0")
    metric = parse_metric(Run(machine, "amd-smi metric --json").out)
    static = parse_static(Run(machine, "amd-smi static --json").out)
    assert sorted(metric) == sorted(static) == list(range(len(machine.gpus)))
    assert [metric[gpu]["ecc_uncorrectable"] for gpu in (0, 1)] == [2, 0]
    assert metric[0]["throttle"]["hbm_thermal"] == 0 < metric[1]["throttle"]["hbm_thermal"]
    assert set(metric[0]["throttle"]) == {"prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal"}
    assert metric[0]["energy_j"] > 0
    assert static[1]["bdf"] == machine.gpus[1].bdf
    assert static[1]["vbios"]
    assert static[1]["power_cap_w"] == machine.spec.power_cap


def test_partitions_beyond_the_first_have_no_readings() -> None:
    metric = parse_metric(Run(cpx(node()), "amd-smi metric --json").out)
    assert metric[0]["throttle_counter"] is not None
    assert metric[1] == {
        "throttle": {}, "throttle_counter": None, "ecc_uncorrectable": None, "ecc_correctable": None,
        "energy_j": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("throttle", "expected"),
    [
        ({"ppt_accumulated": 7}, {"ppt": 7}),
        ({"ppt_violation_accumulated": "7"}, {"ppt": 7}),
        ({"ppt_accumulated": {"value": 7, "unit": ""}}, {"ppt": 7}),
        (
            {"gfx_clk_below_host_limit_thm_accumulated": [[3, 9], ["N/A", 1]]},
            {"gfx_clk_below_host_limit_thm": 9},
        ),
        ({"low_utilization_accumulated": {"xcp_0": [1, 2]}}, {"low_utilization": 2}),
        ({"ppt_accumulated": "N/A", "ppt_violation_status": "ACTIVE", "ppt_violation_activity": 5}, {}),
    ],
)
def test_spellings_of_the_counters(throttle: dict[str, Any], expected: dict[str, float]) -> None:
    text = json.dumps([{"gpu": 0, "throttle": {"accumulation_counter": 10, **throttle}}])
    assert parse_metric(text)[0]["throttle"] == expected


@pytest.mark.parametrize("text", ["", "amd-smi: error", "{", '{"other": 1}', "[1"])
def test_other_output_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_metric(text)


def test_a_warning_may_come_first() -> None:
    assert parse_metric('WARNING: User is missing groups\n[{"gpu": 3}]').keys() == {3}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (({"ppt": 10}, 1000), ({"ppt": 260}, 2000), {"ppt": 0.25}),
        (({"ppt": 10}, 1000), ({"ppt": 5}, 2000), None),  # reset between
        (({"ppt": 10}, 2000), ({"ppt": 20}, 1000), None),
        (({}, 1000), ({"ppt": 20}, 2000), None),
        (({"ppt": 0}, None), ({"ppt": 20}, 2000), None),
    ],
)
def test_share_of_the_time(before: Any, after: Any, expected: dict[str, float] | None) -> None:
    first, last = ({"throttle": item[0], "throttle_counter": item[1]} for item in (before, after))
    assert throttle_shares(first, last) == expected


# ---- power -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "joules", "why"),
    [
        ([0, 1, 2, 3, 4], 2400.0, ""),
        ([0, 3, 4], 2400.0, ""),
        ([0, 3.5, 4], None, "3.5 s without a sample"),
        ([0], None, "4.0 s without a sample"),
        ([], None, "no sample"),
        ([9], None, "no sample"),
    ],
)
def test_gaps_of_more_than_three_seconds_are_no_energy(
    times: list[float], joules: float | None, why: str
) -> None:
    found = energy([(at, 600.0) for at in times], 0, 4)
    assert found.joules == joules
    assert why in found.why


def test_energy_is_the_trapezoid_of_the_window_alone() -> None:
    samples = [(float(at), 100.0 * at) for at in range(10)]
    assert energy(samples, 2, 4).joules == 600.0


@pytest.mark.parametrize(
    ("counted", "joules"), [(1000.0, 1000.0), (1049.0, 1000.0), (1100.0, None), (None, 1000.0)]
)
def test_the_counter_must_agree_within_five_percent(counted: float | None, joules: float | None) -> None:
    assert agrees(Energy(1000.0), counted).joules == joules


# ---- a recorded window -----------------------------------------------------------------------------


def sensors(tree: Tree, index: int, power: int) -> None:
    """The hwmon directory of a GPU."""
    place = tree.device(index) / "hwmon/hwmon4"
    for name, text in {
        "power1_label": "PPT", "power1_average": f"{power}000000", "temp2_label": "junction",
        "temp2_input": "71000", "temp3_label": "mem", "temp3_input": "60000", "freq1_label": "sclk",
        "freq1_input": "2100000000", "in0_label": "vddgfx", "in0_input": "800",
    }.items():  # fmt: skip
        write(place / name, text + "\n")
    write(tree.device(index) / "max_link_width", "16\n")


def times_of(recorder: telemetry.Recorder, bdf: str) -> tuple[float, float]:
    """The time of a GPU's first sample and of its fifth."""
    samples = recorder._samples[bdf]
    while len(samples) < 5:
        time.sleep(0.01)
    return samples[0][0], samples[4][0]


def entry(render_nodes: list[str], start: float, seconds: float) -> dict[str, Any]:
    """A cell of an instance with one run."""
    run = {"started": start, "seconds": seconds, "result": {"duration": seconds / 2}, "telemetry": None}
    plan = {"render_nodes": render_nodes}
    return {"instance": "-".join(render_nodes), "live": False, "runs": [run], "instance_plan": plan}


def tool(tree: Tree) -> None:
    """An amd-smi whose counters have moved on at its second call."""
    path = tree.root / "opt/rocm/bin/amd-smi"
    write(
        path,
        "#!/bin/sh\n"
        f"cd {tree.root}\n"
        'if [ "$1" = static ]; then\n'
        """  echo '[{"gpu": 0, "bus": {"bdf": "0000:26:00.0"}, "limit": {"max_power": {"value": 750}}}]'\n"""
        "  exit\nfi\n"
        "count=$(cat calls 2>/dev/null || echo 0); echo $((count + 1)) > calls\n"
        'echo "[{\\"gpu\\": 0, \\"ecc\\": {\\"total_uncorrectable_count\\": $count},'
        ' \\"throttle\\": {\\"accumulation_counter\\": $((1000 * count + 1)),'
        ' \\"vr_thermal_accumulated\\": $((100 * count))}}]"\n',
    )
    path.chmod(0o755)


def test_a_window_has_the_readings_of_its_own_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "INTERVAL", 0.02)
    tree = Tree(tmp_path).build()
    for index in range(8):
        sensors(tree, index, 500 + index)
    tool(tree)
    recorder = telemetry.Recorder(str(tmp_path))
    began, ended = times_of(recorder, "0000:26:00.0")
    both = [entry([node], began, ended - began) for node in ("renderD136", "renderD144")]
    recorder.finish(both)
    (first,), (second,) = (item["runs"][0]["telemetry"]["gpus"] for item in both)
    assert (first["bdf"], second["bdf"]) == ("0000:26:00.0", "0000:46:00.0")
    assert first["power_w"] == 501
    assert first["energy_j"] == pytest.approx(501 * (ended - began) / 2, rel=0.01)
    assert (first["hotspot_c"], first["memory_c"], first["gfx_clock_mhz"]) == (71, 60, 2100)
    assert first["memory_clock_mhz"] is None
    assert first["throttled"] == {"vr_thermal": 0.1}
    assert (first["ecc_uncorrectable"], first["ecc_uncorrectable_new"]) == (1, 1)
    assert (first["link_width"], first["link_width_max"], first["power_cap_w"]) == (16, 16, 750)
    # amd-smi shows one GPU only: nothing of it is attributed to another.
    assert (second["throttled"], second["ecc_uncorrectable_new"], second["power_cap_w"]) == (None, None, None)


def test_an_energy_counter_that_differs_makes_it_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "INTERVAL", 0.02)
    tree = Tree(tmp_path).build()
    sensors(tree, 0, 500)
    recorder = telemetry.Recorder(str(tmp_path))
    readings = iter([{0: {"energy_j": 1e6}}])
    monkeypatch.setattr(recorder, "_before", {"0000:05:00.0": {"energy_j": 0.0}})
    monkeypatch.setattr(recorder, "_ask", lambda _what: next(readings))
    began, ended = times_of(recorder, "0000:05:00.0")
    item = entry(["renderD128"], began, ended - began)
    recorder.finish([item])
    (gpu,) = item["runs"][0]["telemetry"]["gpus"]
    assert gpu["energy_j"] is None
    assert gpu["energy_invalid"] == "its energy counter differs by 100%"
    assert gpu["power_w"] == 500


def test_a_node_without_gpus_has_no_telemetry(tmp_path: Path) -> None:
    item = entry([], 0.0, 1.0)
    telemetry.Recorder(str(tmp_path)).finish([item])
    assert item["runs"][0]["telemetry"] is None


def test_only_other_instances_share_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "INTERVAL", 0.02)
    tree = Tree(tmp_path).build()
    for index in range(8):
        sensors(tree, index, 500)
    recorder = telemetry.Recorder(str(tmp_path))
    began, ended = times_of(recorder, "0000:05:00.0")
    cells = [entry([node], began, ended - began) for node in ("renderD128", "renderD128", "renderD136")]
    other = {**entry(["renderD136"], began, ended - began), "instance": "other"}
    recorder.finish([*cells, other])
    shared = [item["runs"][0]["telemetry"]["shared"] for item in (*cells, other)]
    assert shared == [False, False, True, True]


def test_runs_of_other_times_and_of_a_load_balancer_have_no_telemetry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "INTERVAL", 0.02)
    tree = Tree(tmp_path).build()
    sensors(tree, 0, 500)
    recorder = telemetry.Recorder(str(tmp_path))
    began, ended = times_of(recorder, "0000:05:00.0")
    kept = entry(["renderD128"], began - 1000, 60.0)
    live = {**entry(["renderD128"], began, ended - began), "live": True}
    recorder.finish([kept, live])
    assert kept["runs"][0]["telemetry"] is live["runs"][0]["telemetry"] is None


@pytest.mark.parametrize(
    ("gpus", "shared", "power", "valid"),
    [
        ([{"power_w": 500, "energy_j": 5000.0}, {"power_w": 300, "energy_j": 3000.0}], False, 800.0, True),
        ([{"power_w": 500, "energy_j": 5000.0}, {"power_w": 300, "energy_j": None}], False, None, False),
        ([{"power_w": 500, "energy_j": 5000.0}], True, None, False),
        ([{"power_w": None, "energy_j": None}], False, None, None),
        ([], False, None, None),
    ],
)
def test_columns_of_a_row(
    gpus: list[dict[str, Any]], shared: bool, power: float | None, valid: bool | None
) -> None:
    found = telemetry_columns(
        {"telemetry": {"gpus": gpus, "shared": shared}}, {"duration_s": 10.0, "total_output_tokens": 1000}
    )
    assert (found["power_w"], found["power_valid"]) == (power, valid)
    assert found["joules_per_output_token"] == (None if power is None else power / 100)
    assert found["throttled"] is found["ecc"] is None


def test_without_telemetry_every_column_is_null() -> None:
    found = telemetry_columns({"telemetry": None}, {})
    assert found.pop("gpu_telemetry") == []
    assert set(found.values()) == {None}
