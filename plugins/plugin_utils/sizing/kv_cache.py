# SPDX-License-Identifier: Apache-2.0
"""How vLLM lays the KV cache out: bytes per block, groups of layers, blocks that one request takes.

Source: vllm/v1/core/kv_cache_utils.py and vllm/v1/kv_cache_interface.py of 0.32.0 and 0.33.0; where releases differ,
Rules says it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

from .layers import Cache, Layer, State
from .weights import cdiv

FULL, SLIDING, CHUNKED, STATE = "full", "sliding", "chunked", "state"


@dataclass(frozen=True)
class Copies:
    """States that a request keeps in each layer: the running one, and those that prefix caching needs beside it."""

    plain: int
    checkpointed: int


NO_COPIES = Copies(1, 1)


@dataclass(frozen=True)
class Rules:
    """What a vLLM release does differently from others; catalog/vllm/rules.yml has the values and explains them."""

    hybrid: bool
    chunked: bool
    by_concurrency: bool
    grouped: bool
    overlap: bool
    uneven: float
    graphs_counted: bool
    chunks_long: bool
    latent_fp8: bool
    states: Copies

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Rules:
        """The values of a release."""
        return cls(**{**values, "states": Copies(**values["states"])})


@dataclass(frozen=True)
class Layout:
    """How the cache is to be laid out: parallel sizes, block size in tokens, type and element size in bytes.

    element: of the model's own type. in_flight: tokens scheduled and not yet settled.
    """

    tp: int
    dcp: int
    block_size: int
    kv_dtype: str
    element: int
    in_flight: int
    hybrid: bool
    uneven: float
    states: Copies


@dataclass(frozen=True)
class Spec:
    """The cache of one layer: bytes of a block (page) of `block` tokens.

    window: of sliding attention; the chunk of chunked attention; how many states a request keeps.
    """

    kind: str
    page: int
    block: int
    window: int = 0


@dataclass(frozen=True)
class Plan:
    """The cache of a model: groups that take blocks of one pool each, and what a block costs on each stage.

    bytes_per_token: of attention layers of the largest stage, before blocks. stage_bytes: of a block, per stage.
    """

    groups: tuple[Spec, ...]
    stage_bytes: tuple[int, ...]
    bytes_per_token: int
    layout: Layout = field(repr=False)

    def request_blocks(self, length: int) -> int:
        """Blocks that a request of this many tokens takes, in all groups together."""
        return sum(_request_blocks(spec, length, self.layout) for spec in self.groups)


def _request_blocks(spec: Spec, length: int, how: Layout) -> int:
    if spec.kind == STATE:
        return spec.window
    if spec.kind == SLIDING:
        return cdiv(min(spec.window - 1 + how.in_flight, length), spec.block) + 1
    if spec.kind == CHUNKED:
        return cdiv(min(spec.window + how.in_flight, length), spec.block)
    return cdiv(cdiv(length, how.dcp), spec.block)


_ELEMENTS = (("fp8", 1), ("int8", 1), ("bfloat16", 2), ("float16", 2), ("half", 2), ("float32", 4))


def element_bytes(kv_dtype: str) -> int | None:
    """Bytes of one number of this type; None for the model's own type and for one that is not known here."""
    return next((size for prefix, size in _ELEMENTS if kv_dtype.startswith(prefix)), None)


def token_bytes(cache: Cache, how: Layout) -> int:
    """Bytes that one layer keeps per token on one rank."""
    if cache.raw:
        return cache.raw
    if cache.latent and how.kv_dtype == "fp8_ds_mla":
        return 656
    size = element_bytes(how.kv_dtype) or how.element
    heads = 1 if cache.latent else max(1, cache.heads // how.tp)
    scales = 8 if how.kv_dtype.endswith("_per_token_head") else 0
    return heads * ((cache.key + cache.value) * size + scales)


def state_bytes(state: State, how: Layout) -> int:
    """Bytes that one layer keeps per request on one rank: the convolution's window and the recurrent state."""
    groups = state.groups if state.groups % how.tp == 0 else how.tp
    channels = (state.channels + 2 * groups * state.group_channels) // how.tp
    recurrent = state.heads // how.tp * state.head_elements * (4 if state.wide else how.element)
    return channels * (state.kernel - 1) * how.element + recurrent


def plan(stages: Sequence[Sequence[Layer]], how: Layout) -> Plan:
    """Lay the cache out for layers as pipeline stages have them."""
    caches = [
        (stage, cache) for stage, layers in enumerate(stages) for layer in layers for cache in layer.caches
    ]
    per_token = [0] * len(stages)
    for stage, cache in caches:
        if isinstance(cache, Cache):
            per_token[stage] += token_bytes(cache, how)
    how = _aligned(caches, how)
    specs = [(stage, _spec(cache, how)) for stage, cache in caches]
    if not specs:
        return Plan((), (0,) * len(stages), 0, how)
    groups = _groups(specs, how)
    stage_bytes = tuple(
        max(sum(spec.page for at, spec in members if at == stage) for members in groups)
        for stage in range(len(stages))
    )
    return Plan(tuple(members[0][1] for members in groups), stage_bytes, max(per_token), how)


Placed = tuple[int, Union[Cache, State]]


def _aligned(caches: Sequence[Placed], how: Layout) -> Layout:
    """With states, the block grows until an attention page holds a state."""
    states = [state_bytes(cache, how) for _, cache in caches if isinstance(cache, State)]
    tokens = [token_bytes(cache, how) for _, cache in caches if isinstance(cache, Cache)]
    if not states or not tokens:
        return how
    block = how.block_size * cdiv(max(states), how.block_size * max(tokens))
    return replace(how, block_size=max(how.block_size, block))


def _spec(cache: Cache | State, how: Layout) -> Spec:
    if isinstance(cache, State):
        copies = how.states.checkpointed if cache.checkpointed else how.states.plain
        return Spec(STATE, state_bytes(cache, how), how.block_size, copies)
    page = how.block_size * token_bytes(cache, how)
    if cache.window:
        return Spec(SLIDING, page, how.block_size, cache.window)
    if cache.chunk:
        return Spec(CHUNKED, page, how.block_size, cache.chunk)
    return Spec(FULL, page, how.block_size)


PlacedSpec = tuple[int, Spec]


def _groups(specs: Sequence[PlacedSpec], how: Layout) -> list[list[PlacedSpec]]:
    """Layers that share block tables. One kind: one group. Several: groups of as many layers of one kind each."""
    kinds = {(spec.kind, spec.window) for _, spec in specs}
    if len(kinds) > 1 and not how.hybrid and any(kind == FULL for kind, _ in kinds):
        specs = [
            (stage, replace(spec, kind=FULL, window=0) if spec.kind in (SLIDING, CHUNKED) else spec)
            for stage, spec in specs
        ]
        kinds = {(spec.kind, spec.window) for _, spec in specs}
    if len(kinds) == 1:
        return [list(specs)]
    by_spec: dict[Spec, list[PlacedSpec]] = {}
    for stage, spec in _one_page_size(specs):
        by_spec.setdefault(spec, []).append((stage, spec))
    counts = [len(members) for members in by_spec.values()]
    size = max(counts) if max(counts) < how.uneven * min(counts) else min(counts)
    groups = []
    for members in by_spec.values():
        number = cdiv(len(members), size)
        groups += [members[index::number] for index in range(number)]
    return groups


def _one_page_size(specs: Sequence[PlacedSpec]) -> list[PlacedSpec]:
    """The same pages for all: smaller ones take more tokens where that fits, else they are padded."""
    page = max(spec.page for _, spec in specs)
    result = []
    for stage, spec in specs:
        factor = page // spec.page if spec.kind != STATE and page % spec.page == 0 else 1
        result.append((stage, replace(spec, page=page, block=spec.block * factor)))
    return result
