# SPDX-License-Identifier: Apache-2.0
"""Where nodes differ from their own records, and from one another."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.generations.drift import drift
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.node_state import NodeState

from tests.worlds.plan_world import apply_to_state, deployment, plan, state

HELD = {"generation": 1, "why": "slower", "since": "2026-11-21T23:00:00Z"}
TRIAL = {**HELD, "generation": 2}


def node(seqs: int | None = None, found: Any = None) -> dict[str, Any]:
    """A host on which a deployment of two instances runs; `found`: what it was before."""
    more = {"engine_args": {"max_num_seqs": seqs}} if seqs else {}
    before = found or state()
    data = plan({"n1": before}, [deployment(instances_per_host=2, **more)]).to_json()
    return apply_to_state(before, data["hosts"]["n1"])


def kinds(**states: dict[str, Any]) -> list[tuple[str, str, str]]:
    found = drift({name: NodeState.from_json(item) for name, item in states.items()})
    assert all(item.text and item.fix for item in found)
    return [(item.kind, item.host, item.instance) for item in found]


SECOND = node(16, node())


def changed(
    instance: int | None = None, history: dict[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
    """The host of generations 1 and 2 with something changed, of an instance or of its record."""
    found = copy.deepcopy(SECOND)
    if instance is not None:
        found["instances"][instance].update(keys)
    found["generations"][0].update(history or {})
    return found


FIRST_SPEC = SECOND["generations"][0]["kept"][0]["members"][0]["spec_hash"]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (SECOND, []),
        (state(), []),
        (changed(0, spec_hash="9" * 64, artefact_hash="9" * 64), [("unknown", "llama-0")]),
        (changed(0, spec_hash=None, artefact_hash=None), [("unknown", "llama-0")]),
        (changed(1, artefact_hash="9" * 64), [("files", "llama-1")]),
        (changed(1, artefact_hash=None), [("files", "llama-1")]),
        (changed(1, state="exited", exit_code=1), [("stopped", "llama-1")]),
        (changed(0, spec_hash=FIRST_SPEC, artefact_hash=FIRST_SPEC), [("differs", "llama-0")]),
        (changed(0, name="llama-7"), [("unknown", "llama-7"), ("missing", "llama-0")]),
        # Held at 1 while both run 2; on trial anything that is recorded may run.
        (changed(history={"held": HELD}), [("held", ""), ("differs", "llama-0"), ("differs", "llama-1")]),
        (changed(0, {"trial": TRIAL}, spec_hash=FIRST_SPEC, artefact_hash=FIRST_SPEC), [("trial", "")]),
        (changed(history={"broken": "2.json: ValueError"}), [("broken", "")]),
    ],
)  # fmt: skip
def test_of_one_host(found: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert kinds(n1=found) == [(kind, "n1", instance) for kind, instance in expected]


def test_what_a_record_has_no_longer() -> None:
    """Removed by a newer generation, and still there."""
    after = plan({"n1": SECOND}, [deployment(instances_per_host=1)]).to_json()["hosts"]["n1"]
    found = apply_to_state(SECOND, after)
    found["instances"].append(copy.deepcopy(SECOND["instances"][1]))
    assert kinds(n1=found) == [("surplus", "n1", "llama-1")]


def test_between_hosts() -> None:
    other = copy.deepcopy(SECOND)
    other["generations"][0]["kept"][1]["image"] = "registry.lab:5000/lab/vllm@sha256:" + "2" * 64
    assert kinds(n1=SECOND, n2=SECOND) == []
    assert kinds(n1=SECOND, n2=other) == [("differs", "", "")]
    other["generations"][0]["trial"] = TRIAL  # a rollout is under way: of course they differ
    assert kinds(n1=SECOND, n2=other) == [("trial", "n2", "")]
