# SPDX-License-Identifier: Apache-2.0
"""Small made-up checkpoints without weights: a config.json and a tokenizer, from which vLLM makes its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Config = Mapping[str, Any]

TEXT: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
LLAMA = {**TEXT, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_theta": 10000.0}
FP8 = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
BLOCK_FP8 = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
}
GPTQ = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 128,
    "desc_act": False,
    "sym": True,
    "checkpoint_format": "gptq",
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
_CHANNEL = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": _CHANNEL,
            "input_activations": {**_CHANNEL, "strategy": "token", "dynamic": True},
        }
    },
}
QUARK_TENSOR = {
    "dtype": "fp8_e4m3",
    "qscheme": "per_tensor",
    "is_dynamic": False,
    "observer_cls": "PerTensorMinMaxObserver",
    "symmetric": True,
    "ch_axis": None,
    "group_size": None,
    "round_method": "half_even",
    "scale_type": "float",
}
QUARK = {
    "quant_method": "quark",
    "export": {"kv_cache_group": [], "pack_method": "order", "weight_format": "real_quantized"},
    "exclude": ["lm_head"],
    "global_quant_config": {"weight": QUARK_TENSOR, "input_tensors": QUARK_TENSOR, "output_tensors": None},
    "layer_quant_config": {},
    "layer_type_quant_config": {},
}
DEEPSEEK: dict[str, Any] = {
    **{key: value for key, value in TEXT.items() if key != "head_dim"},
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "tie_word_embeddings": False,
}
GEMMA_TEXT: dict[str, Any] = {
    **TEXT,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "num_hidden_layers": 6,
    "max_position_embeddings": 32768,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "rope_local_base_freq": 10000.0,
    "rope_theta": 1000000.0,
    "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
}
VISION: dict[str, Any] = {
    **TEXT,
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "image_token_id": 31000,
    "video_token_id": 31001,
    "vision_start_token_id": 31002,
    "vision_end_token_id": 31003,
    "vision_token_id": 31004,
    "vision_config": {
        "model_type": "qwen2_5_vl",
        "depth": 4,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 2048,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [3],
        "in_chans": 3,
        "tokens_per_second": 2,
    },
}
QWEN_MOE: dict[str, Any] = {
    **TEXT,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1024,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
MIXTRAL: dict[str, Any] = {
    **TEXT,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "sliding_window": None,
}
GPT_OSS: dict[str, Any] = {
    **TEXT,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "experts_per_token": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "max_position_embeddings": 131072,
    "initial_context_length": 4096,
    "rope_theta": 150000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
    "swiglu_limit": 7.0,
    "attention_bias": True,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
    },
}

TARGETS: Mapping[str, Config] = {
    "llama": LLAMA,
    "llama-short": {**LLAMA, "max_position_embeddings": 2048},
    "llama-long": {**LLAMA, "max_position_embeddings": 131072},
    "llama-fp8": {**LLAMA, "quantization_config": FP8},
    "llama-gptq": {**LLAMA, "torch_dtype": "float16", "quantization_config": GPTQ},
    "llama-awq": {**LLAMA, "torch_dtype": "float16", "quantization_config": AWQ},
    "llama-w8a8": {**LLAMA, "quantization_config": COMPRESSED},
    "llama-quark": {**LLAMA, "quantization_config": QUARK},
    "qwen2": {
        **{key: value for key, value in TEXT.items() if key != "head_dim"},
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 4,
    },
    "qwen3-moe": QWEN_MOE,
    "qwen3-moe-fp8": {**QWEN_MOE, "quantization_config": BLOCK_FP8},
    "mixtral": MIXTRAL,
    "deepseek-v3": {**DEEPSEEK, "quantization_config": BLOCK_FP8},
    "deepseek-v3-bf16": DEEPSEEK,
    "gemma3": GEMMA_TEXT,
    "gpt-oss": GPT_OSS,
    "qwen2.5-vl": VISION,
}
"""Models that are served."""
NOT_BEFORE: Mapping[str, str] = {"gemma3": "0.13.0", "qwen2.5-vl": "0.13.0"}
"""Targets that older releases cannot read with the libraries at hand, which are newer."""
DRAFTS: Mapping[str, Config] = {
    "draft": {**LLAMA, "num_hidden_layers": 1},
    "draft-vocabulary": {**LLAMA, "num_hidden_layers": 1, "vocab_size": 64000},
    "eagle": {**LLAMA, "num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]},
    "eagle3": {
        **LLAMA,
        "num_hidden_layers": 1,
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": 32000,
    },
    "medusa": {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": 2048,
        "num_heads": 3,
        "num_hidden_layers": 1,
        "vocab_size": 32000,
        "max_paths": 64,
        "topk": 10,
        "truncated_vocab_size": 32000,
        "torch_dtype": "bfloat16",
    },
}
"""Models that draft for them."""
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
"""What each checkpoint consists of."""
ALL: Mapping[str, Config] = {**TARGETS, **DRAFTS}


ADAPTERS = ("adapter", "other")
"""Directories of adapters."""


def write(directory: Path) -> None:
    """Write every checkpoint, each into a directory of its name; the tokenizer knows a few words only."""
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    files = {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
        },
    }
    for name, config in ALL.items():
        target = directory / name
        target.mkdir(parents=True, exist_ok=True)
        for file, content in {**files, "config.json": config}.items():
            (target / file).write_text(json.dumps(content, indent=1), encoding="utf-8")
    for name in ADAPTERS:
        (directory / name).mkdir(exist_ok=True)
        content = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
        (directory / name / "adapter_config.json").write_text(json.dumps(content), encoding="utf-8")
