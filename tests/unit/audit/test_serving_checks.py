# SPDX-License-Identifier: Apache-2.0
"""What runs against the records of generations, as items of the audit."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    Generation,
    GenerationMember,
    Hold,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.items import OK, WRONG
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.judge import audit
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.serving_checks import drifts
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.text import (
    HostReport,
    Report,
    text,
)

from tests.worlds.host_world import items, judged, state, view

HELD = Hold(3, "canary: 30 % slower", "2026-01-01T00:00:00Z").to_json()


def node(image: str = "r@sha256:1", held: Any = None, **instances: str) -> dict[str, Any]:
    """A host whose record has llama-0 and llama-1 with spec aa; instances: their containers' specs."""
    members = tuple(GenerationMember(f"llama-{number}", "aa", 8000 + number) for number in (0, 1))
    kept = Generation("llama", 3, image=image, members=members).to_json()
    running = [
        {
            "name": name.replace("_", "-"), "deployment": "llama", "state": "running", "spec_hash": spec,
            "artefact_hash": spec, "exit_code": 0, "ready": True,
        }
        for name, spec in instances.items()
    ]  # fmt: skip
    history = {"deployment": "llama", "held": held, "trial": None, "kept": [kept], "broken": None}
    return {**state(), "instances": running, "generations": [history]}


GOOD = {"llama_0": "aa", "llama_1": "aa"}


@pytest.mark.parametrize(
    ("made", "item", "note"),
    [
        (node(**GOOD), "", ""),
        (state(), "", ""),
        (
            node(llama_0="aa", llama_1="0123"),
            "serving-recorded",
            "llama-1 runs a configuration that is not recorded",
        ),
        (node(llama_0="aa"), "serving-runs", "llama-1 is missing, but generation 3 includes it"),
        (node(**GOOD, held=HELD), "serving-free", "llama held at generation 3 (canary: 30 % slower)"),
    ],
)
def test_items(made: dict[str, Any], item: str, note: str) -> None:
    found = judged(view(drift=drifts({"n1": made})["n1"]))
    wrong = {
        name: finding
        for name, finding in found.items()
        if name.startswith("serving") and finding.status != OK
    }
    assert list(wrong) == ([item] if item else [])
    if item:
        assert wrong[item].status == WRONG
        assert wrong[item].verdict.note == note


def test_changed_files() -> None:
    made = node(**GOOD)
    made["instances"][0]["artefact_hash"] = "bb"
    found = judged(view(drift=drifts({"n1": made})["n1"]))["serving-files"]
    assert found.verdict.found == "llama-0"
    assert "were changed on the node" in found.verdict.note


def test_a_difference_between_hosts_is_told_on_those_that_have_the_deployment() -> None:
    found = drifts({"n1": node(**GOOD), "n2": node("r@sha256:2", **GOOD), "n3": state()})
    assert [len(found[name]) for name in ("n1", "n2", "n3")] == [1, 1, 0]


def test_hosts_in_equal_state_stay_together_and_fit() -> None:
    states = {
        f"n{number}": node(held={**HELD, "since": f"2026-01-01T00:00:{number:02}Z"}, llama_0=f"{number:04}")
        for number in range(10, 14)
    }
    found = drifts(states)
    hosts = tuple(HostReport(name, "8 MI300X", audit(items(), view(drift=found[name]))) for name in states)
    lines = text(Report(hosts)).splitlines()
    assert "n10, n11, n12, n13: 8 MI300X" in lines
    assert max(map(len, lines)) <= 100
    assert any("upgrade.yml -e retry=true" in line for line in lines)
