# SPDX-License-Identifier: Apache-2.0
"""No config.json ends a plan: defaults of every class of transformers, every name that vLLM registers, and nonsense."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.decode import decode_step
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.fit import (
    fit,
    refusals,
    remedies,
)

from tests import ROOT
from tests.worlds.catalogue import knowledge, model_shape
from tests.worlds.fit_world import engine

RECORDED = json.loads((ROOT / "tests/data/fit/config_shapes.json").read_text())
FILES = [("model-00001-of-00002.safetensors", 9 << 30), ("model-00002-of-00002.safetensors", 5 << 30)]
DENSE = {"hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16, "vocab_size": 32000}
SHAPES: dict[str, dict[str, Any]] = {
    "bare": DENSE,
    "grouped": {**DENSE, "num_key_value_heads": 2, "intermediate_size": 4096, "head_dim": 128},
    "old names": {"n_embd": 1024, "n_layer": 6, "n_head": 16, "vocab_size": 32000, "n_positions": 2048},
    "experts": {**DENSE, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512,
                "first_k_dense_replace": 1, "n_shared_experts": 1},
    "latent": {**DENSE, "kv_lora_rank": 512, "q_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
               "v_head_dim": 64, "n_routed_experts": 8, "index_topk": 512, "index_n_heads": 4, "index_head_dim": 128},
    "nested": {**DENSE, "attn_config": {"kv_n_heads": 2},
               "ffn_config": {"ffn_hidden_size": 2048, "moe_num_experts": 4}},
    "wrapped": {"text_config": {**DENSE, "num_key_value_heads": 2}, "vision_config": {"hidden_size": 512, "depth": 4}},
    "state space": {"hidden_size": 1024, "num_hidden_layers": 6, "vocab_size": 32000, "state_size": 16},
    "lists": {**DENSE, "intermediate_size": [1024] * 3, "num_key_value_heads": [4, 2, 1], "layer_types": ["conv", "x"],
              "moe_layer_freq": [0, 1], "hybrid_layer_pattern": [1, 0], "mlp_layer_types": ["sparse"]},
    "nothing": {**DENSE, "num_key_value_heads": None, "intermediate_size": 0, "head_dim": 0, "sliding_window": None},
    "nonsense": {**DENSE, "num_key_value_heads": 7, "head_dim": -1, "intermediate_size": "wide", "rope_scaling": "x",
                 "layer_types": [None] * 6, "vocab_size": 1, "quantization_config": {"quant_method": "of-tomorrow"}},
    "more heads than kept": {**DENSE, "num_attention_heads": 3, "num_key_value_heads": 5, "sliding_window": 9},
    "empty": {},
}  # fmt: skip


ALL_AT_ONCE: dict[str, Any] = {"tp": 2, "pp": 2, "kv_cache_dtype": "fp8", "expert_parallel": True}


def sized(config: dict[str, Any], *hows: dict[str, Any]) -> None:
    """Ask everything that a plan asks of a model, and check what must hold of any answer."""
    for files in (None, FILES) if hows else (None,):
        shape = model_shape(config, files)
        tiny = engine(memory_bytes=1 << 28)
        remedies(shape, tiny, fit(shape, tiny))
        for how in (*hows, ALL_AT_ONCE):
            asked = engine(**how)
            refusals(shape, asked)
            found = fit(shape, asked)
            decode_step(shape, asked, None)
            assert found.weights_bytes_per_gpu >= 0
            assert found.kv_cache_tokens >= 0
            json.dumps(found.to_json())
            assert (found.between is None) == (shape.between is None or bool(shape.missing))
            if found.between:
                assert found.between.weights_bytes_per_gpu[0] <= found.weights_bytes_per_gpu
                assert found.weights_bytes_per_gpu <= found.between.weights_bytes_per_gpu[1]
                assert (
                    found.between.kv_cache_tokens[0]
                    <= found.kv_cache_tokens
                    <= found.between.kv_cache_tokens[1]
                )


@pytest.mark.parametrize("kind", RECORDED["defaults"])
def test_defaults_of_a_class(kind: str) -> None:
    sized({"model_type": kind, **RECORDED["defaults"][kind]}, {"tp": 8})


@pytest.mark.deep
@pytest.mark.parametrize("shape", SHAPES)
def test_every_name_that_vllm_registers(shape: str) -> None:
    for name in RECORDED["architectures"]:
        plain = re.sub(r"(For|Model|LMHead).*", "", name)
        kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain).lower()
        sized({"architectures": [name], "model_type": kind, **SHAPES[shape]})


@pytest.mark.parametrize(("number", "shape"), enumerate(SHAPES))
def test_a_quarter_of_the_families(number: int, shape: str) -> None:
    """Another quarter with each shape, so that each family meets three of them."""
    for kind in sorted(knowledge().families)[number % 4 :: 4]:
        sized({"model_type": kind, **SHAPES[shape]}, {}, {"tp": 8})


@pytest.mark.deep
@pytest.mark.parametrize("shape", SHAPES)
def test_every_family(shape: str) -> None:
    for kind in knowledge().families:
        sized({"model_type": kind, **SHAPES[shape]}, {}, {"tp": 8})


def test_enough_is_tried() -> None:
    assert len(RECORDED["defaults"]) >= 300
    assert len(RECORDED["architectures"]) >= 300
