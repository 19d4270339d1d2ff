# SPDX-License-Identifier: Apache-2.0
"""Read the facts about a model that recipes depend on from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_SINKS = ("GptOssForCausalLM",)
_UNKNOWN = "unknown"
_METHODS = {"compressed-tensors": "compressed_tensors", "auto_awq": "awq", "auto_gptq": "gptq"}


@dataclass(frozen=True)
class ModelFacts:
    """The facts about a model that recipes depend on; None for what is not known.

    Attributes:
        repository: organisation/name, or the configured path.
        quantization: of the checkpoint: none, fp8, quark_fp8, quark_mxfp4, mxfp4, awq, gptq, compressed_tensors, or the
            method's own name; unknown, or unknown_fp8 and so on where only the format of the weights is known.
        kv_scales: the checkpoint contains calibrated scales for an FP8 KV cache.
        sinks: the attention has sinks.
        sparse: the latent attention is sparse (DeepSeek-V3.2).
        heads: attention heads, before tensor parallelism.
    """

    repository: str
    architectures: tuple[str, ...] = ()
    moe: bool | None = False
    mla: bool | None = False
    sinks: bool | None = False
    sliding_window: bool | None = False
    multimodal: bool | None = False
    head_size: int | None = None
    quantization: str = "none"
    kv_scales: bool | None = False
    heads: int | None = None
    sparse: bool | None = False


def model_facts(
    repository: str, config: Mapping[str, Any] | None, quantization: Mapping[str, Any] | None = None
) -> ModelFacts:
    """Return the facts from a config.json; without one, only the quantization, as far as the model's name shows it."""
    if config is None:
        method, scales = quantization_of({"quantization_config": quantization or {"quant_method": _UNKNOWN}})
        return ModelFacts(repository, (), None, None, None, None, None, None, method, scales, None, None)
    text = config.get("text_config") or config
    architectures = tuple(config.get("architectures") or ())
    heads = text.get("num_attention_heads")
    head_size = text.get("head_dim") or (
        text["hidden_size"] // heads if heads and "hidden_size" in text else None
    )
    method, scales = quantization_of(config)
    return ModelFacts(
        repository,
        architectures,
        moe=any((text.get(key) or 0) > 1 for key in _EXPERTS),
        mla=bool(text.get("kv_lora_rank")),
        sinks=any(name in _SINKS for name in architectures),
        sliding_window=_slides(text),
        multimodal="vision_config" in config or "audio_config" in config,
        head_size=head_size,
        quantization=method,
        kv_scales=scales,
        heads=heads,
        sparse=bool(text.get("index_topk")),
    )


def _slides(text: Mapping[str, Any]) -> bool:
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return False
    kinds = text.get("layer_types")
    return kinds is None or "sliding_attention" in kinds


def quantization_of(config: Mapping[str, Any]) -> tuple[str, bool | None]:
    """Return the checkpoint's quantization, and whether it contains scales for an FP8 KV cache; None: unknown."""
    text = config.get("text_config") or {}
    found = (
        config.get("quantization_config")
        or text.get("quantization_config")
        or config.get("compression_config")
    )
    if not found:
        return "none", False
    method = str(found.get("quant_method") or "compressed-tensors").lower()
    scales = bool(found.get("kv_cache_scheme") or found.get("kv_cache_quant_config"))
    if method == _UNKNOWN:
        weights = found.get("weights")
        return (f"{_UNKNOWN}_{weights}" if weights else _UNKNOWN), scales or None
    if method != "quark":
        return _METHODS.get(method, method), scales
    weight = (found.get("global_quant_config") or {}).get("weight") or {}
    kinds = weight if isinstance(weight, list) else [weight]
    four_bits = any("fp4" in str(item.get("dtype", "")) for item in kinds)
    return ("quark_mxfp4" if four_bits else "quark_fp8"), scales or _quark_kv(found)


def _quark_kv(found: Mapping[str, Any]) -> bool:
    """Return whether Quark quantized the KV cache, which it records as outputs of the key projections."""
    layers = found.get("layer_quant_config") or {}
    return any("k_proj" in name and bool((item or {}).get("output_tensors")) for name, item in layers.items())
