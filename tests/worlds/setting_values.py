# SPDX-License-Identifier: Apache-2.0
"""Values of settings, made from what the catalogue says of them."""

from __future__ import annotations

from typing import Any

from tests.worlds.catalogue import knowledge

EXAMPLES: dict[str, list[Any]] = {
    "bool": [True, False],
    "int": [4],
    "float": [0.9],
    "list": [["-rms_norm"]],
    "map": [{"image": 2}],
    "text": [],
}
TEXTS = {
    "dtype": "auto",
    "kv_cache_dtype": "fp8",
    "load_format": "safetensors",
    "moe_backend": "aiter",
    "linear_backend": "aiter",
    "tokenizer_mode": "mistral",
    "config_format": "mistral",
    "all2all": "allgather_reducescatter",
    "rccl_debug": "WARN",
}
MAPS = {"speculative": {"model": "m", "num_speculative_tokens": 2}}
SIZES = {"block_size": 16, "max_model_len": 4096, "quick_reduce_max_mb": 2048}


def values(name: str) -> list[Any]:
    setting = knowledge().settings[name]
    if setting["type"] == "choice":
        return list(setting["choices"])
    if name in TEXTS:
        return [TEXTS[name]]
    if name in MAPS:
        return [MAPS[name]]
    if name in SIZES:
        return [SIZES[name]]
    return EXAMPLES[setting["type"]]
