# SPDX-License-Identifier: Apache-2.0
"""What documents say, quoted in the explained plan where it applies; drafts that they name, offered there."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.feasibility.statements import _APPLIES
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import Lock

from tests.commands import instances
from tests.helpers.some import some
from tests.worlds.catalogue import knowledge
from tests.worlds.plan_world import LOCK, deployment, gpus, plan, state

# Refusals by arithmetic quote these (vllm_limits.py), and advice by arithmetic the last one (feasibility.py).
ELSEWHERE = {
    "attention-heads", "kv-heads", "tensor-parallel-slices", "block-fp8-slices", "context-beyond-model",
    "copies-before-tensor-parallel", "doubled-batch",
}  # fmt: skip
# Said of hosts and of benchmarks, or of what a deployment cannot set.
NOT_OF_A_DEPLOYMENT = {
    "visible-devices", "numa-balancing", "bench-prompts-multiple", "bench-steady-state", "bench-first-token",
    "bench-one-knob",
}  # fmt: skip


def hints(lock: Lock = LOCK, mode: str = "SPX", **keys: Any) -> dict[str, str]:
    """Texts of the hints of a deployment, by their ids."""
    (found,) = instances(plan({"n1": state(gpus=gpus(mode))}, [deployment(**keys)], lock))
    return {item["name"]: item["text"] for item in found["hints"]}


def flags(**given: Any) -> dict[str, Any]:
    return {"engine_args": given}


@pytest.mark.parametrize(
    ("name", "applies", "does_not"),
    [
        ("context-length", {}, flags(max_model_len=4096)),
        ("sequences-and-preemption", flags(max_num_seqs=512), flags(max_num_seqs=256)),
        ("graphs-memory", flags(gpu_memory_utilization=0.97), flags(gpu_memory_utilization=0.95)),
        ("graphs-memory", flags(gpu_memory_utilization=0.97),
         flags(gpu_memory_utilization=0.97, enforce_eager=True)),
        ("shared-memory", {"tensor_parallel_size": 2, "runtime": {"ipc": "private", "shm_size": "16g"}},
         {"runtime": {"ipc": "private", "shm_size": "16g"}}),
        ("shared-memory", {"tensor_parallel_size": 2, "runtime": {"ipc": "private", "shm_size": "16g"}},
         {"tensor_parallel_size": 2}),
        ("remote-code", flags(trust_remote_code=True), flags(trust_remote_code=False)),
        ("kernel-switches", {"env": {"VLLM_ROCM_USE_AITER_MOE": "0"}}, {"env": {"VLLM_ROCM_USE_AITER_MOE": "1"}}),
        ("kernel-switches", {"env": {"VLLM_ROCM_MOE_PADDING": "0"}}, {"env": {"VLLM_ROCM_USE_AITER": "0"}}),
        ("fit-simple-formula", {"mode": "CPX"}, {}),
        ("cpx-memory", {"mode": "CPX"}, {}),
    ],
)  # fmt: skip
def test_a_statement_is_quoted_where_it_applies(
    name: str, applies: dict[str, Any], does_not: dict[str, Any]
) -> None:
    assert hints(**applies)[name]
    assert name not in hints(**does_not)


def test_every_statement_is_quoted_somewhere() -> None:
    """A rule without conditions applies to nothing by itself: it needs a place that decides."""
    bare = {
        entry.name
        for recipe in some(knowledge().recipes)
        for entry in recipe.rules
        if not (entry.when or entry.needs or entry.unless)
    }
    assert bare == {*_APPLIES, *ELSEWHERE, *NOT_OF_A_DEPLOYMENT}


def test_the_guides_sum_stands_beside_its_formula() -> None:
    text = hints(mode="CPX")["fit-simple-formula"]
    # 40 layers of 2,048 in 16 bit: 8,192 tokens take 2 x 40 x 2048 x 2 x 8192 bytes.
    assert "one request of 8,192 tokens" in text
    assert "2.5 GiB" in text


@pytest.mark.parametrize(
    ("keys", "offered"),
    [
        ({}, True),
        ({"objective": "latency"}, True),
        ({"objective": "throughput"}, False),
        ({"recipes": False}, False),
        ({"settings": {"speculative": {"method": "ngram", "num_speculative_tokens": 2}}}, False),
        ({"model": "meta-llama/Llama-3.1-70B-Instruct"}, False),
        ({"vllm_version": "0.8.5"}, False),
    ],
)
def test_a_draft_is_offered_where_it_can_help(keys: dict[str, Any], offered: bool) -> None:
    found = hints(**{"model": "meta-llama/Llama-3.1-8B-Instruct", **keys})
    assert ("speculative-pair" in found) == offered
    if offered:
        assert "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B can serve as its draft model" in found["speculative-pair"]
        assert '"method":"eagle3"' in found["speculative-pair"]
        assert "max_num_seqs: 300" in found["speculative-pair"]


def test_quotes_are_for_the_explained_plan_with_their_source() -> None:
    made = plan({"n1": state()}, [deployment()])
    assert "A max_model_len as small as" not in explain(made)
    assert "A max_model_len as small as" in explain(made, full=True)
    assert "amd-dev-docker-0.9.1" in made.sources
