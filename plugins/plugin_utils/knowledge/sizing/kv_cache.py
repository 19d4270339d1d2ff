# SPDX-License-Identifier: Apache-2.0
"""Compute vLLM's KV cache layout: bytes per block, groups of layers, blocks that one request uses.

How many tokens fit into the memory of a GPU is computed from it in fit.py.

Source: vllm/v1/core/kv_cache_utils.py and vllm/v1/kv_cache_interface.py of 0.32.0 and 0.33.0; differences between
releases are in catalog/vllm/rules.yml.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

from ..shapes.layers import Cache, Layer
from ..shapes.states import State
from ..shapes.weights import cdiv

FULL, SLIDING, CHUNKED, STATE = "full", "sliding", "chunked", "state"


@dataclass(frozen=True)
class StateCopies:
    """The number of states that a request keeps in each layer: the running one, and those that prefix caching adds."""

    plain: int
    checkpointed: int


NO_COPIES = StateCopies(1, 1)


Span = tuple[float, float, float]
"""The least, the usual and the most of a figure."""


@dataclass(frozen=True)
class ReserveRules:
    """What a release's profiling run finds in use; catalog/vllm/rules.yml explains the figures."""

    v0_logit: Span
    v1_logit: Span
    scratch_rows: int
    joined: Span
    alone: Span
    graphs: Span
    encoder: Span
    forward: Span
    routed: Span


@dataclass(frozen=True)
class CacheRules:
    """The rules that differ between vLLM releases; catalog/vllm/rules.yml has the values and explains them."""

    hybrid: bool
    chunked: bool
    by_concurrency: bool
    grouped: bool
    overlap: bool
    uneven: float
    graphs_counted: bool
    chunks_long: bool
    latent_fp8: bool
    states: StateCopies
    reserve: ReserveRules

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> CacheRules:
        """Build the rules of a release from the catalogue's values."""
        reserve: dict[str, Any] = {
            key: tuple(item) if isinstance(item, list) else item for key, item in values["reserve"].items()
        }
        made = {"states": StateCopies(**values["states"]), "reserve": ReserveRules(**reserve)}
        return cls(**{**values, **made})


@dataclass(frozen=True)
class CacheLayout:
    """The parameters of the layout: parallel sizes, block size in tokens, type and element size in bytes.

    element: of the model's own type. in_flight: tokens that are scheduled and not yet settled.
    """

    tp: int
    dcp: int
    block_size: int
    kv_dtype: str
    element: int
    in_flight: int
    hybrid: bool
    uneven: float
    states: StateCopies


@dataclass(frozen=True)
class CacheSpec:
    """The cache of one layer: bytes of a block (page) of `block` tokens.

    window: tokens of sliding attention or of a chunk of chunked attention, or the number of states that a request
    keeps.
    """

    kind: str
    page: int
    block: int
    window: int = 0


@dataclass(frozen=True)
class CachePlan:
    """The cache of a model: groups that take blocks of one pool each, and the cost of a block on each stage.

    bytes_per_token: of the attention layers of the largest stage, before rounding to blocks. stage_bytes: of a block,
    per stage.
    """

    groups: tuple[CacheSpec, ...]
    stage_bytes: tuple[int, ...]
    bytes_per_token: int
    layout: CacheLayout = field(repr=False)

    def request_blocks(self, length: int) -> int:
        """Return the number of blocks that a request of `length` tokens uses, over all groups."""
        return sum(_request_blocks(spec, length, self.layout) for spec in self.groups)


def _request_blocks(spec: CacheSpec, length: int, how: CacheLayout) -> int:
    if spec.kind == STATE:
        return spec.window
    if spec.kind == SLIDING:
        return cdiv(min(spec.window - 1 + how.in_flight, length), spec.block) + 1
    if spec.kind == CHUNKED:
        return cdiv(min(spec.window + how.in_flight, length), spec.block)
    return cdiv(cdiv(length, how.dcp), spec.block)


_ELEMENTS = (("fp8", 1), ("int8", 1), ("bfloat16", 2), ("float16", 2), ("half", 2), ("float32", 4))


def element_bytes(kv_dtype: str) -> int | None:
    """Return the bytes of one number of this type; None for the model's own type and for an unknown one."""
    return next((size for prefix, size in _ELEMENTS if kv_dtype.startswith(prefix)), None)


def token_bytes(cache: Cache, how: CacheLayout) -> int:
    """Return the bytes that one layer keeps per token on one rank."""
    if cache.raw:
        return cache.raw
    if cache.latent and how.kv_dtype == "fp8_ds_mla":
        return 656
    size = element_bytes(how.kv_dtype) or how.element
    heads = 1 if cache.latent else max(1, cache.heads // how.tp)
    scales = 8 if how.kv_dtype.endswith("_per_token_head") else 0
    return heads * ((cache.key + cache.value) * size + scales)


def state_bytes(state: State, how: CacheLayout) -> int:
    """Return the bytes that one layer keeps per request on one rank: convolution window and recurrent state."""
    groups = state.groups if state.groups % how.tp == 0 else how.tp
    channels = (state.channels + 2 * groups * state.group_channels) // how.tp
    recurrent = state.heads // how.tp * state.head_elements * (4 if state.wide else how.element)
    return channels * (state.kernel - 1) * how.element + recurrent


def plan(stages: Sequence[Sequence[Layer]], how: CacheLayout) -> CachePlan:
    """Lay out the cache for the layers of each pipeline stage."""
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
        return CachePlan((), (0,) * len(stages), 0, how)
    own = any(isinstance(cache, Cache) and cache.page for _unused, cache in caches)
    groups = _packed(specs) if own else _groups(specs, how)
    stage_bytes = tuple(
        max(sum(spec.page for at, spec in members if at == stage) for members in groups)
        for stage in range(len(stages))
    )
    return CachePlan(tuple(members[0][1] for members in groups), stage_bytes, max(per_token), how)


Placed = tuple[int, Union[Cache, State]]


def _aligned(caches: Sequence[Placed], how: CacheLayout) -> CacheLayout:
    """Return the layout with blocks enlarged so that an attention page holds a state, if a model has both."""
    states = [state_bytes(cache, how) for _unused, cache in caches if isinstance(cache, State)]
    tokens = [
        token_bytes(replace(cache, heads=cache.declared or cache.heads), how)
        for _unused, cache in caches
        if isinstance(cache, Cache)
    ]
    if not states or not tokens:
        return how
    block = how.block_size * cdiv(max(states), how.block_size * max(tokens))
    return replace(how, block_size=max(how.block_size, block))


def _spec(cache: Cache | State, how: CacheLayout) -> CacheSpec:
    if isinstance(cache, State):
        kept = NO_COPIES if cache.alone else how.states
        copies = kept.checkpointed if cache.checkpointed else kept.plain
        return CacheSpec(STATE, state_bytes(cache, how), how.block_size, copies)
    block = cache.block or how.block_size
    page = cache.page or block * token_bytes(cache, how)
    if cache.window:
        return CacheSpec(SLIDING, page, block, cache.window)
    if cache.chunk:
        return CacheSpec(CHUNKED, page, block, cache.chunk)
    return CacheSpec(FULL, page, block)


PlacedSpec = tuple[int, CacheSpec]


def _groups(specs: Sequence[PlacedSpec], how: CacheLayout) -> list[list[PlacedSpec]]:
    """Return the groups of layers that share block tables.

    Layers of one kind are one group; with several kinds, each group has equally many layers of one kind.
    """
    kinds = {(spec.kind, spec.window) for _unused, spec in specs}
    if len(kinds) > 1 and not how.hybrid and any(kind == FULL for kind, _unused in kinds):
        specs = [
            (stage, replace(spec, kind=FULL, window=0) if spec.kind in (SLIDING, CHUNKED) else spec)
            for stage, spec in specs
        ]
        kinds = {(spec.kind, spec.window) for _unused, spec in specs}
    if len(kinds) == 1:
        return [list(specs)]
    by_spec: dict[CacheSpec, list[PlacedSpec]] = {}
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
    """Return the specs with equal page sizes: smaller pages get more tokens if that divides, else padding."""
    page = max(spec.page for _unused, spec in specs)
    result = []
    for stage, spec in specs:
        factor = page // spec.page if spec.kind != STATE and page % spec.page == 0 else 1
        result.append((stage, replace(spec, page=page, block=spec.block * factor)))
    return result


def _packed(specs: Sequence[PlacedSpec]) -> list[list[PlacedSpec]]:
    """Return the groups of a model whose pages have several sizes: a block is as large as the largest group's pages.

    Layers that need the same tokens are in one bucket. Of a bucket that has equally many pages of each size, one of
    each is a repeat; the buckets are cut into groups of so many repeats that the least is wasted.
    """
    buckets: dict[tuple[str, int, int], dict[int, list[PlacedSpec]]] = {}
    for placed in specs:
        spec = placed[1]
        bucket = buckets.setdefault((spec.kind, spec.window, spec.block), {})
        bucket.setdefault(spec.page, []).append(placed)
    counts = {key: {len(members) for members in bucket.values()} for key, bucket in buckets.items()}
    even = {key: min(found) for key, found in counts.items() if len(found) == 1}
    least = max((count for key, count in even.items() if len(buckets[key]) > 1), default=0)
    sizes = range(least, max([least, *even.values()]) + 1) if least else ()
    repeats = min(sizes, key=lambda size: (sum(-count % size for count in even.values()), -size), default=0)
    groups = []
    for key, bucket in buckets.items():
        number = cdiv(even[key], repeats) if repeats and key in even else 1
        groups += [
            [placed for members in bucket.values() for placed in members[index::number]]
            for index in range(number)
        ]
    return groups
