# SPDX-License-Identifier: Apache-2.0
"""Read the storage format of each weight of a quantized checkpoint from its config.json.

Source: the config classes of the methods in vLLM, vllm/model_executor/layers/quantization/*.py.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .weights import FP8_TENSOR, Scheme

_LAYER = re.compile(r"layers\.\d+\.")
_IGNORED = (
    "ignore",
    "modules_to_not_convert",
    "ignored_layers",
    "exclude",
    "exclude_modules",
    "llm_int8_skip_modules",
)
_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
_FP4_EXPERTS = ("deepseek_v4",)
"""Families whose experts have FP4 weights though the checkpoint says fp8 (vllm/models/deepseek_v4/quant_config.py)."""
_BY_NAME = {
    "fp8": FP8_TENSOR,
    "mxfp4": Scheme("mxfp4", 4, 1, (1, 32)),
    "nvfp4": Scheme("nvfp4", 4, 1, (1, 16)),
    "int8": Scheme("int8 per channel", 8, 4, (1, 0)),
    "int4": Scheme("int4 in groups of 128", 4, 2, (1, 128), 4),
}
"""Formats that the name of a checkpoint shows, as most tools store them."""
_ONLY_EXPERTS = ("mxfp4", "gpt_oss_mxfp4")


@dataclass(frozen=True)
class Quantization:
    """A checkpoint's quantization: the format, the modules with another one, and the modules left unquantized.

    If method is "" and scheme is None, nothing is quantized. known: False if the method's format is unknown here, so
    that sizes come from the files. others: patterns of module names with their own format. weight_only: activations are
    not quantized, so that weights are converted back before they are multiplied.
    """

    method: str = ""
    scheme: Scheme | None = None
    known: bool = True
    others: tuple[tuple[str, Scheme | None], ...] = ()
    plain: frozenset[str] = frozenset()
    patterns: tuple[re.Pattern[str], ...] = ()
    weight_only: bool = False

    @property
    def only_experts(self) -> bool:
        """Return whether the method quantizes only experts, and pads those whose sizes do not divide."""
        return self.method in _ONLY_EXPERTS

    def of(self, name: str, expert: bool) -> Scheme | None:
        """Return the format of a module such as layers.3.self_attn.q_proj, or None if it is not quantized."""
        if self.scheme is None or (self.only_experts and not expert):
            return None
        for spelling in _spellings(name):
            if self._ignored(spelling):
                return None
        for pattern, scheme in self.others:
            if fnmatch.fnmatchcase("model." + name, pattern):
                return scheme
        return self.scheme

    def _ignored(self, name: str) -> bool:
        if self.plain:
            parts = name.split(".")
            for first in range(len(parts)):
                for last in range(first + 1, len(parts) + 1):
                    if ".".join(parts[first:last]) in self.plain:
                        return True
        return any(
            pattern.match(prefix + name)
            for pattern in self.patterns
            for prefix in ("model.", "", "language_model.model.", "model.language_model.")
        )


def _spellings(name: str) -> tuple[str, ...]:
    head, dot, last = name.rpartition(".")
    fused = _FUSED.get(last)
    return (name, f"{head}{dot}{fused}") if fused else (name,)


def quantization(config: Mapping[str, Any]) -> Quantization:
    """Read quantization_config (or compression_config) of a config.json."""
    text = config.get("text_config") or {}
    found = (
        config.get("quantization_config")
        or text.get("quantization_config")
        or config.get("compression_config")
    )
    if not isinstance(found, Mapping) or not found:
        return Quantization()
    method = str(found.get("quant_method") or "compressed-tensors").lower()
    scheme, others = _format(method, found)
    if (
        str(config.get("model_type")) in _FP4_EXPERTS
        and config.get("expert_dtype") != "fp8"
        and method == "fp8"
    ):
        others = (("*.mlp.experts.*", Scheme("mxfp4", 4, 1, (1, 32))),)
    plain, patterns = _exceptions(found)
    only = scheme is not None and _weight_only(method, found)
    known = scheme is not None and method != "unknown"
    return Quantization(method, scheme, known, others, plain, patterns, only)


def _format(
    method: str, found: Mapping[str, Any]
) -> tuple[Scheme | None, tuple[tuple[str, Scheme | None], ...]]:
    if method == "fp8":
        block = found.get("weight_block_size")
        return (_fp8_block(block) if block else FP8_TENSOR), ()
    if method == "fbgemm_fp8":
        return Scheme("fp8 per channel", 8, 4, (1, 0)), ()
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        return Scheme("mxfp4", 4, 1, (1, 32)), ()
    if method in ("awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin", "auto-round", "inc"):
        bits = int(found.get("bits") or found.get("w_bit") or 4)
        return packed_integers(
            bits, int(found.get("group_size") or found.get("q_group_size") or 128), True
        ), ()
    if method == "bitsandbytes":
        if found.get("load_in_8bit"):
            return Scheme("int8 per channel", 8, 4, (1, 0)), ()
        return Scheme("bitsandbytes 4 bit", 4, 4, (1, 64)), ()
    if method == "modelopt":
        nvfp4 = "FP4" in str(found.get("quant_algo") or _nested(found, "quantization", "quant_algo")).upper()
        return (_NVFP4 if nvfp4 else FP8_TENSOR), ()
    if method == "unknown":
        return _BY_NAME.get(str(found.get("weights"))), ()
    if method == "quark":
        return _quark(found)
    if method == "compressed-tensors":
        groups = list((found.get("config_groups") or {}).values())
        return (_tensors(groups[0].get("weights") or {}) if groups else None), ()
    return None, ()


def _weight_only(method: str, found: Mapping[str, Any]) -> bool:
    """Return whether a method leaves activations as they are; fp8, fbgemm_fp8 and modelopt quantize them."""
    if method == "quark":
        return not _nested(found, "global_quant_config", "input_tensors")
    if method == "compressed-tensors":
        groups = list((found.get("config_groups") or {}).values())
        return not groups[0].get("input_activations")
    return method not in ("fp8", "fbgemm_fp8", "modelopt")


_NVFP4 = Scheme("nvfp4", 4, 1, (1, 16))


def _nested(found: Mapping[str, Any], *keys: str) -> Any:
    value: Any = found
    for key in keys:
        value = (value or {}).get(key)
    return value


def _fp8_block(block: Sequence[int]) -> Scheme:
    return Scheme(f"fp8 in blocks of {block[0]}x{block[1]}", 8, 4, (int(block[0]), int(block[1])))


def packed_integers(bits: int, group: int, zeros: bool) -> Scheme:
    """Return a format of packed integers with a 16-bit scale (and zero point) per input group (-1: per output)."""
    name = f"int{bits} in groups of {group}" if group > 0 else f"int{bits} per channel"
    return Scheme(name, bits, 2, (1, max(group, 0)), bits if zeros else 0)


def _tensors(weights: Mapping[str, Any]) -> Scheme | None:
    """Return the format that compressed-tensors describes for weights, or None if it is unknown."""
    bits, kind = int(weights.get("num_bits") or 0), weights.get("type")
    strategy, group = weights.get("strategy"), int(weights.get("group_size") or 0)
    if kind == "float" and bits == 4:
        return _NVFP4 if group == 16 else Scheme("mxfp4", 4, 1, (1, 32))
    if kind == "float" and bits == 8:
        if strategy == "block":
            return _fp8_block((128, 128))
        return FP8_TENSOR if strategy == "tensor" else Scheme("fp8 per channel", 8, 4, (1, 0))
    if kind == "int" and bits == 8 and strategy != "group":
        return Scheme("int8 per channel", 8, 4, (1, 0))
    if kind == "int" and bits:
        return packed_integers(bits, group if strategy == "group" else -1, not weights.get("symmetric", True))
    return None


def _quark(found: Mapping[str, Any]) -> tuple[Scheme | None, tuple[tuple[str, Scheme | None], ...]]:
    others = tuple(
        (name, _quark_weight((item or {}).get("weight")))
        for name, item in (found.get("layer_quant_config") or {}).items()
    )
    return _quark_weight((found.get("global_quant_config") or {}).get("weight")), others


def _quark_weight(weight: Any) -> Scheme | None:
    """Return how a weight is stored; a list describes one quantized twice, and its first entry is the storage."""
    item = weight[0] if isinstance(weight, list) and weight else weight
    if not isinstance(item, Mapping):
        return None
    dtype, scheme, group = str(item.get("dtype")), str(item.get("qscheme")), int(item.get("group_size") or 0)
    if "fp4" in dtype:
        return Scheme("mxfp4", 4, 1, (1, group or 32))
    if "fp6" in dtype:
        return Scheme("mxfp6", 6, 1, (1, group or 32))
    if "fp8" in dtype:
        return FP8_TENSOR if scheme == "per_tensor" else Scheme("fp8 per channel", 8, 4, (1, 0))
    if "int4" in dtype:
        return packed_integers(4, group or 128, not item.get("symmetric", True))
    return Scheme("int8 per channel", 8, 4, (1, 0)) if "int8" in dtype else None


def _exceptions(found: Mapping[str, Any]) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Return names and patterns of modules that are not quantized.

    Names are shortened to start at layers.N, as prefixes differ.
    """
    plain: set[str] = set()
    patterns: list[re.Pattern[str]] = []
    for item in _listed(found):
        if item.startswith("re:"):
            patterns.append(re.compile(item[3:]))
        elif "*" in item:
            patterns.append(re.compile(fnmatch.translate(item).replace(r"\Z", r"(?:\..*)?\Z")))
        else:
            start = _LAYER.search(item)
            plain.add(item[start.start() :] if start else item)
    rules = found.get("dynamic")  # GPTQModel: "-:" excludes the modules that match
    for item in rules if isinstance(rules, Mapping) else ():
        if item.startswith("-:"):
            patterns.append(re.compile(".*" + item[2:]))
    return frozenset(plain), tuple(patterns)


def _listed(found: Mapping[str, Any]) -> Iterable[str]:
    for key in _IGNORED:
        for item in found.get(key) or ():
            yield str(item)
