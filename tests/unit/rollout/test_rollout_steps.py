# SPDX-License-Identifier: Apache-2.0
"""What a host does in each phase of a batch, and on its way back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    RESTART,
    ROLLBACK,
    STOP,
    UPGRADE,
    Hold,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.steps import (
    FORWARD,
    HOLD_TEXT,
    WAY_BACK,
    BatchChange,
    Canary,
    Step,
    Work,
    hold_reason,
    hold_steps,
    no_trial,
    phases,
    steps_of,
    trial_record,
)

NEW, OLD = {"name": "llama-0", "generation": 2}, {"name": "llama-0", "generation": 1}
HERE = [{"balancer": "lb", "servers": ["llama/n1.llama-0:8000"]}]
WORK = Work(servers=[NEW], leave=HERE, enter=HERE, old_servers=[OLD], enter_old=HERE)
CANARY = Canary("n1/llama-0", {"name": "old"}, {"name": "new"}, {"name": "beside"}, True, {})
UNKNOWN = replace(WORK, old_servers=(), enter_old=(), lost=["llama-0"])
GOES_BACK: dict[str, Any] = {"before": 1, "together": {"chat": 3}}
CHANGE = BatchChange(UPGRADE, "llama", 2, "other flags", 30, before=1, together={"chat": 3})

PLAIN = ["drain", "serve", "undrain", "watch", "confirm"]
BACK = ["drain", "serve_old", "undrain_old"]
# the work, the operation: the phases of the batch, of the way back
CASES: dict[str, tuple[Work, str, list[str], list[str]]] = {
    "an upgrade": (WORK, UPGRADE, PLAIN, BACK),
    "a rollback": (WORK, ROLLBACK, PLAIN, []),
    "a restart": (WORK, RESTART, ["drain", "stop", *PLAIN[1:]], []),
    "a stop": (WORK, STOP, ["stop"], []),
    "its canary": (
        replace(WORK, canary=CANARY), UPGRADE,
        ["drain", "measure", "record_baseline", "serve", "judge", "record_verdict", "undrain", "watch", "confirm"],
        ["drain", "report", *BACK[1:]],
    ),
    "a canary that was cut off": (
        replace(WORK, canary=replace(CANARY, measure=False)), UPGRADE,
        ["drain", "serve", "judge", "record_verdict", "undrain", "watch", "confirm"],
        ["drain", "report", *BACK[1:]],
    ),
    "an engine over several hosts": (
        replace(WORK, spans=True), UPGRADE, ["drain", "start", *PLAIN[1:]], ["drain", "start_old", *BACK[1:]],
    ),
    "a restart of one": (replace(WORK, spans=True), RESTART, ["drain", "stop", "start", *PLAIN[1:]], []),
    "an instance that goes": (
        replace(WORK, servers=(), remove=["llama-0"], enter=()), UPGRADE, ["drain", "serve"], BACK,
    ),
    "an instance that comes": (
        replace(WORK, leave=(), old_servers=(), old_remove=["llama-0"], enter_old=()), UPGRADE,
        PLAIN[1:], ["serve_old"],
    ),
    "nothing is known to go back to": (UNKNOWN, UPGRADE, PLAIN, ["drain"]),
    "no load balancer": (replace(WORK, leave=(), enter=(), enter_old=()), UPGRADE, ["serve", "watch"], ["serve_old"]),
    "nothing runs there to be restarted": (
        replace(WORK, servers=(), remove=["a"]), RESTART, ["drain", "serve", "undrain", "confirm"], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_phases_of_a_host(case: str) -> None:
    work, operation, forward, back = CASES[case]
    found = steps_of(work, replace(CHANGE, operation=operation))
    assert phases([found], FORWARD) == forward
    if operation == UPGRADE:
        assert phases([found], WAY_BACK) == back
    assert set(found) == {*forward, *back}


def test_a_batch_has_the_phases_of_all_its_hosts_in_one_order() -> None:
    canary, other = (
        steps_of(replace(WORK, canary=CANARY), CHANGE),
        steps_of(replace(WORK, spans=True), CHANGE),
    )
    assert phases([other, canary], FORWARD) == [
        "drain", "measure", "record_baseline", "start", "serve", "judge", "record_verdict",
        "undrain", "watch", "confirm",
    ]  # fmt: skip
    assert phases([], FORWARD) == []


BOTH = {"new": {"name": "new"}, "reference": {"name": "beside"}, "change": "other flags"}
STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "drain": ("balancer_server", {"servers": HERE, "state": "drain"}),
    "measure": ("canary", {"phase": "before", "old": CANARY.old, **BOTH}),
    "start": ("vllm_server", {"servers": [NEW], "remove": ["llama-1"], "wait": False}),
    "serve": ("vllm_server", {"servers": [NEW], "remove": ["llama-1"]}),
    "judge": ("canary", {"phase": "after", **BOTH}),
    "undrain": ("balancer_server", {"servers": HERE, "state": "ready"}),
    "watch": ("vllm_watch", {"servers": ["llama-0"], "seconds": 30}),
    "confirm": ("balancer_server", {"servers": HERE, "state": "ready", "wait": 10}),
    "report": ("canary", {"phase": "failed", **BOTH}),
    "start_old": ("vllm_server", {"servers": [OLD], "remove": ["llama-2"], "wait": False}),
    "serve_old": ("vllm_server", {"servers": [OLD], "remove": ["llama-2"]}),
    "undrain_old": ("balancer_server", {"servers": HERE, "state": "ready"}),
}  # fmt: skip


@pytest.mark.parametrize("phase", STEPS)
def test_the_arguments_of_a_step(phase: str) -> None:
    work = replace(WORK, canary=CANARY, spans=True, remove=["llama-1"], old_remove=["llama-2"])
    assert steps_of(work, CHANGE)[phase] == Step(*STEPS[phase])


def test_a_canary_that_was_cut_off_is_judged_by_what_was_found_then() -> None:
    canary = replace(CANARY, measure=False, baseline={"tps": 1})
    found = steps_of(replace(WORK, canary=canary), CHANGE)
    assert [found[phase].args["baseline"] for phase in ("judge", "report")] == [{"tps": 1}] * 2


def test_a_stop_is_told_what_to_stop() -> None:
    found = steps_of(WORK, replace(CHANGE, operation=STOP))
    assert found["stop"].to_json() == {
        "action": "vllm_server",
        "args": {"servers": [NEW], "state": "stopped"},
    }


@pytest.mark.parametrize(
    ("step", "units", "baseline"),
    [
        ("record_baseline", [], {"canary": "n1/llama-0", "found": {}}),
        ("record_verdict", ["n1/llama-0"], {"canary": "n1/llama-0", "found": {}}),
    ],
)
def test_records_of_a_trial(step: str, units: list[str], baseline: dict[str, Any]) -> None:
    found = steps_of(replace(WORK, canary=CANARY), CHANGE)[step]
    trial = {"generation": 2, "why": "other flags", "units": units, "baseline": baseline, **GOES_BACK}
    assert found == Step("serving_generation", {"bindings": [{"deployment": "llama", "trial": trial}]})


def test_a_trial_that_begins_and_one_that_ends() -> None:
    trial = {"generation": 2, "why": "other flags", "units": [], "baseline": {}, **GOES_BACK}
    assert trial_record(CHANGE) == {"deployment": "llama", "trial": trial}
    assert no_trial(["llama", "qwen", "llama"]) == {
        "bindings": [{"deployment": "llama", "trial": None}, {"deployment": "qwen", "trial": None}]
    }


@pytest.mark.parametrize(
    ("why", "kept"),
    [("slower", "slower"), ("x" * HOLD_TEXT, "x" * HOLD_TEXT), ("x" * 401, "x" * 399 + "…")],
)
def test_a_hold_keeps_the_reason(why: str, kept: str) -> None:
    assert hold_reason(why) == kept


HOLDS = {"llama": Hold(1, "", "", (2,), ("chat",)), "chat": Hold(0, "", "", (1,), ("llama",))}


@pytest.mark.parametrize(
    ("kept", "names"), [(("chat", "llama", "qwen"), ["llama", "chat"]), (("llama",), ["llama"])]
)
def test_a_host_holds_what_it_keeps(kept: tuple[str, ...], names: list[str]) -> None:
    found = hold_steps(HOLDS, kept)
    assert list(found) == ["hold", "confirm_hold"]
    bindings = [{"deployment": name, "trial": None, "held": HOLDS[name].to_json()} for name in names]
    assert {step.action for step in found.values()} == {"serving_generation"}
    assert [step.args for step in found.values()] == [{"bindings": bindings}] * 2


@pytest.mark.parametrize(("holds", "kept"), [({}, ("llama",)), (HOLDS, ("qwen",))])
def test_a_host_that_keeps_nothing_of_it_holds_nothing(holds: dict[str, Hold], kept: tuple[str, ...]) -> None:
    assert hold_steps(holds, kept) == {}
