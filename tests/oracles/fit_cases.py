# SPDX-License-Identifier: Apache-2.0
"""Small models of many architectures, for which the real vLLM and the planner are asked the same.

    python -m tests.oracles.fit_cases | PYTHON_WITH_VLLM tests/oracles/fit_oracle.py > tests/data/fit/cpu_VERSION.json

records vLLM's answers for the unit tests.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.fit import (
    EngineConfig,
    Fit,
    fit,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.kv_cache import CacheRules

from tests.worlds.catalogue import model_shape

Config = dict[str, Any]


def _base(kind: str, architecture: str, rng: random.Random, **keys: Any) -> Config:
    """What most configs have; sizes are drawn so that two ranks can share everything."""
    head = rng.choice((32, 64))
    heads = rng.choice((4, 8))
    config = {
        "architectures": [architecture],
        "model_type": kind,
        "hidden_size": heads * head * rng.choice((1, 2)),
        "intermediate_size": 64 * rng.randint(4, 12),
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": head,
        "num_hidden_layers": rng.randint(3, 6),
        "vocab_size": rng.choice((1000, 4096, 5003)),
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    config.update(keys)
    return config


def llama(rng: random.Random) -> Config:
    return _base("llama", "LlamaForCausalLM", rng)


def llama_tied_biased(rng: random.Random) -> Config:
    return _base(
        "llama", "LlamaForCausalLM", rng, tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    )


def mistral_window(rng: random.Random) -> Config:
    return _base("mistral", "MistralForCausalLM", rng, sliding_window=256)


def qwen2(rng: random.Random) -> Config:
    return _base(
        "qwen2", "Qwen2ForCausalLM", rng, use_sliding_window=False, sliding_window=1024, max_window_layers=2
    )


def qwen3(rng: random.Random) -> Config:
    return _base("qwen3", "Qwen3ForCausalLM", rng, attention_bias=False, use_sliding_window=False)


def qwen2_moe(rng: random.Random) -> Config:
    return _base(
        "qwen2_moe", "Qwen2MoeForCausalLM", rng, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=64,
        shared_expert_intermediate_size=128, decoder_sparse_step=1, norm_topk_prob=False, mlp_only_layers=[],
    )  # fmt: skip


def qwen3_moe(rng: random.Random) -> Config:
    return _base(
        "qwen3_moe", "Qwen3MoeForCausalLM", rng, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=96,
        decoder_sparse_step=1, norm_topk_prob=True, mlp_only_layers=[0], attention_bias=False,
    )  # fmt: skip


def mixtral(rng: random.Random) -> Config:
    return _base(
        "mixtral", "MixtralForCausalLM", rng, num_local_experts=4, num_experts_per_tok=2, sliding_window=None
    )


def _latent(kind: str, architecture: str, rng: random.Random, **keys: Any) -> Config:
    return _base(
        kind, architecture, rng, num_key_value_heads=8, num_attention_heads=8, hidden_size=256, n_routed_experts=8,
        n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=64, first_k_dense_replace=1,
        moe_layer_freq=1, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, head_dim=64,
        n_group=2, topk_group=1, routed_scaling_factor=1.0, norm_topk_prob=True, **keys,
    )  # fmt: skip


def deepseek_v2(rng: random.Random) -> Config:
    return _latent(
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        rng,
        q_lora_rank=None,
        topk_method="greedy",
        scoring_func="softmax",
    )


def deepseek_v3(rng: random.Random) -> Config:
    return _latent(
        "deepseek_v3", "DeepseekV3ForCausalLM", rng, q_lora_rank=96, topk_method="noaux_tc", scoring_func="sigmoid",
        num_nextn_predict_layers=1,
    )  # fmt: skip


def gemma2(rng: random.Random) -> Config:
    return _base(
        "gemma2", "Gemma2ForCausalLM", rng, tie_word_embeddings=True, sliding_window=128, query_pre_attn_scalar=64,
        hidden_activation="gelu_pytorch_tanh", attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
    )  # fmt: skip


def gemma3(rng: random.Random) -> Config:
    return _base(
        "gemma3_text", "Gemma3ForCausalLM", rng, num_hidden_layers=rng.randint(7, 14), tie_word_embeddings=True,
        sliding_window=128, sliding_window_pattern=6, query_pre_attn_scalar=64, hidden_activation="gelu_pytorch_tanh",
    )  # fmt: skip


def cohere2(rng: random.Random) -> Config:
    return _base(
        "cohere2", "Cohere2ForCausalLM", rng, num_hidden_layers=8, tie_word_embeddings=True, sliding_window=128,
        sliding_window_pattern=4, logit_scale=0.25, layer_norm_eps=1e-5,
    )  # fmt: skip


def gpt_oss(rng: random.Random) -> Config:
    layers = 2 * rng.randint(2, 4)
    return _base(
        "gpt_oss", "GptOssForCausalLM", rng, num_hidden_layers=layers, num_local_experts=4, num_experts_per_tok=2,
        intermediate_size=128, hidden_size=256, sliding_window=128, attention_bias=True,
        layer_types=["sliding_attention", "full_attention"] * (layers // 2), swiglu_limit=7.0,
        rope_scaling={
            "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048, "beta_fast": 32.0,
            "beta_slow": 1.0, "truncate": False,
        },
    )  # fmt: skip


def llama4(rng: random.Random) -> Config:
    return _base(
        "llama4_text", "Llama4ForCausalLM", rng, num_hidden_layers=8, num_local_experts=4, num_experts_per_tok=1,
        intermediate_size_mlp=512, interleave_moe_layer_step=2, attention_chunk_size=256, use_qk_norm=True,
        no_rope_layers=[1, 1, 1, 0] * 2, moe_layers=[1, 3, 5, 7],
    )  # fmt: skip


def _mamba2(kind: str, architecture: str, rng: random.Random, **keys: Any) -> Config:
    return _base(
        kind, architecture, rng, hidden_size=256, mamba_n_heads=8, mamba_d_head=64, mamba_d_state=64, mamba_n_groups=1,
        mamba_d_conv=4, mamba_expand=2, mamba_conv_bias=True, mamba_proj_bias=False, mamba_chunk_size=64, **keys,
    )  # fmt: skip


def granite_hybrid(rng: random.Random) -> Config:
    return _mamba2(
        "granitemoehybrid", "GraniteMoeHybridForCausalLM", rng, num_hidden_layers=6, num_local_experts=4,
        num_experts_per_tok=2, shared_intermediate_size=256, position_embedding_type="nope", embedding_multiplier=1.0,
        logits_scaling=1.0, residual_multiplier=1.0, attention_multiplier=0.1, tie_word_embeddings=True,
        layer_types=["mamba", "mamba", "attention", "mamba", "mamba", "mamba"], head_dim=None,
    )  # fmt: skip


def falcon_h1(rng: random.Random) -> Config:
    return _mamba2(
        "falcon_h1", "FalconH1ForCausalLM", rng, mamba_d_ssm=512, mamba_rms_norm=False, mamba_norm_before_gate=False,
        attention_in_multiplier=1.0, attention_out_multiplier=1.0, ssm_in_multiplier=1.0, ssm_out_multiplier=1.0,
        ssm_multipliers=[1.0] * 5, mlp_multipliers=[1.0, 1.0], key_multiplier=1.0, lm_head_multiplier=1.0,
        embedding_multiplier=1.0, projectors_bias=False, mamba_use_mlp=True, attn_layer_indices=None,
    )  # fmt: skip


def nemotron_h(rng: random.Random) -> Config:
    return _base(
        "nemotron_h", "NemotronHForCausalLM", rng, hidden_size=256, num_hidden_layers=8,
        hybrid_override_pattern="M-M-M*M-", mamba_num_heads=8, mamba_head_dim=64, ssm_state_size=64, n_groups=2,
        conv_kernel=4, expand=2, use_conv_bias=True, use_bias=False, mamba_hidden_act="silu", mlp_hidden_act="relu2",
        layer_norm_epsilon=1e-5, chunk_size=64, mamba_proj_bias=False, mlp_bias=False, attention_bias=False,
    )  # fmt: skip


def jamba(rng: random.Random) -> Config:
    return _base(
        "jamba", "JambaForCausalLM", rng, num_hidden_layers=8, hidden_size=256, attn_layer_period=4,
        attn_layer_offset=2, expert_layer_period=2, expert_layer_offset=1, num_experts=4, num_experts_per_tok=2,
        mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=16, mamba_conv_bias=True, mamba_proj_bias=False,
        use_mamba_kernels=False, head_dim=None,
    )  # fmt: skip


def qwen3_next(rng: random.Random) -> Config:
    return _base(
        "qwen3_next", "Qwen3NextForCausalLM", rng, num_hidden_layers=8, hidden_size=256, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64, decoder_sparse_step=1,
        mlp_only_layers=[], norm_topk_prob=True, linear_num_key_heads=4, linear_num_value_heads=8,
        linear_key_head_dim=32, linear_value_head_dim=32, linear_conv_kernel_dim=4, full_attention_interval=4,
        partial_rotary_factor=0.25,
    )  # fmt: skip


def phi3(rng: random.Random) -> Config:
    return _base("phi3", "Phi3ForCausalLM", rng, sliding_window=None, original_max_position_embeddings=4096)


def gemma(rng: random.Random) -> Config:
    return _base(
        "gemma", "GemmaForCausalLM", rng, tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh"
    )


def cohere(rng: random.Random) -> Config:
    return _base(
        "cohere", "CohereForCausalLM", rng, tie_word_embeddings=True, use_qk_norm=True, logit_scale=0.1,
        layer_norm_eps=1e-5, model_max_length=4096,
    )  # fmt: skip


def glm4_moe(rng: random.Random) -> Config:
    return _base(
        "glm4_moe", "Glm4MoeForCausalLM", rng, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2,
        moe_intermediate_size=64, first_k_dense_replace=1, n_group=1, topk_group=1, routed_scaling_factor=1.0,
        norm_topk_prob=True, use_qk_norm=True, attention_bias=True, partial_rotary_factor=0.5,
        num_nextn_predict_layers=1,
    )  # fmt: skip


def granite(rng: random.Random) -> Config:
    return _base(
        "granite", "GraniteForCausalLM", rng, tie_word_embeddings=True, embedding_multiplier=1.0, logits_scaling=1.0,
        residual_multiplier=1.0, attention_multiplier=0.1,
    )  # fmt: skip


def olmo2(rng: random.Random) -> Config:
    return _base("olmo2", "Olmo2ForCausalLM", rng)


def olmo3(rng: random.Random) -> Config:
    kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2
    return _base("olmo3", "Olmo3ForCausalLM", rng, num_hidden_layers=8, sliding_window=256, layer_types=kinds)


def phi(rng: random.Random) -> Config:
    return _base(
        "phi", "PhiForCausalLM", rng, hidden_size=256, num_attention_heads=8, num_key_value_heads=8, head_dim=None,
        partial_rotary_factor=0.5, layer_norm_eps=1e-5, hidden_act="gelu_new",
    )  # fmt: skip


def phimoe(rng: random.Random) -> Config:
    return _base(
        "phimoe", "PhiMoEForCausalLM", rng, num_local_experts=4, num_experts_per_tok=2, attention_bias=True,
        lm_head_bias=True, sliding_window=None, head_dim=None,
    )  # fmt: skip


def seed_oss(rng: random.Random) -> Config:
    return _base(
        "seed_oss", "SeedOssForCausalLM", rng, attention_bias=True, attention_out_bias=False, mlp_bias=False
    )


def starcoder2(rng: random.Random) -> Config:
    return _base(
        "starcoder2", "Starcoder2ForCausalLM", rng, use_bias=True, sliding_window=None, norm_epsilon=1e-5,
        tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh", head_dim=None,
    )  # fmt: skip


MODELS = {
    function.__name__: function
    for function in (
        llama, llama_tied_biased, mistral_window, qwen2, qwen3, qwen2_moe, qwen3_moe, mixtral, deepseek_v2, deepseek_v3,
        gemma2, gemma3, cohere2, gpt_oss, llama4, granite_hybrid, falcon_h1, nemotron_h, jamba, qwen3_next, phi3,
        gemma, cohere, glm4_moe, granite, olmo2, olmo3, phi, phimoe, seed_oss, starcoder2,
    )
}  # fmt: skip


QUANTIZED: dict[str, Config] = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
    "int4": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "strategy": "group",
                    "group_size": 32,
                    "symmetric": True,
                },
            }
        },
        "ignore": ["lm_head"],
    },
    "int8": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
                "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
            }
        },
        "ignore": ["lm_head", "re:.*self_attn.*"],
    },
}
"""quantization_config of checkpoints."""


def case(
    name: str, seed: int, tp: int = 1, pp: int = 1, quantized: str = "", **engine: Any
) -> dict[str, Any]:
    """One question, for the oracle and for the planner."""
    rng = random.Random(f"{name} {seed}")
    config = MODELS[name](rng)
    if config["head_dim"] is None:
        del config["head_dim"]
    if quantized:
        config["quantization_config"] = QUANTIZED[quantized]
        config["intermediate_size"] = 512
    settings = {
        "max_model_len": rng.choice((1024, 2048, 4096)),
        "max_num_batched_tokens": rng.choice((512, 2048)),
        "max_num_seqs": 64,
        **engine,
    }
    words = [
        name,
        quantized,
        f"tp{tp}",
        f"pp{pp}" if pp > 1 else "",
        *(f"{k}={v}" for k, v in sorted(engine.items())),
    ]
    return {
        "name": " ".join(word for word in words if word),
        "config": config,
        "tp": tp,
        "pp": pp,
        "engine": settings,
        "kv_bytes": rng.randint(64, 512) << 20,
    }


def every_case() -> list[dict[str, Any]]:
    """What is recorded: each architecture on one and on two ranks, and each dimension of the engine."""
    found = [case(name, 1, tp) for name in MODELS for tp in (1, 2)]
    found += [case("llama", 2, 4)]
    found += [
        case(name, 2, pp=2) for name in ("llama", "llama_tied_biased", "gemma3", "deepseek_v3", "jamba")
    ]
    found += [
        case(name, 2, 2, enable_expert_parallel=True) for name in ("mixtral", "qwen3_moe", "deepseek_v3")
    ]
    for name in ("llama", "qwen3", "mixtral"):
        found += [
            case(name, 3, dtype="float32", block_size=16),
            case(name, 3, 2, dtype="float16", block_size=64),
        ]
    for name in ("gemma3", "cohere2", "llama4", "mistral_window"):
        found += [case(name, 3, dtype="float32", block_size=32), case(name, 3, 2, block_size=256)]
    found += [
        case(name, 3, 2, dtype="float32", block_size=64) for name in ("jamba", "granite_hybrid", "falcon_h1")
    ]
    found += [case(name, 4, disable_hybrid_kv_cache_manager=True) for name in ("gemma3", "gpt_oss")]
    found += [case(name, 4, enable_prefix_caching=False) for name in ("nemotron_h", "jamba", "qwen3_next")]
    found += [case(name, 4, 2, kv_cache_dtype="fp8") for name in ("llama", "gemma3")]
    found += [case("llama", 5, 2, quantized=name) for name in ("fp8", "awq", "gptq", "int4", "int8")]
    found += [case("qwen3_moe", 5, quantized="fp8")]
    return found


def planned(question: dict[str, Any], rules: CacheRules) -> Fit:
    """The planner's answer to a case, for vLLM's CPU build."""
    given = dict(question["engine"])
    hybrid = not given.pop("disable_hybrid_kv_cache_manager", False)
    given.pop("mamba_block_size", None)
    shape = model_shape(question["config"])
    return fit(
        shape,
        EngineConfig(
            rules=rules,
            memory_bytes=0,
            gpu_memory_utilization=0.9,
            platform="cpu",
            kv_cache_memory_bytes=question["kv_bytes"],
            tp=question["tp"],
            pp=question["pp"],
            expert_parallel=given.pop("enable_expert_parallel", False),
            prefix_caching=given.pop("enable_prefix_caching", shape.stateful or not shape.latent),
            hybrid_kv_cache=hybrid,
            # Its kernel of latent attention takes whole prompts, and no prefixes (vllm/platforms/cpu.py).
            chunked_prefill=False if shape.latent else None,
            block_size=given.pop("block_size", 128),
            **given,
        ),
    )


if __name__ == "__main__":
    json.dump(every_case(), sys.stdout)
