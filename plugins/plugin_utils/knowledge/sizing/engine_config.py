# SPDX-License-Identifier: Apache-2.0
"""Describe how vLLM runs a model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..shapes.layers import Layer
from ..shapes.shape import ModelShape
from ..shapes.weights import FP8_TENSOR, Scheme, Share
from .kv_cache import NO_COPIES, CacheLayout, CacheRules

GIB = 1 << 30
_ONLINE = {
    "fp8": FP8_TENSOR,
    "fp8_per_tensor": FP8_TENSOR,
    "ptpc_fp8": Scheme("fp8 per channel", 8, 4, (1, 0)),
    "fp8_per_channel": Scheme("fp8 per channel", 8, 4, (1, 0)),
    "fp8_per_block": Scheme("fp8 in blocks of 128x128", 8, 4, (128, 128)),
}
_ELEMENTS = {"float32": 4, "float": 4}
LONG_CONTEXT = 32768
"""Longer contexts are prefilled in chunks by the V0 engine of some releases (Rules.chunks_long)."""
MXFP4_PADDING = 256
"""gpt-oss on ROCm: vLLM rounds the experts' sizes up (layers/quantization/mxfp4.py; fused_moe/oracle/mxfp4.py)."""


@dataclass(frozen=True)
class EngineConfig:
    """The vLLM options of one instance that decide about memory; sizes in bytes.

    Attributes:
        memory_bytes: memory of one GPU or partition, as the driver reports it.
        max_model_len: None for the model's own.
        quantization: online quantization requested from vLLM.
        platform: with "cpu", the cache is bounded by kv_cache_memory_bytes alone.
        v1: the instance uses the V1 engine.
        chunked_prefill: None if not set, which V1 treats as enabled and V0 as disabled.
        quick_reduce_bytes: the largest message of Quick Reduce; 0 if it is off.
        draft_bytes: weights of the draft model, divided over draft_tp GPUs (None: as many as the model's).
        draft_layers: those of the draft, which keep KV cache on the last pipeline stage.
    """

    rules: CacheRules = field(repr=False)
    memory_bytes: int
    gpu_memory_utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    tp: int = 1
    pp: int = 1
    dp: int = 1
    expert_parallel: bool = False
    dcp: int = 1
    max_model_len: int | None = None
    block_size: int = 16
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    async_scheduling: bool = False
    hybrid_kv_cache: bool = True
    prefix_caching: bool = True
    enforce_eager: bool = False
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    platform: str = "rocm"
    v1: bool = True
    chunked_prefill: bool | None = None
    quick_reduce_bytes: int = 0
    draft_bytes: int = 0
    draft_tp: int | None = None
    draft_layers: tuple[Layer, ...] = ()

    @property
    def draft_bytes_per_gpu(self) -> int:
        """Return the bytes of the draft model's weights on each GPU."""
        return -(-self.draft_bytes // (self.draft_tp or self.tp))

    def share(self, model: ModelShape) -> Share:
        """Return over how many ranks weights are divided: experts over tensor and data parallel ranks together."""
        ranks = self.tp * self.dp
        padding = MXFP4_PADDING if model.quantization.only_experts and self.platform == "rocm" else 1
        if self.expert_parallel:
            return Share(self.tp, 1, ranks, padding)
        return Share(self.tp, ranks, 1, padding)

    def element(self, model: ModelShape) -> int:
        """Return the bytes of an unquantized weight: "auto" keeps 16 bit and converts 32 bit to 16."""
        return model.element if self.dtype == "auto" else _ELEMENTS.get(self.dtype, 2)

    def online(self, model: ModelShape) -> Scheme | None:
        """Return the format that online quantization gives to linear layers, or None if it does not apply."""
        return _ONLINE.get(self.quantization or "") if model.quantization.scheme is None else None

    def length(self, model: ModelShape) -> int:
        """Return the max_model_len in effect, in tokens."""
        return self.max_model_len or model.context

    def step_tokens(self, model: ModelShape) -> int:
        """Return the number of tokens in the step that vLLM profiles with.

        Without chunked prefill a whole prompt is in one step. Source: SchedulerConfig of 0.6.3 to 0.10.2, EngineArgs of
        0.10.2; for long contexts, EngineArgs up to 0.6.5.
        """
        chunked = self.chunked_prefill
        if chunked is None:
            chunked = self.v1 or (self.rules.chunks_long and self.length(model) > LONG_CONTEXT)
        tokens = self.max_num_batched_tokens
        return tokens if chunked else max(tokens, self.length(model))

    def layout(self, model: ModelShape) -> CacheLayout:
        """Return the layout of the KV cache."""
        # Asynchronous scheduling overlaps two steps; a pipeline overlaps one per stage (max_concurrent_batches).
        batches = 2 if self.async_scheduling and self.pp == 1 else self.pp
        batches = batches if self.rules.overlap else 1
        # Its kernel supports no other block size, except where states enlarge the blocks.
        cpu_latent = self.platform == "cpu" and model.latent and not model.stateful
        return CacheLayout(
            tp=self.tp,
            dcp=self.dcp,
            block_size=16 if cpu_latent else self.block_size,
            kv_dtype=self.kv_cache_dtype,
            element=self.element(model),
            in_flight=batches * self.step_tokens(model),
            hybrid=self.hybrid_kv_cache and self.rules.hybrid and (self.rules.chunked or not model.chunked),
            uneven=self.rules.uneven,
            states=self.rules.states if self.prefix_caching else NO_COPIES,
        )

    @property
    def requested_bytes(self) -> int:
        """Return the bytes that vLLM may use of one GPU."""
        return math.ceil(self.memory_bytes * self.gpu_memory_utilization)
