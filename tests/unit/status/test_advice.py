# SPDX-License-Identifier: Apache-2.0
"""No next step that status.yml prints makes an outage larger: all of them, against the rules."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.engines import failures
from ansible_collections.instinct.fleet.plugins.module_utils.engines.failure_signatures import SIGNATURES
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor import gpus
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    Generation,
    GenerationMember,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.hints import HINTS
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.status import rows as s
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.status.fleet import (
    FleetStatus,
    status,
)

from tests import ROOT
from tests.worlds.status_world import NOW, host, instance, server

PLAYBOOKS = {path.name for path in (ROOT / "playbooks").glob("*.yml")}
NEVER = (
    "stop.yml",
    "at_once",
    "docker stop",
    "docker kill",
    "docker rm",
    "docker restart",
    "new_secrets",
    "kill -9",
)
"""What takes instances away, or replaces all of them at the same time."""

TEXTS = {
    **{f"state {state}": text for state, text in s.NEXT.items()},
    **{f"cause {item.kind}": item.next_step for item in SIGNATURES},
    **{f"hint {number}": text for number, (_, text) in enumerate(HINTS)},
    "illegal instruction": failures.NEXT_ILLEGAL_INSTRUCTION,
    "killed": failures.NEXT_KILLED,
    "GPU memory": gpus.NEXT_STEP,
}


def broken(text: str) -> list[str]:
    """Return the rules that a text breaks, whatever else runs."""
    found = [f"never {word}" for word in NEVER if word in text]
    found += [
        f"no playbook {name}" for name in re.findall(r"\b([a-z_]+\.yml)", text) if name not in PLAYBOOKS
    ]
    drains = re.search(r"drain", text)
    if re.search(r"reboot|reset|reload", text) and not (drains or "partition.yml" in text):
        found.append("drained before a reboot, a reset or a reload")
    if re.search(r"\bstop (it|that)\b", text, re.IGNORECASE) and not re.search(
        r"not an instance of this fleet|the process that holds it", text
    ):
        found.append("what is stopped may serve")
    if "restart.yml" in text and "-e instance=" not in text and "-e deployment=" not in text:
        found.append("restarts more than one")
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_every_text(name: str) -> None:
    assert broken(TEXTS[name]) == []


def test_the_rules_find_something() -> None:
    for text in (
        "stop.yml --limit n1",
        "reboot the node",
        "Stop it.",
        "restart.yml",
        "deploi.yml",
        "-e at_once=true",
    ):
        assert broken(text), text


# ---- in a fleet --------------------------------------------------------------------------------------

OOM = {
    "at": NOW - 60, "seconds": 9.0, "served": 0.0, "code": 1, "kind": "out_of_memory", "line": "HIP out of memory.",
    "next_step": "Lower gpu_memory_utilization.", "log": "failure-1.log",
}  # fmt: skip
SICK: dict[str, dict[str, Any] | None] = {
    "serves": {},
    "stopped": {"status": "exited", "health": None, "metrics": None},
    "crashed": {"status": "exited", "exit_code": 1, "health": None, "metrics": None, "failure": OOM},
    "paused": {"status": "paused", "health": None, "metrics": None},
    "silent": {"health": 0, "metrics": None},
    "gave up": {
        "health": 0, "metrics": None,
        "supervisor": {"state": "gave_up", "since": NOW, "why": "", "failures": [OOM] * 3},
    },
    "missing": None,
}  # fmt: skip
OUT = {"state": "drain"}
PLACES: dict[str, dict[str, Any]] = {
    "in": {},
    "down": {"up": False},
    "drained by the operator": {**OUT, "out": {"by": "operator", "since": "T"}},
    "drained by a run": {**OUT, "out": {"by": "run", "since": "T"}},
}
UNREACHED = (
    "",
    "No route to host",
    "root@n1: Permission denied (publickey).",
    "Module result deserialization failed",
)
HELD = (None, 2, 3)


def made(sick: str, place: str, beside: str, unreached: str, held: int | None) -> FleetStatus:
    """n1 with an instance that is sick, and one beside it; n2 serves with another generation if one is held."""
    specs = {2: "old", 3: "aa"}
    kept = [
        Generation(
            "llama",
            number,
            members=tuple(GenerationMember(f"llama-{i}", spec, 8000 + i, ()) for i in range(2)),
        ).to_json()
        for number, spec in specs.items()
    ]
    hold = {"generation": held, "why": "slower", "since": "2026-01-01T00:00:00Z"} if held else None
    history = {"deployment": "llama", "held": hold, "trial": None, "kept": kept}
    keys = SICK[sick]
    first = [] if keys is None else [instance("llama-0", **keys)]
    seen = {
        "n1": host(*first, instance("llama-1"), generations=[history]),
        "n2": host(instance("llama-0"), instance("llama-1"), generations=[history]),
        "lb": host(
            servers=[
                server("n1", "llama-0", **PLACES[place]), server("n1", "llama-1", **PLACES[beside]),
                server("n2", "llama-0"), server("n2", "llama-1"),
            ]
        ),
    }  # fmt: skip
    if unreached:
        del seen["n1"]
    return status(seen, {"n1": unreached} if unreached else {})


def larger(found: FleetStatus) -> list[str]:
    """Return the next steps that take away what serves."""
    wrong = []
    advice = [(row, row.next_step) for row in found.rows if row.next_step]
    serving = {row.host for row in found.rows if row.balancer not in (s.OUT, s.DOWN, s.NONE)}
    divided = {item.name for item in found.deployments if item.divided}
    for row, text in advice:
        wrong += [f"{text}: {rule}" for rule in broken(text)]
        limit = re.search(r"(?<!un)drain\.yml --limit (\S+)", text)
        if limit and limit[1] in serving:
            wrong.append(f"{text}: what serves on {limit[1]} would be drained")
        if "site.yml" in text and row.deployment in divided:
            wrong.append(f"{text}: it moves what serves to the held generation")
    return wrong


CASES = list(itertools.product(SICK, PLACES, ("in", "down", "drained by a run"), UNREACHED, HELD))


def test_no_next_step_makes_an_outage_larger() -> None:
    wrong = {case: larger(made(*case)) for case in CASES}
    assert {case: texts for case, texts in wrong.items() if texts} == {}


def test_whatever_is_in_trouble_says_why_or_what_next() -> None:
    for case in CASES:
        for row in made(*case).rows:
            assert not row.trouble or row.why or row.next_step, (case, row)


def test_a_fleet_that_is_divided_is_advised_to_go_back_and_not_to_deploy() -> None:
    """What a run left drained returns with the rollback."""
    found = made("serves", "drained by a run", "in", "", 2)
    (row,) = [row for row in found.rows if row.state == s.DRAINED]
    assert row.next_step.startswith(
        "rollback.yml -e deployment=llama -e generation=2 returns it and moves the others"
    )
