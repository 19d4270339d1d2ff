# SPDX-License-Identifier: Apache-2.0
"""What a run measures by a suite, and what is wrong with that before it begins."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.request import (
    check_cells,
    measured_instances,
    requested_kinds,
)

from tests.rendered_suites import instance
from tests.worlds.catalogue import knowledge


def on(*suites: str) -> dict[str, dict[str, Any]]:
    """Return the variables of hosts n1, n2 … with these suites; "" for none."""
    return {f"n{at}": {"benchmark_suite": name} if name else {} for at, name in enumerate(suites, 1)}


@pytest.mark.parametrize(
    ("suites", "asked", "kinds"),
    [
        ((), [], ("serve",)),
        (("",), [], ("serve",)),
        (("serving",), [], ("serve",)),
        (("", "serving", "quick"), [], ("serve",)),
        (("cpx",), [], ("throughput",)),
        (("cpx", "seed-throughput"), [], ("throughput",)),
        (("mad",), [], ("latency", "throughput")),
        (("mad",), ["throughput"], ("throughput",)),
        (("mad", "cpx"), ["throughput"], ("throughput",)),
    ],
)
def test_the_kinds_are_those_of_the_tags_or_of_the_suites(
    suites: tuple[str, ...], asked: list[str], kinds: tuple[str, ...]
) -> None:
    assert requested_kinds(knowledge(), on(*suites), asked) == kinds


def test_an_unknown_suite() -> None:
    with pytest.raises(FleetError, match="Did you mean serving"):
        requested_kinds(knowledge(), on("servin"))


@pytest.mark.parametrize(
    ("suites", "said"),
    [
        (("serving", "cpx", "cpx"), "serving (serve) on n1; cpx (throughput) on n2, n3."),
        (("", "cpx"), "no suite (serve) on n1; cpx (throughput) on n2."),
        (("mad", "cpx"), "mad (latency, throughput) on n1; cpx (throughput) on n2."),
    ],
)
def test_hosts_have_the_same_kinds(suites: tuple[str, ...], said: str) -> None:
    """Of a suite with other kinds the run would measure nothing, or what the suite does not have."""
    with pytest.raises(FleetError) as caught:
        requested_kinds(knowledge(), on(*suites))
    (problem,) = caught.value.problems
    assert problem.what == f"a run must have the same kinds of benchmarks on all hosts, but they have {said}"
    assert problem.path == ("benchmark_suite",)
    assert "-e benchmark_suite=NAME" in problem.fix


def test_what_has_just_started_is_not_stopped() -> None:
    assert requested_kinds(knowledge(), on("serving"), new=True) == ("serve",)
    with pytest.raises(FleetError) as caught:
        requested_kinds(knowledge(), on("serving", "mad", "mad"), new=True)
    (problem,) = caught.value.problems
    assert problem.hosts == ("n2", "n3")
    assert problem.what.startswith("mad has offline benchmarks (latency, throughput), which stop instances")
    assert "--skip-tags benchmark" in problem.fix
    assert "benchmark.yml -e benchmark_suite=mad" in problem.fix


SMALL = instance("0.11.0", "--max-model-len", "2048")
TWO = [("n1", instance("0.11.0")), ("n2", instance("0.11.0"))]


def test_what_is_left_out_of_equal_instances_is_one_warning() -> None:
    warnings, planned = check_cells(
        knowledge(), on("serving", "serving"), ["serve"], [("n1", SMALL), ("n2", SMALL)]
    )
    assert [(item.host, item.target, item.blocks) for item in planned] == [
        (host, f"{SMALL['name']}-serve", 3) for host in ("n1", "n2")
    ]
    assert planned[0].count == planned[1].count >= 3
    assert len(warnings) == len(set(warnings)) >= 2
    assert all(text.startswith("suite serving, hosts n1, n2: ") for text in warnings)
    assert any("in8192-out1024-c64 is left out." in text for text in warnings)


def test_each_host_is_checked_by_its_own_suite() -> None:
    everywhere = [(f"n{at}", SMALL) for at in (1, 2, 3)]
    warnings, planned = check_cells(knowledge(), on("", "quick", "serving"), ["serve"], everywhere)
    assert {item.host for item in planned} == {"n2", "n3"}
    assert warnings
    assert all(text.startswith("suite serving, host n3: ") for text in warnings)

    wrong = {
        **on("quick", "serving"),
        "n3": {"benchmark_suite": "quick", "benchmark_suite_args": {"bloks": 2}},
    }
    with pytest.raises(FleetError) as caught:
        check_cells(knowledge(), wrong, ["serve"], everywhere)
    assert [problem.hosts for problem in caught.value.problems] == [("n3",)]


@pytest.mark.parametrize(
    ("suite", "kinds", "overrides", "said"),
    [
        ("sharegpt", ["serve"], {}, "(hosts n1, n2): "),
        ("cpx", ["serve"], {}, "cpx has no serve. Valid: throughput."),
        ("serving", ["serve"], {"bloks": 2}, "Did you mean blocks?"),
    ],
)
def test_what_would_fail_is_an_error_with_its_hosts(
    suite: str, kinds: list[str], overrides: dict[str, Any], said: str
) -> None:
    given = {host: {"benchmark_suite": suite, "benchmark_suite_args": overrides} for host, _instance in TWO}
    with pytest.raises(FleetError) as caught:
        check_cells(knowledge(), given, kinds, TWO)
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].hosts == ("n1", "n2")


def test_the_instances_of_a_plan_with_their_hosts() -> None:
    llama, qwen = {"name": "llama-0"}, {"name": "qwen-0"}
    steps = {"1": {"measure": {"action": "measurement", "args": {"role": "benchmark", "instances": [llama]}}}}
    canary = {"1": {"measure": {"action": "canary", "args": {"phase": "before", "old": {}}}}}
    todo = [
        {"name": "n1", "plan": {"rollout": {"steps": steps}}},
        {"name": "n2", "plan": {"measure": [qwen]}},
        {"name": "n3", "plan": {"rollout": {"steps": canary}}},
        {"name": "n4", "plan": {"rollout": None}},
    ]
    assert measured_instances(todo) == [("n1", llama), ("n2", qwen)]
