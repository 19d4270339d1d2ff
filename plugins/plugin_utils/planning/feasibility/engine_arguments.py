# SPDX-License-Identifier: Apache-2.0
"""Describe how vLLM runs a deployment: by the decided flags, and otherwise by the release's own defaults. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...knowledge.catalog.images import ImageFacts
from ...knowledge.catalog.load import Knowledge
from ...knowledge.shapes.shape import ModelShape
from ...knowledge.sizing.fit import EngineConfig
from ...knowledge.sizing.kv_cache import CacheRules
from ...knowledge.vllm.flag_values import Value, size
from ..desired.deployment import Deployment
from ..tuning.tune import OTHER_PLATFORMS, TargetGpu, TunedSettings

GIB = 1 << 30
MODEL_LENGTH = -1
"""The value of max_model_len that stands for the model's own."""
CPU_CACHE = "VLLM_CPU_KVCACHE_SPACE"
QUICK_REDUCE_SIZE = "VLLM_ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB"
DEFAULT_IN_WORDS = ("", "None")
"""Texts that vLLM's parsers read as if no value were given."""
CPU_BLOCK = 128
"""The block size of vLLM's CPU build; vllm/platforms/cpu.py."""


class UnreadableArgument(Exception):
    """Raised for a value that should be a number. The reason was reported when it was checked for its release."""


@dataclass(frozen=True)
class _Arguments:
    """The values of a server's flags. by_memory: the release's defaults for a GPU with as much memory as this one."""

    tuned: TunedSettings
    knowledge: Knowledge
    by_memory: Mapping[str, Any] = field(default_factory=dict)

    def given(self, name: str) -> Value:
        """Return the decided value of a flag; None if there is none."""
        value = self.tuned.args.get(_flag(name))
        return None if isinstance(value, str) and value in DEFAULT_IN_WORDS else value

    def value(self, name: str) -> Value:
        """Return the decided value of a flag, or the release's default."""
        given = self.given(name)
        if given is not None:
            return given
        found = self.by_memory.get(name, self.knowledge.default(name, self.tuned.release))
        known = self.tuned.table.flags.get(_flag(name))
        return found if found is not None or known is None else known.default

    def optional(self, name: str) -> int | None:
        """Return the decided number of a flag; None if there is none. Raise UnreadableArgument."""
        given = self.given(name)
        return None if given is None else _whole(name, given)


def engine_of(
    deployment: Deployment,
    machine: TargetGpu,
    software: ImageFacts,
    tuned: TunedSettings,
    knowledge: Knowledge,
) -> EngineConfig:
    """Return how vLLM runs a deployment: by the decided flags, and otherwise by the release's own defaults.

    Raise UnreadableArgument, which is possible only if a release is not known well enough to refuse the value.
    """
    platform = "cpu" if software.platform in OTHER_PLATFORMS else "rocm"
    by_memory = _by_memory(machine, tuned, knowledge) if platform == "rocm" else {}
    arguments = _Arguments(tuned, knowledge, by_memory)
    given, value = arguments.given, arguments.value
    v1 = tuned.context.engine == "V1"
    effective = value if v1 else given  # releases that have both engines have V1's defaults
    sequences = _number("max_num_seqs", effective("max_num_seqs"), 256)
    tokens = effective("max_num_batched_tokens")
    chunked = given("enable_chunked_prefill")
    quantization = given("quantization")
    return EngineConfig(
        rules=CacheRules.of(knowledge.rules("kv_cache", tuned.release)),
        memory_bytes=machine.memory_bytes,
        gpu_memory_utilization=_finite("gpu_memory_utilization", value("gpu_memory_utilization") or 0.9),
        tp=deployment.tensor_parallel_size,
        pp=deployment.pipeline_parallel_size,
        dp=deployment.data_parallel_size,
        expert_parallel=bool(given("enable_expert_parallel")),
        dcp=_number("decode_context_parallel_size", given("decode_context_parallel_size"), 1),
        max_model_len=longest_sequence(tuned, None),
        max_num_seqs=sequences,
        max_num_batched_tokens=_number("max_num_batched_tokens", tokens, max(2048, sequences)),
        v1=v1,
        chunked_prefill=None if chunked is None else bool(chunked),
        block_size=_block_size(arguments, platform),
        dtype=str(tuned.args.get("--dtype", "auto")),
        kv_cache_dtype=str(tuned.args.get("--kv-cache-dtype", "auto")),
        quantization=None if quantization is None else str(quantization),
        async_scheduling=_async_scheduling(value("async_scheduling"), deployment),
        hybrid_kv_cache=not given("disable_hybrid_kv_cache_manager"),
        prefix_caching=value("enable_prefix_caching") is not False,
        quick_reduce_bytes=_quick_reduce(tuned) if platform == "rocm" else 0,
        enforce_eager=bool(given("enforce_eager")),
        kv_cache_memory_bytes=_cache_bytes(arguments, platform),
        num_gpu_blocks_override=arguments.optional("num_gpu_blocks_override"),
        platform=platform,
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _by_memory(machine: TargetGpu, tuned: TunedSettings, knowledge: Knowledge) -> Mapping[str, Any]:
    """Return the defaults of a release that depend on how much memory a GPU has."""
    steps = knowledge.rules("engine", tuned.release)["batch_by_memory"]
    return next((step for step in steps if machine.memory_bytes < step["below_gib"] * GIB), {})


def _block_size(arguments: _Arguments, platform: str) -> int:
    given = arguments.given("block_size")
    if given is None:
        given = CPU_BLOCK if platform == "cpu" else arguments.value("block_size")
    return _number("block_size", given, 16)


def _cache_bytes(arguments: _Arguments, platform: str) -> int | None:
    """Return the memory that is reserved for the KV cache; None if it gets whatever memory is left."""
    reserved = arguments.optional("kv_cache_memory_bytes")
    if platform == "cpu" and reserved is None:
        return int(_finite(CPU_CACHE, arguments.tuned.env.get(CPU_CACHE) or 4) * GIB)
    return reserved


def _async_scheduling(value: Value, deployment: Deployment) -> bool:
    return value is True or (value == "auto" and deployment.pipeline_parallel_size == 1)


def longest_sequence(tuned: TunedSettings, shape: ModelShape | None) -> int | None:
    """Return the longest sequence: the given one, or the model's; None if neither is known."""
    given = tuned.args.get("--max-model-len")
    words = isinstance(given, str) and (given.lower() == "auto" or given in DEFAULT_IN_WORDS)
    length = None if given is None or words else _whole("max_model_len", given)
    if length in (None, MODEL_LENGTH):
        return (shape.context or None) if shape else None
    return length


def _quick_reduce(tuned: TunedSettings) -> int:
    """Return the largest message that Quick Reduce has buffers for; 0 if it is off."""
    if tuned.env.get("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "NONE") == "NONE":
        return 0
    given = tuned.env.get(QUICK_REDUCE_SIZE, "")
    return _whole(QUICK_REDUCE_SIZE, given) << 20 if given.isdecimal() else 2 * GIB


def _whole(name: str, value: Value) -> int:
    try:
        return size(str(value))
    except ValueError as error:
        raise UnreadableArgument(f"{name}: {error}") from None


def _finite(name: str, value: Value) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UnreadableArgument(f"{name}: {value!r} is not a number")
    return number


def _number(name: str, value: Value, default: int) -> int:
    if isinstance(value, str):
        return _whole(name, value)
    return value if isinstance(value, int) and value > 0 else default
