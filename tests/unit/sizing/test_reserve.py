# SPDX-License-Identifier: Apache-2.0
"""The reserve for activations, sampling and libraries against what vLLM logged at starts that were published."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.shape import ModelShape
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.engine_config import (
    EngineConfig,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.fit import fit, stage_weights
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.reserve import (
    Reserve,
    activations,
    reserve,
)

from tests.worlds.catalogue import model_shape
from tests.worlds.fit_world import CONFIGS, DATA, engine, model

GIB = 1 << 30
LLAMA_8B, DEEPSEEK = "meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3"
CASES = json.loads((DATA / "reserves.json").read_text(encoding="utf-8"))["cases"]
NAMES = [case["name"] for case in CASES]


def published(case: dict[str, Any]) -> tuple[ModelShape, EngineConfig, float]:
    """Return the model, the engine, and the reserve in bytes of a published start."""
    shape = model_shape(case.get("config") or CONFIGS[case["model"]])
    if case.get("images"):
        shape = replace(shape, other_bytes=GIB)
    given = engine(
        case["release"],
        memory_bytes=int(case["total"] * GIB),
        gpu_memory_utilization=case["utilization"],
        **case["engine"],
    )
    weights = case["weights"] or max(stage_weights(shape, given)) / GIB
    if "kv" not in case:
        return shape, given, (case["activation"] + case["other"]) * GIB
    return shape, given, (case["total"] * case["utilization"] - weights - case["kv"]) * GIB


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_the_range_holds_what_was_measured(case: dict[str, Any]) -> None:
    shape, given, measured = published(case)
    found = reserve(shape, given)
    assert found.low <= found.expected <= found.high
    assert found.low <= measured <= found.high


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["gpu"] == "MI300X"],
    ids=[case["name"] for case in CASES if case["gpu"] == "MI300X"],
)
def test_the_cache_of_an_instinct_is_predicted_within_6_percent(case: dict[str, Any]) -> None:
    shape, given, measured = published(case)
    budget = given.requested_bytes - case["weights"] * GIB
    assert budget - reserve(shape, given).expected == pytest.approx(budget - measured, rel=0.06)


IN_CHUNKS = "R1-Distill-Qwen-14B, 2 x RTX 4090, V0 in chunks"
LOGGED = [case["name"] for case in CASES if "activation" in case and case["name"] != IN_CHUNKS]


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["name"] in LOGGED],
    ids=LOGGED,
)
def test_the_peak_of_activations_is_predicted_within_7_percent(case: dict[str, Any]) -> None:
    shape, given, _measured = published(case)
    assert activations(shape, given).expected / GIB == pytest.approx(case["activation"], rel=0.07)


def test_v0_in_chunks_was_seen_with_and_without_sampling() -> None:
    case = next(case for case in CASES if case["name"] == IN_CHUNKS)
    shape, given, _measured = published(case)
    found = activations(shape, given)
    assert found.low / GIB < case["activation"] < found.expected / GIB


# --- releases ---------------------------------------------------------------------------------------------------------

LOGIT = 1024 * 128256
STEP = 8192 * 2 * 4096


@pytest.mark.parametrize(
    ("version", "v1", "sampling"),
    [
        ("0.6.3", False, 38 * LOGIT + STEP),
        ("0.9.1", False, 38 * LOGIT + STEP),
        ("0.8.0", True, 38 * LOGIT + STEP),
        ("0.16.0", True, 38 * LOGIT + STEP),
        ("0.17.0", True, 14 * LOGIT + STEP + 304 * 4 * 128256),
        ("0.33.0", True, 14 * LOGIT + STEP + 304 * 4 * 128256),
    ],
)
def test_sampling_by_release(version: str, v1: bool, sampling: int) -> None:
    given = engine(version, v1=v1, chunked_prefill=True, max_num_seqs=1024)
    assert activations(model(LLAMA_8B), given).expected == sampling


def test_the_larger_of_step_and_sampling_counts() -> None:
    step = 8192 * 2 * (4 * 4096 + 3 * 14336)
    assert activations(model(LLAMA_8B), engine(max_num_seqs=16)).expected == step
    assert activations(model(LLAMA_8B), engine(tp=2, max_num_seqs=16)).expected == 8192 * 2 * (
        4 * 4096 + 3 * 7168
    )
    # V1 sampled nothing when it profiled before 0.8.0.
    assert activations(model(LLAMA_8B), engine("0.7.3", max_num_seqs=1024)).expected == step


def test_communication_is_beside_the_budget_since_0_11() -> None:
    def joined(version: str, **changes: Any) -> int:
        def size(tp: int) -> int:
            given = engine(version, tp=tp, max_num_seqs=1024, **changes)
            return reserve(model(LLAMA_8B), given).expected

        return size(2) - size(1)

    assert joined("0.10.2") == 1500 << 20
    assert joined("0.11.0") == 0
    assert joined("0.10.2", quick_reduce_bytes=2 * GIB) == (1500 << 20) + 4 * GIB
    assert joined("0.11.0", quick_reduce_bytes=2 * GIB) == 0


def test_graphs_images_and_cpus() -> None:
    plain = reserve(model(LLAMA_8B), engine("0.25.1"))
    graphs = reserve(model(LLAMA_8B), engine("0.26.0"))
    assert graphs.expected - plain.expected == GIB
    seen = reserve(replace(model(LLAMA_8B), other_bytes=GIB), engine("0.25.1"))
    assert seen.expected - plain.expected == STEP
    assert seen.high - plain.high == STEP + 4 * GIB
    assert reserve(model(LLAMA_8B), engine(platform="cpu")) == Reserve(0, 0, 0)


# --- what follows for the cache ---------------------------------------------------------------------------------------


def test_the_range_of_the_cache_follows_from_that_of_the_reserve() -> None:
    given = engine(max_num_seqs=1024, max_num_batched_tokens=16384)
    found, size = fit(model(LLAMA_8B), given), reserve(model(LLAMA_8B), given)
    assert found.predicted
    assert found.predicted.reserve_bytes == (size.low, size.high)
    budget = given.requested_bytes - found.weights_bytes_per_gpu
    assert found.predicted.kv_cache_bytes == (budget - size.high, budget - size.low)
    low, high = found.predicted.kv_cache_tokens
    assert low < found.kv_cache_tokens < high
    assert found.to_json()["predicted"]["kv_cache_tokens"] == [low, high]
    assert fit(model(LLAMA_8B), engine(kv_cache_memory_bytes=GIB)).predicted is None
    assert fit(model(LLAMA_8B), engine(platform="cpu", kv_cache_memory_bytes=GIB)).predicted is None


def test_what_fits_surely_fits_beside_the_largest_reserve() -> None:
    found = fit(model(DEEPSEEK), engine(tp=4))
    assert found.fits
    assert not found.surely_fits
    assert fit(model(DEEPSEEK), engine(tp=8)).surely_fits
