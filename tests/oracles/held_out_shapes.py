# SPDX-License-Identifier: Apache-2.0
"""Random shapes of every architecture that vLLM registers, drawn from transformers' own config classes.

Run by a Python that has vLLM; needs nothing of this repository and no network:

    python held_out_shapes.py SEED SHAPES > cases.json

Nothing here knows how a family is sized. A class says which keys it has; what a key is for is read off its name, and
the class's own checks and vLLM's own start decide whether a draw is a model. A list with a value for each layer is
drawn anew from its values, or left to the class. Keys that no rule names keep the default.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Callable
from typing import Any

Config = dict[str, Any]
Draw = Callable[["Shape"], Any]


class Shape:
    """One random draw of all sizes that a model can have."""

    def __init__(self, rng: random.Random, config: Config) -> None:
        """Draw."""
        self.rng = rng
        self.head = rng.choice((32, 64, 64, 96, 128))
        self.kv = rng.choice((2, 2, 4, 8))
        self.heads = self.kv * rng.choice((1, 2, 4))
        free = {"head_dim", "kv_channels"} & set(config) and "attention_head_dim" not in config
        self.hidden = 128 * rng.randint(2, 8) if free and rng.random() < 0.5 else self.heads * self.head
        listed = any(isinstance(value, list) and len(value) > 4 for value in config.values())
        self.layers = rng.randint(6, 14) if listed else rng.randint(2, 9)
        self.some = [place for place, chosen in enumerate(self.each(False, True)) if chosen]
        self.vocab = rng.choice((rng.randint(1000, 40000), 64 * rng.randint(20, 600)))
        self.groups = rng.choice((1, 1, 2))
        self.experts = self.groups * rng.choice((4, 8, 16))
        self.expand = rng.choice((1, 2))
        self.state_head = rng.choice((32, 64))
        self.linear = rng.choice((2, 4))
        self.short, self.width = rng.choice((32, 64)), 64 * rng.randint(3, 20)

    def of(self, *values: Any) -> Any:
        """One of these."""
        return self.rng.choice(values)

    def each(self, *values: Any) -> list[Any]:
        """One of these for each layer, and each of them at least once."""
        chosen = [self.rng.choice(values) for _ in range(self.layers)]
        for place, value in zip(self.rng.sample(range(self.layers), len(values)), values, strict=True):
            chosen[place] = value
        return chosen


RULES: tuple[tuple[str, Draw], ...] = (
    (r"vocab_size(_per_layer_input)?|(un)?padded_vocab_size", lambda s: s.vocab),
    (r"hidden_size|d_model|n_embd|word_embed_proj_dim", lambda s: s.hidden),
    (r"attention_hidden_size", lambda s: 2 * s.hidden),
    (r"num_hidden_layers|n_layers?|num_layers", lambda s: s.layers),
    (r"num_attention_heads|n_heads?|num_heads|swa_num_attention_heads", lambda s: s.heads),
    (r".*key_value_heads|n_head_kv|kv_n_heads|num_kv_heads|num_(attention|query)_groups|.*_group_num", lambda s: s.kv),
    (r"head_dim|kv_channels|swa_head_dim|global_head_dim", lambda s: s.head),
    (r"max_position_embeddings?|n_positions|max_seq_len|seq_length|model_max_length", lambda s: s.of(4096, 8192)),
    (r"(.*expert|moe_).*(intermediate|ffn).*size|share_expert.*", lambda s: 64 * s.rng.randint(1, 6)),
    (r".*intermediate_size.*|ffn_dim|n_inner|ffn_hidden_size", lambda s: s.width),
    (r"n_routed_experts|(moe_)?num_(local_)?experts", lambda s: s.experts),
    (r"num_experts_per_tok(en)?|moe_k|moe_top_?k|top_k_experts", lambda s: s.of(1, 2)),
    (r"n_group|num_expert_group", lambda s: s.groups),
    (r"topk_group", lambda s: s.rng.randint(1, s.groups)),
    (r"n_shared_experts|(moe_)?num_shared_experts|(mamba_)?n_groups|mamba_ngroups", lambda s: s.of(1, 2)),
    (r"first_k_dense_replace|num_dense_layers", lambda s: s.of(0, 1, 2)),
    (r"zero_expert_num", lambda s: s.of(0, 4)),
    (r"kv_lora_rank", lambda s: s.of(128, 256, 512)),
    (r"q_lora_rank", lambda s: s.of(None, 64, 96, 160)),
    (r"qk_nope_head_dim", lambda s: s.of(32, 64, 128)),
    (r"qk_rope_head_dim|linear_(key|value)_head_dim|hidden_size_per_layer_input|laurel_rank", lambda s: s.short),
    (r"v_head_dim|swa_v_head_dim", lambda s: s.of(32, 64, 128)),
    (r"index_topk|index_head_dim", lambda s: s.of(64, 128)),
    (r"index_n_heads", lambda s: s.of(2, 4)),
    (r"(attention_)?sliding_window(_size)?|attention_chunk_size", lambda s: 64 * s.rng.randint(1, 12)),
    (r"_?sliding_window_pattern|(attn|expert)_layer_period|global_attn_every_n_layers", lambda s: s.of(2, 3, 4)),
    (r"(attn|expert)_layer_offset", lambda s: s.of(0, 1)),
    (r"interleave_moe_layer_step|decoder_sparse_step|moe_layer_interval", lambda s: s.of(1, 2)),
    (r"(mamba_)?d_state|mamba_d_state|state_size|ssm_state_size", lambda s: s.of(16, 32, 64)),
    (r"(mamba_)?(d_conv|conv_kernel)|conv_L_cache|linear_conv_kernel_dim", lambda s: s.of(2, 3, 4)),
    (r"(mamba_)?expand", lambda s: s.expand),
    (r"mamba_d_ssm", lambda s: s.expand * s.hidden),
    (r"mamba_d_head|mamba_head_?dim|head_dim_ssm", lambda s: s.state_head),
    (r"(n_mamba|mamba_n|mamba_num)_heads", lambda s: s.expand * s.hidden // s.state_head),
    (r"time_step_rank|mamba_dt_rank", lambda s: s.of(8, 24)),
    (r"linear_num_key_heads", lambda s: s.linear),
    (r"linear_num_value_heads", lambda s: 2 * s.linear),
    (r"num_kv_shared_layers", lambda s: s.of(0, 2)),
    (r"moe_latent_size", lambda s: s.of(None, 128)),
    (r"rotary_dim", lambda s: s.head // 2),
    (r"(bos|eos|pad)_token_id", lambda s: s.of(0, 1, 2)),
    (r"moe_layers|full_attn_idxs", lambda s: s.some),
    (r"moe_layers_enum", lambda s: ",".join(map(str, s.some))),
    (r"no_rope_layers|hybrid_layer_pattern", lambda s: s.each(0, 1)),
)  # fmt: skip
SWITCHES = re.compile(
    r"tie_word_embeddings|use_qk_norm|qk_layernorm|(use_)?qk_norm|multi_query|new_decoder_architecture|parallel_attn|"
    r"attention_k_eq_v|(.*_)?(use_)?(bias|qkv_bias)(_linear)?|use_double_wide_mlp|apply_residual_connection_post_layernorm"
)
_LISTS = re.compile(r"moe_layers|moe_layers_enum|full_attn_idxs|no_rope_layers|hybrid_layer_pattern")
_COMPILED = tuple((re.compile(pattern), draw) for pattern, draw in RULES)
_CATEGORIES = ("layer_types", "layers_block_type", "mlp_layer_types")


def _drawn(shape: Shape, default: Config, layers: int) -> Config:
    """A config of the same keys with other sizes."""
    found: Config = {}
    for name, value in default.items():
        if name == "per_layer_config":
            continue
        if isinstance(value, dict) and not name.startswith("rope"):
            found[name] = _drawn(shape, value, layers)
        elif _LISTS.fullmatch(name):
            found[name] = _number(shape, name, value)
        elif isinstance(value, list) and value and (len(value) == layers or name in _CATEGORIES):
            if shape.rng.random() < 0.5:
                found[name] = _listed(shape, value)
        elif isinstance(value, bool):
            found[name] = value != (SWITCHES.fullmatch(name) is not None and shape.rng.random() < 0.4)
        elif name == "head_dim" or isinstance(value, (int, type(None))):
            found[name] = _number(shape, name, value)
        else:
            found[name] = value
    return found


def _number(shape: Shape, name: str, value: Any) -> Any:
    for pattern, draw in _COMPILED:
        if pattern.fullmatch(name) and not (value is None and name.endswith(("n_inner", "token_id"))):
            return draw(shape)
    return value


def _listed(shape: Shape, values: list[Any]) -> list[Any]:
    kinds = [json.loads(text) for text in sorted({json.dumps(value) for value in values})]
    return shape.each(*kinds[: shape.layers])


def _add(config: Config, shape: Shape, name: str) -> None:
    """Set keys that published configs of an architecture have, and its class does not; a dot leads into a part."""
    for path, value in ADDED.get(name, {}).items():
        part, _, key = path.rpartition(".")
        (config[part] if part else config)[key] = value(shape) if callable(value) else value


ADDED: dict[str, Config] = {
    "AfmoeForCausalLM": {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1},
    "ChatGLMModel": {"tie_word_embeddings": False, "original_rope": True, "rope_ratio": 1.0},
    "DbrxForCausalLM": {"attn_config.rope_theta": 500000.0},
    "DeepseekV32ForCausalLM": {
        "index_topk": 64, "index_head_dim": lambda s: s.of(64, 128), "index_n_heads": lambda s: s.of(2, 4),
        "q_lora_rank": 96,
    },
    "DeepseekV4ForCausalLM": {
        "compress_ratios": lambda s: s.each(0, 4, 128), "compress_rates": None, "layer_types": None,
        "mlp_layer_types": None, "num_hash_layers": 0, "head_dim": 512, "qk_rope_head_dim": 64, "index_head_dim": 128,
        "num_attention_heads": 64, "num_key_value_heads": 1, "o_groups": 8, "topk_method": "noaux_tc",
        "sliding_window": 128, "rope_parameters": None, "rope_theta": 10000, "q_lora_rank": lambda s: 64 * s.of(2, 4),
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 65536, "type": "yarn",
        },
    },
    "GPTJForCausalLM": {"tie_word_embeddings": False},
    "GPTBigCodeForCausalLM": {"multi_query": True, "num_key_value_heads": 1},
    "Glm4MoeForCausalLM": {"head_dim": lambda s: s.head},
    "Glm4MoeLiteForCausalLM": {"first_k_dense_replace": lambda s: s.of(0, 1, 2)},
    "HeliumForCausalLM": {"head_dim": lambda s: s.hidden // s.heads},  # as wide as its output projection
    "HYV3ForCausalLM": {
        "expert_hidden_dim": 128, "moe_intermediate_size": 128, "first_k_dense_replace": lambda s: s.of(0, 1, 2),
        "mlp_layer_types": None, "qk_norm": lambda s: s.of(True, False), "route_norm": True,
        "moe_router_enable_expert_bias": True, "moe_router_use_sigmoid": True,
    },
    "Zamba2ForCausalLM": {
        "attention_head_dim": lambda s: 2 * s.hidden // s.heads, "hybrid_layer_ids": lambda s: s.some,
        "layers_block_type": lambda s: ["hybrid" if place in s.some else "mamba" for place in range(s.layers)],
    },
    "KimiLinearForCausalLM": {
        "linear_attn_config": lambda s: {
            "num_heads": s.heads, "head_dim": s.head, "short_conv_kernel_size": s.of(3, 4),
            "full_attn_layers": [place + 1 for place in s.some],
            "kda_layers": [place + 1 for place in range(s.layers) if place not in s.some],
        },
        "mla_use_nope": True, "first_k_dense_replace": lambda s: s.of(0, 1, 2), "moe_layer_freq": 1,
    },
    "Lfm2ForCausalLM": {
        "conv_dim": lambda s: s.hidden, "block_dim": lambda s: s.hidden, "block_ff_dim": lambda s: s.width,
    },
    "Lfm2MoeForCausalLM": {"layer_types": lambda s: s.each("conv", "full_attention")},
    "LongcatFlashForCausalLM": {"zero_expert_type": "identity", "mla_scale_q_lora": True, "mla_scale_kv_lora": True},
    "MiMoV2FlashForCausalLM": {
        "hybrid_layer_pattern": lambda s: s.each(0, 1), "moe_layer_freq": lambda s: s.each(0, 1),
        "swa_num_attention_heads": lambda s: s.heads, "swa_num_key_value_heads": lambda s: s.of(2, 4),
        "swa_head_dim": lambda s: s.head, "swa_v_head_dim": lambda s: s.of(32, 64), "swa_rope_theta": 10000.0,
        "add_swa_attention_sink_bias": lambda s: s.of(True, False), "sliding_window_size": lambda s: 64 * s.of(2, 3),
        "add_full_attention_sink_bias": False, "layernorm_epsilon": 1e-5, "n_shared_experts": None,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "layer_types": None, "mlp_layer_types": None,
    },
    "MiniMaxM2ForCausalLM": {
        "scoring_func": "sigmoid", "use_routing_bias": True, "rotary_dim": lambda s: s.head // 2, "use_qk_norm": True,
    },
}  # fmt: skip


def classes() -> dict[str, tuple[Any, str]]:
    """The config class and model_type of each text architecture of vLLM that has one."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto
    from vllm.model_executor.models import registry
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    kinds: dict[str, str] = {}
    for kind, names in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        for name in names if isinstance(names, (list, tuple)) else [names]:
            if name not in kinds or kind in _CONFIG_REGISTRY:
                kinds[name] = kind
    kinds.update(GPT2LMHeadModel="gpt2", **OWN)
    found = {}
    for name in registry._TEXT_GENERATION_MODELS:
        if name in kinds:
            kind = kinds[name]
            # transformers' first: vLLM's own classes of models that transformers has lack most of their keys.
            found[name] = (CONFIG_MAPPING[kind] if kind in CONFIG_MAPPING else _CONFIG_REGISTRY[kind], kind)
    for kind in BY_TRANSFORMERS:
        names = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
        found.setdefault(names if isinstance(names, str) else names[0], (CONFIG_MAPPING[kind], kind))
    return found


BY_TRANSFORMERS = (
    "starcoder2", "olmo2", "olmo3", "olmo", "phi", "gpt_neox", "gpt_bigcode", "seed_oss", "smollm3", "arcee", "glm",
    "hunyuan_v1_dense", "hunyuan_v1_moe", "dots1", "helium", "persimmon",
)  # fmt: skip
"""Model types for which vLLM has no class, so that it runs that of transformers."""


OWN = {
    "ChatGLMModel": "chatglm",
    "Llama4ForCausalLM": "llama4_text",
    "PhiMoEForCausalLM": "phimoe",
    "Step3TextForCausalLM": "step3_text",
    "Step3p5ForCausalLM": "step3p5",
}
"""Architectures whose class vLLM has itself, or transformers under another name."""


ONE_RANK = ("KimiLinearForCausalLM",)
"""Away from ROCm vLLM takes NVIDIA's class, which divides the weights in another way."""
ENGINE: dict[str, Config] = {"KimiLinearForCausalLM": {"mamba_block_size": 2048}}
"""The CPU's latent attention has no prefix caching, and vLLM takes no other size of blocks then than max_model_len."""

LEFT_OUT = ("transformers_version", "dtype", "use_cache", "initializer_range", "time_step_limit")
"""They say nothing of sizes."""


def shapes(seed: str, count: int) -> list[dict[str, Any]]:
    """So many cases of each architecture; the last of them on two ranks. What the class refuses is drawn again."""
    found = []
    for name, (cls, kind) in sorted(classes().items()):
        default = cls().to_diff_dict()
        layers = int(getattr(cls(), "num_hidden_layers", 0) or 0)
        for number in range(count):
            rng = random.Random(f"{seed} {name} {number}")
            for _ in range(20):
                try:
                    shape = Shape(rng, default)
                    config = cls(**_drawn(shape, default, layers)).to_diff_dict()
                except Exception as problem:
                    print(f"{name}: {type(problem).__name__}: {str(problem)[:150]}", file=sys.stderr)
                else:
                    break
            else:
                continue
            _add(config, shape, name)
            config.update(architectures=[name], model_type=kind, torch_dtype="bfloat16")
            config = {key: value for key, value in config.items() if key not in LEFT_OUT}
            ranks = 2 if number == count - 1 and name not in ONE_RANK else 1
            found.append({
                "name": f"{name} {seed}.{number}", "config": config, "tp": ranks, "pp": 1,
                "engine": {
                    "max_model_len": 2048, "max_num_batched_tokens": 512 * rng.choice((1, 4)), "max_num_seqs": 64,
                    **ENGINE.get(name, {}),
                },
                "kv_bytes": rng.randint(512, 2048) << 20,
            })  # fmt: skip
    return found


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    json.dump(shapes(sys.argv[1], int(sys.argv[2])), sys.stdout)
