# SPDX-License-Identifier: Apache-2.0
"""Which runs are proved before they begin, what the plan says of it, and which are refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run import proof
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.request import OPTIONS

from tests.worlds.edited_fleet import Inventory, Planned, edited, planned, settled
from tests.worlds.plan_world import deployment

HOSTS = {"n1": "192.0.2.11", "n2": "192.0.2.12"}
LLAMA: dict[str, Any] = deployment(gpus=[0, 1], instances_per_host=2)
BASE = Inventory(HOSTS, {"n1": "192.0.2.11"}, (LLAMA,))
EDITS: dict[str, dict[str, Any]] = {
    "a flag": {"deployments": ({**LLAMA, "engine_args": {"max_num_seqs": 64}},)},
    "another name": {"deployments": ({**LLAMA, "served_model_name": "chat"},)},
    "modes": {"modes": dict.fromkeys(HOSTS, "CPX")},
    "a weight": {"deployments": ({**LLAMA, "weight": 2},)},
    "nothing": {},
}
KEPT = ["", "  proved   llama: never fewer than 3 of 4 in service"]
HALF = ["", "  proved   llama: never fewer than 2 of 4 in service"]


@cache
def run(name: str, operation: str = "deploy") -> Planned:
    return planned(edited(BASE, **EDITS[name]), settled(BASE), operation, canary=False)


def given(**options: Any) -> dict[str, Any]:
    """The options of a run of this name."""
    return {
        **{name: option.get("default") for name, option in OPTIONS.items()},
        "offline": False, "apply": True, "canary": False, "operation": "deploy", "drain_timeout": 300,
        **options,
    }  # fmt: skip


def said(name: str, done: Planned | None = None, **options: Any) -> tuple[list[str], list[str]]:
    """The lines of the plan, and the problems."""
    item = done or run(name)
    lines, problems = proof.proof_and_refusals(given(**options), item.plan, item.todo, item.rollout, None)
    return lines, [one.what for one in problems]


@pytest.mark.parametrize(
    ("name", "options", "lines"),
    [
        ("a flag", {}, KEPT),
        # A run that only plans is proved as a deploy.
        ("a flag", {"operation": None, "apply": False}, KEPT),
        ("a flag", {"operation": None}, []),
        ("another name", {"operation": None}, []),  # partition.yml changes no names
        ("modes", {}, HALF),
        ("modes", {"partition_serial": None}, HALF),
        ("a weight", {}, []),  # no instance changes
        ("modes", {"operation": None}, HALF),  # partition.yml
        ("nothing", {}, []),
        ("nothing", {"operation": None, "apply": False}, []),
        *(("a flag", {option: value}, []) for option, value in
          (("offline", True), ("live", True), ("reboots", ["n1"]), ("stops", ["n1"]))),
    ],
)  # fmt: skip
def test_what_is_proved(name: str, options: dict[str, Any], lines: list[str]) -> None:
    assert said(name, **options) == (lines, [])


def test_what_clients_have_to_change() -> None:
    lines, problems = said("another name")
    text = " ".join(" ".join(lines).split())
    assert problems == []
    assert text.startswith(
        "clients model lab/tiny-llama ends with its last instance; clients ask for chat instead"
    )
    assert lines[0] == ""


def test_a_plan_of_which_not_everything_is_known_proves_nothing() -> None:
    done = run("a flag")
    partial = replace(
        done.plan, hosts=tuple(replace(host, unknown=("lab/image:1",)) for host in done.plan.hosts)
    )
    assert said("", replace(done, plan=partial)) == ([], [])


def test_a_restart_changes_nothing_and_is_proved() -> None:
    done = run("nothing", "restart")
    assert done.plan.changes == 0
    assert said("", done, operation="restart") == (KEPT, [])


def test_a_run_that_only_plans_what_would_be_refused_is_not_proved() -> None:
    options = {"operation": None, "apply": False, "min_available": "100%"}
    assert said("a flag", **options) == ([], [])


def test_what_the_operator_allows_is_what_counts() -> None:
    """Both hosts at a time leave nothing in service."""
    both = {"partition_serial": ["100%"]}
    lines, problems = said("modes", **both)
    assert lines == ["", "  proved   llama: never fewer than 0 of 4 in service"]
    assert "load balancer n1 would have 0 of 4 engines of llama (lab/tiny-llama) in service" in problems[0]
    assert said("modes", **both, at_once=True)[1] == []
    assert said("modes", partition_serial=[1])[1] == []
    _lines, problems = said("a flag", min_available="100%")
    assert "would have 3 of 4 engines of llama (lab/tiny-llama) in service, and 4 must stay." in problems[0]
