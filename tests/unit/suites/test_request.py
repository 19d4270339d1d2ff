# SPDX-License-Identifier: Apache-2.0
"""What a run measures by a suite, and what is wrong with that before it begins."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.suites.request import (
    check_cells,
    measured_instances,
    requested_kinds,
)

from tests.rendered_suites import instance
from tests.worlds.catalogue import knowledge


@pytest.mark.parametrize(
    ("suite", "asked", "kinds"),
    [
        ("serving", [], ("serve",)),
        ("cpx", [], ("throughput",)),
        ("mad", [], ("latency", "throughput")),
        ("mad", ["throughput"], ("throughput",)),
    ],
)
def test_the_kinds_are_those_of_the_tags_or_of_the_suite(
    suite: str, asked: list[str], kinds: tuple[str, ...]
) -> None:
    assert requested_kinds(knowledge(), suite, asked) == kinds


def test_an_unknown_suite() -> None:
    with pytest.raises(FleetError, match="Did you mean serving"):
        requested_kinds(knowledge(), "servin", [])


TWO = [("n1", instance("0.11.0")), ("n2", instance("0.11.0"))]


def test_what_is_left_out_of_equal_instances_is_one_warning() -> None:
    small = [(host, instance("0.11.0", "--max-model-len", "2048")) for host in ("n1", "n2")]
    warnings = check_cells(knowledge(), "serving", ["serve"], small, {})
    assert len(warnings) == len(set(warnings)) >= 2
    assert all(text.startswith("suite serving, hosts n1, n2: ") for text in warnings)
    assert any("in8192-out1024-c64 is left out." in text for text in warnings)


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
    with pytest.raises(FleetError) as caught:
        check_cells(knowledge(), suite, kinds, TWO, overrides)
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
