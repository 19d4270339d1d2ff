# SPDX-License-Identifier: Apache-2.0
"""The planner's memory arithmetic against recorded answers of the real vLLM, and against published models."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.shape import ModelShape
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.fit import EngineConfig, fit

from tests import ROOT
from tests.oracles.fit_cases import planned
from tests.worlds.catalogue import kv_rules, model_shape

DATA = ROOT / "tests/data/fit"
GIB = 1 << 30
CPU = json.loads((DATA / "cpu_0.32.0.json").read_text())
GOLDEN = json.loads((DATA / "golden_0.33.0.json").read_text())["cases"]
PUBLISHED = json.loads((DATA / "published.json").read_text())["models"]
LOGGED = json.loads((DATA / "logged_0.32.0.json").read_text())


def published(name: str) -> dict[str, Any]:
    return next(item for item in PUBLISHED if item["name"] == name)


@pytest.mark.parametrize("question", CPU["cases"], ids=lambda question: question["name"])
def test_agrees_with_vllm(question: dict[str, Any]) -> None:
    """Tokens, concurrency and weights, within one percent of what vLLM's own code makes of the same config."""
    answer = question["answer"]
    found = planned(question, kv_rules(CPU["vllm"]))
    assert found.basis == "exact"
    assert found.max_model_len == answer["max_model_len"]
    assert found.kv_cache_tokens == pytest.approx(answer["tokens"], rel=0.01)
    assert found.max_concurrency == pytest.approx(answer["concurrency"], rel=0.01)
    assert found.weights_bytes_per_gpu == pytest.approx(answer["weights_bytes"], rel=0.01)


def test_what_was_recorded_covers_the_architectures() -> None:
    answered = [question for question in CPU["cases"] if "tokens" in question["answer"]]
    assert len(answered) == len(CPU["cases"])
    for tp in (1, 2):
        kinds = {question["config"]["model_type"] for question in answered if question["tp"] == tp}
        assert len(kinds) >= 16
    assert {question["engine"].get("dtype", "auto") for question in answered} == {
        "auto",
        "float16",
        "float32",
    }
    assert len({question["answer"]["block_size"] for question in answered}) >= 5


@pytest.mark.parametrize("question", LOGGED["cases"], ids=lambda question: question["name"])
def test_agrees_with_the_log_of_a_started_server(question: dict[str, Any]) -> None:
    """`CPU KV cache size: N tokens, Maximum concurrency for L tokens per request: X x` of a real start."""
    found = planned(question, kv_rules(LOGGED["vllm"]))
    assert found.kv_cache_tokens == pytest.approx(question["logged"]["tokens"], rel=0.01)
    assert found.max_concurrency == pytest.approx(question["logged"]["concurrency"], rel=0.01)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_golden_numbers_of_0_33(case: dict[str, Any]) -> None:
    model = model_shape(published(case["model"])["config"])
    engine = EngineConfig(
        rules=kv_rules("0.33.0"),
        memory_bytes=2000 * GIB,
        gpu_memory_utilization=0.9,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        kv_cache_memory_bytes=case["kv_gib"] * GIB,
        **case["engine"],
    )
    found = fit(model, engine)
    assert found.kv_cache_tokens == case["tokens"]
    assert round(found.max_concurrency, 4) == pytest.approx(case["concurrency"])
    assert found.kv_cache_bytes // case["bytes_per_block"] == case["num_blocks"]


@pytest.mark.parametrize("item", PUBLISHED, ids=lambda item: item["name"])
def test_parameters_are_the_published_ones(item: dict[str, Any]) -> None:
    model = model_shape(item["config"])
    assert model.known
    assert model.parameters == item["parameters"]


@pytest.mark.parametrize(
    "item", [item for item in PUBLISHED if "tensor_bytes" in item], ids=lambda item: item["name"]
)
def test_the_checkpoint_has_the_published_size(item: dict[str, Any]) -> None:
    """Formats with scales, unquantized parts, and layers that are stored and not loaded."""
    model: ModelShape = model_shape(item["config"], index_total=item["tensor_bytes"])
    assert model.factor == 1
    assert model.known
    assert model.stored_total == pytest.approx(item["tensor_bytes"], rel=1e-4)
