# SPDX-License-Identifier: Apache-2.0
"""What a decode step reads and multiplies: published models, parallel sizes, formats, and a model by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.layers import Cache, Layer
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.shape import ModelShape
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.states import State
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.weights import (
    FP8_TENSOR,
    OUT,
    Matrix,
    Scheme,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.decode import (
    KvRead,
    PeakRates,
    StepReads,
    compute_type,
    decode_step,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.fit import fit

from tests.worlds.fit_world import engine, model

GB = 1e9
LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B"
LLAMA_405B = "meta-llama/Llama-3.1-405B"
MIXTRAL, DEEPSEEK = "mistralai/Mixtral-8x7B-v0.1", "deepseek-ai/DeepSeek-V3"
QWEN_MOE, GPT_OSS = "Qwen/Qwen3-235B-A22B-FP8", "openai/gpt-oss-120b"
NEXT, GEMMA = "Qwen/Qwen3-Next-80B-A3B", "google/gemma-3-27b-it (language model)"
FP8 = {"quantization_config": {"quant_method": "fp8", "ignored_layers": ["lm_head"]}}


def step(name: str, changes: Any = None, **options: Any) -> Any:
    found = decode_step(model(name, **(changes or {})), engine(**options), None)
    assert found
    return found


# Published: Mixtral "12.9B active", DeepSeek-V3 "37B activated", Qwen3 "22B activated", gpt-oss "5.1B active". All but
# the last count the input embedding too, which no token is multiplied with.
@pytest.mark.parametrize(
    ("name", "embedding", "published"),
    [
        (LLAMA_8B, 128256 * 4096, 8.03),
        (LLAMA_70B, 128256 * 8192, 70.55),
        (LLAMA_405B, 128256 * 16384, 405.85),
        (MIXTRAL, 32000 * 4096, 12.88),
        (DEEPSEEK, 129280 * 7168, 37.5),
        (QWEN_MOE, 151936 * 4096, 22.2),
        (GPT_OSS, 0, 5.13),
        (NEXT, 151936 * 2048, 3.87),
    ],
)
def test_active_parameters_are_those_that_are_published(name: str, embedding: int, published: float) -> None:
    found = step(name)
    total = sum(found.parameters.values()) + sum(found.sampled_parameters.values()) + embedding
    assert total / GB == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize(
    ("name", "changes", "options", "weights", "experts", "kv"),
    [
        # 2 bytes for each of 69.5e9 weights, without the input embedding; 80 layers of 8 KV heads of 128.
        (LLAMA_70B, {}, {}, 139.0, 0, [(2 * 8 * 128 * 80 * 2, 0, 0)]),
        (LLAMA_70B, {}, {"tp": 8}, 17.4, 0, [(2 * 128 * 80 * 2, 0, 0)]),
        # 68.5e9 of a byte, and the output layer of 2.
        (LLAMA_70B, FP8, {"tp": 8, "kv_cache_dtype": "fp8"}, 8.82, 0, [(2 * 128 * 80, 0, 0)]),
        (LLAMA_70B, {}, {"quantization": "fp8", "tp": 8}, 8.82, 0, [(2 * 128 * 80 * 2, 0, 0)]),
        # 8 experts of 3 x 4096 x 14336 in 32 layers, 45.1e9 weights.
        (MIXTRAL, {}, {}, 2.94, 90.2, [(2 * 8 * 128 * 32 * 2, 0, 0)]),
        (MIXTRAL, {}, {"tp": 8}, 0.37, 11.27, [(2 * 128 * 32 * 2, 0, 0)]),
        # The latent of 512 + 64 numbers in 61 layers is whole on every GPU.
        (DEEPSEEK, {}, {"tp": 8}, 3.28, 81.76, [(576 * 61 * 2, 0, 0)]),
        (DEEPSEEK, {}, {"tp": 8, "kv_cache_dtype": "fp8"}, 3.28, 81.76, [(576 * 61, 0, 0)]),
        (DEEPSEEK, {}, {"dp": 8, "expert_parallel": True}, 18.25, 81.76, [(576 * 61 * 2, 0, 0)]),
        (DEEPSEEK, {}, {"tp": 8, "dcp": 8}, 3.28, 81.76, [(576 * 61 * 2 // 8, 0, 0)]),
        # Every other layer slides over 128 tokens.
        (GPT_OSS, {}, {"tp": 8}, 0.41, 11.58, [(2 * 64 * 18 * 2, 0, 0), (2 * 64 * 18 * 2, 128, 0)]),
    ],
)  # fmt: skip
def test_what_one_gpu_reads(
    name: str, changes: Any, options: Any, weights: float, experts: float, kv: list[tuple[int, int, int]]
) -> None:
    reads = step(name, changes, **options).reads
    assert reads.weights_bytes / GB == pytest.approx(weights, rel=0.006)
    assert reads.experts_bytes / GB == pytest.approx(experts, rel=0.006)
    assert reads.kv == tuple(KvRead(*item) for item in kv)
    assert reads.data_parallel_ranks == options.get("dp", 1)


@pytest.mark.parametrize("name", [LLAMA_8B, MIXTRAL, DEEPSEEK, QWEN_MOE, GPT_OSS, NEXT, GEMMA])
@pytest.mark.parametrize("tp", [1, 8])
def test_what_is_read_is_part_of_what_is_held(name: str, tp: int) -> None:
    found, held = step(name, tp=tp), fit(model(name), engine(tp=tp))
    assert 0.85 * held.weights_bytes_per_gpu < found.reads.weights_bytes + found.reads.experts_bytes
    assert found.reads.weights_bytes + found.reads.experts_bytes <= held.weights_bytes_per_gpu
    assert sum(item.bytes_per_token for item in found.reads.kv) == held.kv_bytes_per_token
    assert found.gpus == tp


@pytest.mark.parametrize(
    ("name", "changes", "options", "types", "sampled"),
    [
        (LLAMA_70B, {}, {}, {"bf16"}, {"bf16"}),
        (LLAMA_70B, {}, {"dtype": "float16"}, {"fp16"}, {"fp16"}),
        (LLAMA_70B, {}, {"dtype": "float32"}, {"fp32"}, {"fp32"}),
        (LLAMA_70B, FP8, {}, {"fp8"}, {"bf16"}),
        (LLAMA_70B, {}, {"quantization": "fp8"}, {"fp8"}, {"bf16"}),
        (LLAMA_70B, {"quantization_config": {"quant_method": "awq"}}, {}, {"bf16"}, {"bf16"}),
        (DEEPSEEK, {}, {}, {"bf16", "fp8"}, {"bf16"}),  # the router is not quantized
        (GPT_OSS, {}, {}, {"bf16"}, {"bf16"}),  # experts in MXFP4, activations in 16 bit
    ],
)
def test_types_of_products(name: str, changes: Any, options: Any, types: set[str], sampled: set[str]) -> None:
    found = step(name, changes, **options)
    assert (set(found.parameters), set(found.sampled_parameters)) == (types, sampled)


@pytest.mark.parametrize(
    ("scheme", "weight_only", "name"),
    [
        (None, False, "bf16"),
        (FP8_TENSOR, False, "fp8"),
        (FP8_TENSOR, True, "bf16"),
        (Scheme("fp8 in blocks of 128x128", 8), False, "fp8"),
        (Scheme("mxfp4", 4), False, "mxfp4"),
        (Scheme("mxfp6", 6), False, "mxfp6"),
        (Scheme("nvfp4", 4), False, "nvfp4"),
        (Scheme("int8 per channel", 8), False, "int8"),
        (Scheme("int8 per channel", 8), True, "bf16"),
        (Scheme("int4 in groups of 128", 4), False, "bf16"),
        (Scheme("bitsandbytes 4 bit", 4), False, "bf16"),
    ],
)
def test_type_of_a_format(scheme: Scheme | None, weight_only: bool, name: str) -> None:
    assert compute_type(scheme, weight_only, "bf16") == name


# ---- by hand ----------------------------------------------------------------------------------------

LAYER = Layer(
    (
        Matrix("self_attn.q_proj", 10, 20, OUT, quantizable=True),
        Matrix("norm", 20),
        Matrix("experts", 6, 20, OUT, experts=4),
    ),
    (
        Cache(2, 5, 5),
        Cache(2, 5, 5, window=7),
        Cache(2, 5, 5, chunk=9),
        Cache(2, 5, 5, window=50, selected=3),
    ),
)


def small(**changes: Any) -> ModelShape:
    given: dict[str, Any] = {
        "model_type": "small", "known": True, "layers": (LAYER,) * 3, "embedding": Matrix("e", 64, 20, OUT),
        "final": (Matrix("norm", 20),), "head": Matrix("h", 100, 20, OUT), "experts": 4, "experts_per_token": 2,
        **changes,
    }  # fmt: skip
    return ModelShape(**given)


def test_a_small_model_by_hand() -> None:
    peak = PeakRates(100.0, (("bf16", 8.0),))
    found = decode_step(small(), engine(), peak)
    assert found
    # The output layer is padded to 128 rows where it is read; half of the experts' weights are active.
    kv = 2 * (5 + 5) * 2 * 3
    assert found.to_json() == {
        "gpus": 1,
        "peak": {"hbm_bytes_per_second": 100.0, "flops": {"bf16": 8.0}},
        "parameters": {"bf16": 3 * (200 + 4 * 120 // 2)},
        "sampled_parameters": {"bf16": 100 * 20},
        "reads": {
            "data_parallel_ranks": 1,
            "weights_bytes": 3 * (400 + 40) + 40 + 128 * 20 * 2,
            "experts_bytes": 3 * 4 * 120 * 2,
            "experts": 4,
            "experts_per_token": 2,
            "kv": [
                {"bytes_per_token": kv, "window": 0, "chunk": 0},
                {"bytes_per_token": kv, "window": 0, "chunk": 9},
                {"bytes_per_token": kv, "window": 3, "chunk": 0},
                {"bytes_per_token": kv, "window": 7, "chunk": 0},
            ],
            "state_bytes": 0,
        },
    }
    assert peak.part(8) == PeakRates(12.5, (("bf16", 1.0),))


def test_tied_embeddings_are_the_output_layer() -> None:
    tied = decode_step(small(tied=True), engine(), None)
    assert tied
    assert tied.reads
    assert tied.sampled_parameters == {"bf16": 64 * 20}
    assert tied.reads.weights_bytes == 3 * (400 + 40) + 40 + 64 * 20 * 2
    headless = decode_step(small(head=None), engine(), None)
    assert headless
    assert headless.sampled_parameters == {}


def test_states_are_read_for_each_sequence() -> None:
    layer = replace(LAYER, caches=(State(channels=10, kernel=4, heads=2, head_elements=6),))
    found = decode_step(small(layers=(layer, layer)), engine(), None)
    assert found
    assert found.reads == StepReads(1, 2 * 440 + 40 + 5120, 2 * 960, 4, 2, (), 2 * (10 * 3 * 2 + 12 * 2))


def test_latent_attention_reads_the_absorbed_weight_only() -> None:
    matrices = (
        Matrix("self_attn.kv_b_proj", 8, 4, OUT),
        Matrix("self_attn.kv_b_proj absorbed", 8, 4, OUT, stored=False),
    )
    latent = Layer(matrices, (Cache(1, 8, 0, latent=True),))
    found = decode_step(small(layers=(latent,)), engine(), None)
    assert found
    assert found.reads
    assert found.reads.weights_bytes == 64 + 40 + 5120
    assert found.parameters == {"bf16": 32}


def test_sparse_attention_reads_the_tokens_that_it_selects() -> None:
    sparse = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
    assert step(DEEPSEEK, sparse, tp=8).reads.kv == (
        KvRead(132 * 61),  # of every token: 128 numbers of a byte and a scale
        KvRead(576 * 61 * 2, 2048),
    )


@pytest.mark.parametrize(
    ("changes", "options"),
    [({"known": False}, {}), ({"missing": ("x",), "known": False}, {}), ({}, {"platform": "cpu"})],
)
def test_what_is_not_known(changes: Any, options: Any) -> None:
    assert decode_step(small(**changes), engine(**options), None) is None


def test_a_pipeline_has_no_reads() -> None:
    found = decode_step(small(), engine(pp=3, tp=2, dp=2), None)
    assert found
    assert (found.gpus, found.reads) == (12, None)
