# SPDX-License-Identifier: Apache-2.0
"""The layout of the KV cache in small numbers, worked out by hand; test_fit_vllm holds it against the real vLLM."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.layers import Cache, Layer
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.states import State
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.kv_cache import (
    CHUNKED,
    FULL,
    SLIDING,
    STATE,
    CacheLayout,
    CachePlan,
    CacheSpec,
    StateCopies,
    element_bytes,
    plan,
    state_bytes,
    token_bytes,
)

from tests.worlds.catalogue import kv_rules


def how(**changes: Any) -> CacheLayout:
    given: dict[str, Any] = {
        "tp": 1, "dcp": 1, "block_size": 16, "kv_dtype": "auto", "element": 2, "in_flight": 0, "hybrid": True,
        "uneven": 1.5, "states": StateCopies(2, 3), **changes,
    }  # fmt: skip
    return CacheLayout(**given)


# ---- what one layer keeps ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv_dtype", "expected"),
    [
        ("auto", None), ("fp8", 1), ("fp8_e4m3", 1), ("int8_per_token_head", 1), ("bfloat16", 2), ("float16", 2),
        ("half", 2), ("float32", 4), ("of-tomorrow", None),
    ],
)  # fmt: skip
def test_bytes_of_a_number(kv_dtype: str, expected: int | None) -> None:
    assert element_bytes(kv_dtype) == expected


HEADS = Cache(8, 128, 64)
LATENT = Cache(1, 512, 64, latent=True)


@pytest.mark.parametrize(
    ("cache", "changes", "expected"),
    [
        (HEADS, {}, 8 * 192 * 2),
        (HEADS, {"element": 4}, 8 * 192 * 4),
        (HEADS, {"kv_dtype": "fp8", "element": 4}, 8 * 192),
        (HEADS, {"tp": 4}, 2 * 192 * 2),
        (HEADS, {"tp": 16}, 192 * 2),  # a head is never divided
        (HEADS, {"kv_dtype": "int8_per_token_head"}, 8 * (192 + 8)),  # two scales in float32
        (HEADS, {"kv_dtype": "fp8_ds_mla"}, 8 * 192),  # not latent
        (LATENT, {}, 576 * 2),
        (LATENT, {"tp": 8}, 576 * 2),  # each rank keeps it whole
        (Cache(4, 512, 64, latent=True), {}, 576 * 2),
        (LATENT, {"kv_dtype": "fp8_ds_mla"}, 656),
        (Cache(8, 128, 64, raw=132), {"tp": 2, "kv_dtype": "fp8"}, 132),
    ],
)
def test_bytes_of_a_token(cache: Cache, changes: dict[str, Any], expected: int) -> None:
    assert token_bytes(cache, how(**changes)) == expected


@pytest.mark.parametrize(
    ("state", "changes", "expected"),
    [
        # A convolution over four steps keeps three.
        (State(100, 4, 0, 0), {}, 100 * 3 * 2),
        (State(100, 4, 0, 0), {"tp": 2}, 50 * 3 * 2),
        (State(0, 1, 8, 64), {}, 8 * 64 * 2),
        (State(0, 1, 8, 64), {"tp": 4}, 2 * 64 * 2),
        (State(0, 1, 8, 64, wide=True), {}, 8 * 64 * 4),
        (State(0, 1, 8, 64), {"element": 4}, 8 * 64 * 4),
        (State(100, 4, 8, 64, groups=2, group_channels=10), {}, 140 * 3 * 2 + 1024),
        (State(100, 4, 0, 0, groups=2, group_channels=10), {"tp": 2}, 70 * 3 * 2),
        # Groups that do not divide are kept by each rank: four of them, on four ranks.
        (State(100, 4, 0, 0, groups=2, group_channels=10), {"tp": 4}, (100 + 80) // 4 * 3 * 2),
        (State(100, 4, 0, 0, groups=1, group_channels=10), {"tp": 2}, (100 + 40) // 2 * 3 * 2),
    ],
)
def test_bytes_of_a_state(state: State, changes: dict[str, Any], expected: int) -> None:
    assert state_bytes(state, how(**changes)) == expected


# ---- blocks of a request ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "length", "changes", "expected"),
    [
        (CacheSpec(FULL, 1, 16), 0, {}, 0),
        (CacheSpec(FULL, 1, 16), 1, {}, 1),
        (CacheSpec(FULL, 1, 16), 16, {}, 1),
        (CacheSpec(FULL, 1, 16), 17, {}, 2),
        (CacheSpec(FULL, 1, 16), 65, {"dcp": 2}, 3),  # 33 tokens on one of the ranks
        (CacheSpec(STATE, 1, 16, 3), 10000, {}, 3),
        # The window's other tokens and those in flight, and a block as the first one may be begun in the middle.
        (CacheSpec(SLIDING, 1, 16, 33), 1000, {}, 2 + 1),
        (CacheSpec(SLIDING, 1, 16, 34), 1000, {}, 3 + 1),
        (CacheSpec(SLIDING, 1, 16, 33), 1000, {"in_flight": 16}, 3 + 1),
        (CacheSpec(SLIDING, 1, 16, 33), 20, {"in_flight": 16}, 2 + 1),
        (CacheSpec(CHUNKED, 1, 16, 32), 1000, {}, 2),
        (CacheSpec(CHUNKED, 1, 16, 33), 1000, {}, 3),
        (CacheSpec(CHUNKED, 1, 16, 32), 1000, {"in_flight": 1}, 3),
        (CacheSpec(CHUNKED, 1, 16, 32), 10, {"in_flight": 64}, 1),
    ],
)
def test_blocks_of_a_request(spec: CacheSpec, length: int, changes: dict[str, Any], expected: int) -> None:
    assert CachePlan((spec,), (1,), 1, how(**changes)).request_blocks(length) == expected
    assert CachePlan((spec, spec), (1,), 1, how(**changes)).request_blocks(length) == 2 * expected


# ---- groups -----------------------------------------------------------------------------------------

TOKEN = 100  # bytes of one in these layers
PAGE = 16 * TOKEN
FULL_ONE = CacheSpec(FULL, PAGE, 16)


def full(heads: int = 1) -> Layer:
    return Layer((), (Cache(heads, 25, 25),))


def sliding(window: int = 64, heads: int = 1) -> Layer:
    return Layer((), (Cache(heads, 25, 25, window=window),))


def chunked() -> Layer:
    return Layer((), (Cache(1, 25, 25, chunk=64),))


SLIDES = CacheSpec(SLIDING, PAGE, 16, 64)
CHUNKS = CacheSpec(CHUNKED, PAGE, 16, 64)


@pytest.mark.parametrize(
    ("layers", "changes", "groups", "block_bytes"),
    [
        ([full()] * 3, {}, [FULL_ONE], 3 * PAGE),
        ([sliding()] * 3, {}, [SLIDES], 3 * PAGE),
        ([chunked()] * 3, {}, [CHUNKS], 3 * PAGE),
        # Several kinds: groups of as many layers as the smaller kind has.
        ([full(), sliding(), sliding(), sliding()], {}, [FULL_ONE, SLIDES, SLIDES, SLIDES], PAGE),
        ([full(), full(), sliding(), sliding()], {}, [FULL_ONE, SLIDES], 2 * PAGE),
        # Four and three: within half as many again, so one group each.
        ([full()] * 4 + [sliding()] * 3, {}, [FULL_ONE, SLIDES], 4 * PAGE),
        ([full()] * 4 + [sliding()] * 3, {"uneven": 1.0}, [FULL_ONE, FULL_ONE, SLIDES], 3 * PAGE),
        ([full()] * 3 + [sliding()] * 2, {}, [FULL_ONE, FULL_ONE, SLIDES], 2 * PAGE),
        ([full(), sliding(), chunked()], {}, [FULL_ONE, SLIDES, CHUNKS], PAGE),
        ([sliding(), sliding(32)], {}, [SLIDES, CacheSpec(SLIDING, PAGE, 16, 32)], PAGE),
        # Without groups all are planned as full attention, where one is.
        ([full(), sliding(), chunked()], {"hybrid": False}, [FULL_ONE], 3 * PAGE),
        ([full(2), sliding()], {"hybrid": False}, [CacheSpec(FULL, 2 * PAGE, 16)], 3 * PAGE),
        ([sliding(), sliding(32)], {"hybrid": False}, [SLIDES, CacheSpec(SLIDING, PAGE, 16, 32)], PAGE),
        ([sliding()] * 2, {"hybrid": False}, [SLIDES], 2 * PAGE),
        # One page size for all: a smaller page takes more tokens where that fits, else it is padded.
        ([full(2), sliding()], {}, [CacheSpec(FULL, 2 * PAGE, 16), CacheSpec(SLIDING, 2 * PAGE, 32, 64)], 2 * PAGE),
        ([full(3), sliding(heads=2)], {}, [CacheSpec(FULL, 3 * PAGE, 16), CacheSpec(SLIDING, 3 * PAGE, 16, 64)],
         3 * PAGE),
        ([], {}, [], 0),
        ([Layer(())], {}, [], 0),
    ],
)  # fmt: skip
def test_groups(
    layers: list[Layer], changes: dict[str, Any], groups: list[CacheSpec], block_bytes: int
) -> None:
    found = plan([layers], how(**changes))
    assert (list(found.groups), found.stage_bytes) == (groups, (block_bytes,))


def test_stages_are_counted_each_by_itself() -> None:
    found = plan([[full()] * 3, [full()] * 2, []], how())
    assert (found.groups, found.stage_bytes) == ((FULL_ONE,), (3 * PAGE, 2 * PAGE, 0))
    assert found.bytes_per_token == 3 * TOKEN
    assert plan([[full()], [full(), full()]], how()).bytes_per_token == 2 * TOKEN
    # Of groups that share a pool the largest counts, on each stage.
    mixed = plan([[full(), sliding()], [sliding(), sliding()]], how())
    assert (mixed.groups, mixed.stage_bytes) == ((FULL_ONE, SLIDES, SLIDES, SLIDES), (PAGE, PAGE))
    empty = plan([[], []], how())
    assert (empty.groups, empty.stage_bytes, empty.bytes_per_token) == ((), (0, 0), 0)


def state(channels: int, **more: Any) -> Layer:
    return Layer((), (State(channels, 2, 0, 0, **more),))


@pytest.mark.parametrize(
    ("layers", "changes", "block", "groups"),
    [
        # The state, of 4000 bytes, asks for three blocks of 1600: 48 tokens a page.
        ([full(), state(2000)], {}, 48, [CacheSpec(FULL, 4800, 48), CacheSpec(STATE, 4800, 48, 2)]),
        ([full(), state(2000, checkpointed=True)], {}, 48, [CacheSpec(FULL, 4800, 48), CacheSpec(STATE, 4800, 48, 3)]),
        ([full(), state(2400)], {}, 48, [CacheSpec(FULL, 4800, 48), CacheSpec(STATE, 4800, 48, 2)]),
        ([full(), state(2401)], {}, 64, [CacheSpec(FULL, 6400, 64), CacheSpec(STATE, 6400, 64, 2)]),
        ([full(), state(10)], {}, 16, [FULL_ONE, CacheSpec(STATE, PAGE, 16, 2)]),
        # The largest token and the largest state count.
        ([full(), full(2), state(10), state(3000)], {}, 32,
         [CacheSpec(FULL, 6400, 64), CacheSpec(FULL, 6400, 32), CacheSpec(STATE, 6400, 32, 2), CacheSpec(STATE, 6400,
          32, 2)]),
        # Nothing to align, and no prefixes that copies of states would be kept for.
        ([state(2000, alone=True)] * 2, {}, 16, [CacheSpec(STATE, 4000, 16, 1)]),
        ([state(2000)] * 2, {}, 16, [CacheSpec(STATE, 4000, 16, 2)]),
        ([state(2000)], {"states": StateCopies(1, 1)}, 16, [CacheSpec(STATE, 4000, 16, 1)]),
        # A state is not planned as attention.
        ([full(), sliding(), state(10)], {"hybrid": False}, 16, [FULL_ONE, CacheSpec(STATE, PAGE, 16, 2)]),
    ],
)  # fmt: skip
def test_states_grow_the_block(
    layers: list[Layer], changes: dict[str, Any], block: int, groups: list[CacheSpec]
) -> None:
    found = plan([layers], how(**changes))
    assert found.layout.block_size == block
    assert list(dict.fromkeys(found.groups)) == list(dict.fromkeys(groups))
    # A state is none of the bytes per token.
    attention = [
        cache.heads * TOKEN for layer in layers for cache in layer.caches if isinstance(cache, Cache)
    ]
    assert found.bytes_per_token == sum(attention)


# ---- releases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "since", "changed"),
    [
        ("0.6.5", "0.6.6", {"chunks_long": False}),
        ("0.9.0.1", "0.9.1", {"hybrid": True, "grouped": True}),
        ("0.11.2", "0.12.0", {"uneven": 1.25, "latent_fp8": True}),
        ("0.13.0", "0.14.0", {"chunked": True}),
        ("0.19.1", "0.20.0", {"uneven": 1.5}),
        ("0.20.0", "0.20.1", {"by_concurrency": True}),
        ("0.25.1", "0.26.0", {"overlap": True, "graphs_counted": True}),
        ("0.27.1", "0.28.0", {"states": {"plain": 2, "checkpointed": 2}}),
        ("0.31.0", "0.32.0", {"states": {"plain": 2, "checkpointed": 3}}),
    ],
)
def test_what_a_release_changed(before: str, since: str, changed: dict[str, Any]) -> None:
    old, new = (asdict(kv_rules(version)) for version in (before, since))
    assert {key: value for key, value in new.items() if old[key] != value} == changed


def test_the_first_release_has_none_of_it() -> None:
    first = asdict(kv_rules("0.6.3"))
    del first["reserve"]  # test_reserve.py
    assert first == {
        "hybrid": False, "chunked": False, "by_concurrency": False, "grouped": False, "overlap": False, "uneven": 1.0,
        "graphs_counted": False, "chunks_long": True, "latent_fp8": False, "states": {"plain": 1, "checkpointed": 1},
    }  # fmt: skip
