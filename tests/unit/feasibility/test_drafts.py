# SPDX-License-Identifier: Apache-2.0
"""What a draft adds to an engine's memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.models import named_model
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.shape import ModelShape
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.fit import (
    EngineConfig,
    Fit,
    fit,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.kv_cache import CacheRules
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.feasibility.drafts import (
    Draft,
    draft_notes,
    with_draft,
)

from tests.worlds.catalogue import knowledge, model_shape
from tests.worlds.plan_world import deployment, plan

GIB = 1 << 30


def config(name: str) -> Any:
    return named_model(knowledge().models, name).config


def engine(**keys: Any) -> EngineConfig:
    book = knowledge().book("0.11.1")
    rules = CacheRules.of(knowledge().rules("kv_cache", book.release))
    base: dict[str, Any] = {
        "gpu_memory_utilization": 0.9,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
    }
    return EngineConfig(rules=rules, memory_bytes=192 * GIB, **{**base, **keys})


LARGE: ModelShape = model_shape(config("meta-llama/Llama-3.1-70B-Instruct"))
R1: ModelShape = model_shape(config("deepseek-ai/DeepSeek-R1"))
SMALL = Draft("meta-llama/Llama-3.1-8B-Instruct", config("meta-llama/Llama-3.1-8B-Instruct"))


def both(model: ModelShape, draft: Draft, **keys: Any) -> tuple[Fit, Fit]:
    alone = engine(**keys)
    return fit(model, alone), fit(model, with_draft(alone, draft, model, knowledge().families))


@pytest.mark.parametrize(
    ("tp", "draft_tp", "kept"), [(1, None, 1.0), (4, None, 0.25), (4, 1, 1.0), (4, 2, 0.5)]
)
def test_weights_and_kv_cache_of_a_draft_model(tp: int, draft_tp: int | None, kept: float) -> None:
    alone, drafted = both(LARGE, replace(SMALL, tp=draft_tp), tp=tp)
    weights = drafted.weights_bytes_per_gpu - alone.weights_bytes_per_gpu
    assert weights == pytest.approx(2 * 8.030e9 * kept, rel=0.002)
    # 8 heads of 128 in 32 layers, keys and values of 16 bit.
    assert drafted.kv_bytes_per_token - alone.kv_bytes_per_token == 131072 * kept
    assert drafted.kv_cache_tokens < alone.kv_cache_tokens


def test_the_models_own_layers_that_draft() -> None:
    alone, drafted = both(R1, Draft(), tp=8)
    assert drafted.kv_bytes_per_token == alone.kv_bytes_per_token * 62 // 61
    assert GIB < drafted.weights_bytes_per_gpu - alone.weights_bytes_per_gpu < 3 * GIB
    assert any("multi-token prediction layers are not loaded" in note for note in alone.notes)
    assert not any("are not loaded" in note for note in drafted.notes)
    assert "model's own layers that draft" in draft_notes(Draft(), R1, knowledge().families)[0]


@pytest.mark.parametrize(
    ("draft", "text"),
    [
        (Draft("org/draft"), "is unknown and is not counted"),
        (
            Draft("org/draft", None, (("model.safetensors", 2 * GIB),)),
            "2.0 GiB for the draft org/draft; its part",
        ),
        (
            SMALL,
            "15.0 GiB for the draft meta-llama/Llama-3.1-8B-Instruct, and the KV cache includes its part",
        ),
    ],
)
def test_what_is_said_of_it(draft: Draft, text: str) -> None:
    assert text in draft_notes(draft, LARGE, knowledge().families)[0]


@pytest.mark.parametrize(
    "spelling",
    [
        {"settings": {"speculative": {"model": SMALL.repo, "num_speculative_tokens": 5}}},
        {"engine_args": {"speculative_config": {"model": SMALL.repo, "num_speculative_tokens": 5}}},
        {"engine_args": {"speculative_config": f'{{"model": "{SMALL.repo}", "num_speculative_tokens": 5}}'}},
    ],
)
def test_an_offline_plan_counts_it(spelling: dict[str, Any]) -> None:
    def found(**keys: Any) -> dict[str, Any]:
        image = "rocm/vllm:rocm7.0.0_vllm_0.11.1_20251103"
        wanted = deployment(
            model="meta-llama/Llama-3.1-70B-Instruct",
            image=image,
            vllm_version="0.33.0",
            tensor_parallel_size=8,
            **keys,
        )
        gpus = {"model": "MI300X", "count": 8}
        made = plan({"n1": None}, [wanted], offline=True, instinct_gpus=gpus).hosts[0].instances[0].described
        return dict(made["fit"])

    alone, drafted = found(), found(**spelling)
    assert drafted["weights_bytes_per_gpu"] - alone["weights_bytes_per_gpu"] == pytest.approx(
        2.0075e9, rel=0.01
    )
    assert drafted["kv_bytes_per_token"] == alone["kv_bytes_per_token"] + 16384
