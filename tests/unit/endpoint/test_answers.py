# SPDX-License-Identifier: Apache-2.0
"""Load balancers that answer, and those that do not."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.drain import (
    ServerStateRequest,
    set_state,
)
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.haproxy_socket import HaproxyUnavailable
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.installed import Balancer
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.answers import answers_of

ONE, TWO = {"item": {"balancer": "lb1", "servers": ["a"]}}, {"item": "lb2"}
OFF = {"unreachable": True, "msg": "No route to host.\nmore"}
DOWN = {"class": "balancer", "msg": "HAProxy does not answer"}

CASES: dict[str, tuple[list[Any], str, str]] = {
    # answers, what ends a run, what an operator reads
    "no load balancer": ([], "", ""),
    "all answer": ([ONE, TWO], "", ""),
    "one is off": (
        [{**ONE, **OFF}, TWO],
        "",
        "Set in lb2, but not in all load balancers: lb1: No route to host. On its host, systemctl status "
        "instinct-balancer says more. When it answers, run the same command again.",
    ),
    "one refuses": (
        [{**ONE, "failed": True, "msg": "Not in service after 300 s: a."}, TWO],
        "Not in service after 300 s: a.",
        "Not in service after 300 s: a.",
    ),
    "both refuse": (
        [{**ONE, "failed": True, "msg": "too few"}, {**TWO, "failed": True, "msg": "none left"}],
        "lb1: too few; lb2: none left",
        "lb1: too few; lb2: none left",
    ),
    "one refuses, the other is off": (
        [{**ONE, **OFF}, {**TWO, "failed": True, "msg": "too few"}],
        "too few",
        "too few",
    ),
    "one does not run": (
        [ONE, {**TWO, **DOWN}],
        "",
        "Set in lb1, but not in all load balancers: lb2: HAProxy does not answer. On its host, systemctl status "
        "instinct-balancer says more. When it answers, run the same command again.",
    ),
    "none": (
        [{**ONE, **OFF}, {**TWO, **DOWN}],
        "No load balancer answers: lb1: No route to host; lb2: HAProxy does not answer. On its host, systemctl status "
        "instinct-balancer says more. Bring one back, and run the same command again.",
        "No load balancer answers: lb1: No route to host; lb2: HAProxy does not answer. On its host, systemctl status "
        "instinct-balancer says more. Bring one back, and run the same command again.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_follows(case: str) -> None:
    results, run, operator = CASES[case]
    found = answers_of(results)
    assert (found.problem("run"), found.problem("operator")) == (run, operator)
    starts = (
        [f"load balancer {name} does not answer: {why.rstrip('.')}. " for name, why in found.lost.items()]
        if found.answered
        else []
    )
    assert [text.startswith(start) for text, start in zip(found.warnings("run"), starts, strict=True)] == [
        True
    ] * len(starts)
    assert found.warnings("operator") == []


def test_the_fault_of_a_balancer_has_its_class(tmp_path: Any) -> None:
    assert HaproxyUnavailable("x").result == {"class": "balancer"}
    balancer = Balancer(str(tmp_path), str(tmp_path))
    with pytest.raises(Exception, match="no load balancer on this host") as error:
        balancer.servers()
    assert error.value.result == {"class": "balancer"}  # type: ignore[attr-defined]
    (tmp_path / "current").mkdir()
    (tmp_path / "current/balancer.json").write_text('{"backends": []}')
    with pytest.raises(Exception, match="has no server x") as error:
        set_state(balancer, ServerStateRequest(("x",), "drain", "run", 0), False)
    assert error.value.result == {"class": "balancer"}  # type: ignore[attr-defined]


def test_a_refusal_keeps_its_class() -> None:
    other = answers_of([{**ONE, "failed": True, "msg": "x", "class": "other_run"}, TWO])
    assert other.failure_class == "other_run"
    assert answers_of([{**ONE, "failed": True, "msg": "Not in service"}]).failure_class == ""
    assert answers_of([{**ONE, **OFF}]).failure_class == "balancer"
