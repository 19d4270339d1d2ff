# SPDX-License-Identifier: Apache-2.0
"""Fitting a model of a few hundred bytes, so that every figure can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.checkpoint import CheckpointSize
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.layers import Cache, Layer
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.shape import ModelShape
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.states import State
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.weights import OUT, Matrix
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.fit import (
    EngineConfig,
    fit,
    largest_max_model_len,
    remedies,
    smallest_tp,
    stage_weights,
    stages,
)

from tests.worlds.catalogue import kv_rules

GIB = 1 << 30
LAYER = Layer((Matrix("linear", 10, 10, quantizable=True),), (Cache(2, 25, 25),))
EMBEDDING, HEAD, LAYERS = 64 * 10 * 2, 128 * 10 * 2, 2 * 200
TOKEN = 6 * 2 * 50 * 2  # bytes of one in all layers
BLOCK = 16 * TOKEN
WEIGHTS = 3 * LAYERS + EMBEDDING + 20 + HEAD


def shape(**changes: Any) -> ModelShape:
    given: dict[str, Any] = {
        "model_type": "small", "known": True, "layers": (LAYER,) * 6, "embedding": Matrix("e", 64, 10, OUT),
        "final": (Matrix("norm", 10),), "head": Matrix("h", 128, 10, OUT), "heads": 2, "kv_heads": 2, "context": 160,
        **changes,
    }  # fmt: skip
    return ModelShape(**given)


def engine(version: str = "0.33.0", **changes: Any) -> EngineConfig:
    """On a GPU of 4 GiB, of which half may be used; half of that is set aside."""
    given: dict[str, Any] = {
        "memory_bytes": 4 * GIB, "gpu_memory_utilization": 0.5, "max_num_seqs": 1, "max_num_batched_tokens": 16,
        "enforce_eager": True, **changes,
    }  # fmt: skip
    rules = kv_rules(version)
    fixed = {"alone": (1024,) * 3, "joined": (1536,) * 3, "graphs": (1024,) * 3, "encoder": (0,) * 3}
    return EngineConfig(rules=replace(rules, reserve=replace(rules.reserve, **fixed)), **given)


# ---- weights ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "changes", "expected"),
    [
        ({}, {}, (WEIGHTS,)),
        ({}, {"pp": 3}, (LAYERS + EMBEDDING, LAYERS, LAYERS + 20 + HEAD)),
        # The head is the embedding: the first stage has it and the last, and those between have none.
        ({"tied": True}, {}, (3 * LAYERS + EMBEDDING + 20,)),
        ({"tied": True}, {"pp": 3}, (LAYERS + EMBEDDING, LAYERS, LAYERS + EMBEDDING + 20)),
        ({"head_everywhere": True}, {"pp": 3}, (LAYERS + EMBEDDING + HEAD, LAYERS + HEAD, LAYERS + 20 + HEAD)),
        ({"head": None, "head_everywhere": True}, {"pp": 3}, (LAYERS + EMBEDDING, LAYERS, LAYERS + 20)),
        ({"head_everywhere": True, "tied": True}, {"pp": 3}, (LAYERS + EMBEDDING, LAYERS, LAYERS + EMBEDDING + 20)),
        ({"embedding": None, "head": None, "final": ()}, {"pp": 3}, (LAYERS,) * 3),
        ({}, {"tp": 2}, (3 * LAYERS + EMBEDDING // 2 + 20 + HEAD // 2,)),
        ({"other_bytes": 1000}, {"pp": 3}, (LAYERS + EMBEDDING + 1000, LAYERS, LAYERS + 20 + HEAD)),
        ({"factor": 0.5}, {"pp": 3}, ((LAYERS + EMBEDDING) // 2, LAYERS // 2, (LAYERS + 20 + HEAD) // 2)),
        ({"factor": 0.5}, {"draft_bytes": 101, "draft_tp": 2}, (WEIGHTS // 2 + 51,)),
        ({}, {"draft_bytes": 100, "tp": 2, "pp": 2},
         (3 * 200 + EMBEDDING // 2 + 50, 3 * 200 + 20 + HEAD // 2 + 50)),
        ({}, {"dtype": "float32"}, (2 * WEIGHTS,)),
        ({}, {"quantization": "fp8"}, (6 * 104 + EMBEDDING + 20 + HEAD,)),
        # Nothing but the files' size is known.
        ({"missing": ("x",), "checkpoint": CheckpointSize(1001, 1)}, {"tp": 2, "pp": 3}, (167,) * 3),
        ({"missing": ("x",), "checkpoint": CheckpointSize(1001, 1)}, {"draft_bytes": 100}, (1101,)),
        ({"missing": ("x",)}, {"pp": 2}, (0, 0)),
    ],
)  # fmt: skip
def test_weights_of_each_stage(
    model: dict[str, Any], changes: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert stage_weights(shape(**model), engine(**changes)) == expected


def test_layers_of_each_stage_are_counted_by_what_they_are() -> None:
    large = Layer((Matrix("linear", 100, 10),))
    mixed = shape(layers=(LAYER, large, LAYER, large), embedding=None, head=None, final=())
    assert stage_weights(mixed, engine(pp=2)) == (2200, 2200)
    assert [len(part) for part in stages((LAYER,) * 5, 5)] == [1] * 5


# ---- the cache --------------------------------------------------------------------------------------


def test_every_figure_of_an_answer() -> None:
    found = fit(shape(), engine())
    kv = 2 * GIB - GIB - WEIGHTS
    blocks = kv // BLOCK
    assert found.to_json() == {
        "fits": True, "weights_bytes_per_gpu": WEIGHTS, "kv_bytes_per_token": TOKEN, "kv_cache_bytes": kv,
        "kv_cache_tokens": int(blocks / 10 * 160), "max_concurrency": round(blocks / 10, 2), "max_model_len": 160,
        "reserve_bytes": GIB, "headroom_bytes": kv - 11 * BLOCK, "basis": "exact", "measured": None,
        "predicted": {"reserve_bytes": [GIB] * 2, "kv_cache_bytes": [kv] * 2,
                      "kv_cache_tokens": [int(blocks / 10 * 160)] * 2},
    }  # fmt: skip
    assert found.max_concurrency == blocks / 10
    thirds = fit(shape(), engine(max_model_len=48, kv_cache_memory_bytes=11 * BLOCK))
    assert (thirds.max_concurrency, thirds.to_json()["max_concurrency"]) == (11 / 3, 3.67)
    assert fit(shape(known=False), engine()).basis == "estimated"
    assert fit(shape(), engine(max_model_len=161)).headroom_bytes == kv - 12 * BLOCK


@pytest.mark.parametrize(
    ("version", "changes", "expected"),
    [
        ("0.33.0", {}, int(100 / 10 * 160)),
        ("0.33.0", {"max_model_len": 150}, int(100 / 10 * 150)),
        ("0.12.0", {}, 100 * 16),
        ("0.12.0", {"dcp": 2}, 100 * 16 * 2),
        ("0.12.0", {"max_model_len": 150}, 100 * 16),
        ("0.9.0.1", {}, 100 * 16),
    ],
)
def test_tokens_that_the_log_names(version: str, changes: dict[str, Any], expected: int) -> None:
    given = engine(version, kv_cache_memory_bytes=100 * BLOCK + 1, **changes)
    assert fit(shape(), given).kv_cache_tokens == expected


def test_tokens_of_several_groups() -> None:
    mixed = shape(layers=(LAYER, Layer(LAYER.matrices, (Cache(2, 25, 25, window=32),))))
    for version, expected in (("0.12.0", 100 // 2 * 16), ("0.9.0.1", 50 * 16)):
        assert fit(mixed, engine(version, kv_cache_memory_bytes=100 * 16 * 200)).kv_cache_tokens == expected
    states = shape(layers=(LAYER, Layer(LAYER.matrices, (State(10, 2, 0, 0),))))
    for version, expected in (("0.12.0", 100 // 2 * 16), ("0.9.0.1", 100 * 16)):
        assert fit(states, engine(version, kv_cache_memory_bytes=100 * 16 * 200)).kv_cache_tokens == expected
    empty = shape(layers=(Layer(LAYER.matrices),))
    assert fit(empty, engine("0.12.0")).kv_cache_tokens == 0


@pytest.mark.parametrize(
    ("changes", "headroom"),
    [
        ({"kv_cache_memory_bytes": 11 * BLOCK}, 0),
        ({"kv_cache_memory_bytes": 11 * BLOCK - 1}, -1),
        ({"kv_cache_memory_bytes": 20 * BLOCK + 5}, 9 * BLOCK + 5),
        ({"num_gpu_blocks_override": 11}, 0),
        ({"num_gpu_blocks_override": 10}, -BLOCK),
        ({"num_gpu_blocks_override": 100, "kv_cache_memory_bytes": 12 * BLOCK}, BLOCK),
        # A cache of a told size beyond the memory; vLLM does not look.
        ({"kv_cache_memory_bytes": 3 * GIB - WEIGHTS}, 3 * GIB - WEIGHTS - 11 * BLOCK),
        ({"kv_cache_memory_bytes": 3 * GIB - WEIGHTS + 1}, -1),
        ({"kv_cache_memory_bytes": 5 * GIB}, -2 * GIB - WEIGHTS),
        ({"kv_cache_memory_bytes": 5 * GIB, "platform": "cpu"}, 5 * GIB - 11 * BLOCK),
        # Weights and what is set aside are too much already.
        ({"memory_bytes": 2 * GIB}, -WEIGHTS - 11 * BLOCK),
    ],
)
def test_what_is_left_beside_one_request(changes: dict[str, Any], headroom: int) -> None:
    found = fit(shape(), engine(**changes))
    assert found.headroom_bytes == headroom
    assert found.fits == (headroom >= 0)


def test_without_room_there_is_no_cache() -> None:
    found = fit(shape(), engine(memory_bytes=2 * GIB))
    assert (found.kv_cache_bytes, found.kv_cache_tokens, found.max_concurrency, found.fits) == (
        0,
        0,
        0.0,
        False,
    )
    assert fit(shape(), engine(num_gpu_blocks_override=30)).max_concurrency == 3.0


def test_the_fullest_stage_counts() -> None:
    found = fit(shape(other_bytes=10**6), engine(pp=2))
    first = 600 + EMBEDDING + 10**6
    left = 2 * GIB - first - found.reserve_bytes
    assert found.reserve_bytes == GIB + 3 * GIB // 2
    assert found.weights_bytes_per_gpu == first
    large = engine(pp=2, memory_bytes=8 * GIB)
    found = fit(shape(other_bytes=10**6), large)
    left = 4 * GIB - first - found.reserve_bytes
    assert found.kv_cache_bytes == left
    assert found.headroom_bytes == left - 11 * BLOCK // 2
    assert found.max_concurrency == left // (BLOCK // 2) / 10
    # A stage without a cache needs room for its weights.
    bare = shape(layers=(LAYER, Layer(LAYER.matrices)), other_bytes=0)
    assert fit(bare, replace(large, kv_cache_memory_bytes=11 * 16 * 200)).headroom_bytes == 0
    assert fit(bare, replace(large, kv_cache_memory_bytes=13 * 16 * 200)).headroom_bytes == 2 * 16 * 200
    assert fit(bare, replace(large, kv_cache_memory_bytes=13 * 16 * 200)).max_concurrency == 1.3


def test_a_model_without_a_cache() -> None:
    found = fit(shape(layers=(Layer(LAYER.matrices),) * 6), engine())
    assert (found.max_concurrency, found.kv_bytes_per_token, found.kv_cache_tokens) == (0.0, 0, 0)
    assert (found.fits, found.headroom_bytes) == (True, GIB - WEIGHTS)


@pytest.mark.parametrize(("files", "fits"), [(GIB - 1, True), (GIB, False), (GIB + 1, False)])
def test_when_only_the_size_is_known(files: int, fits: bool) -> None:
    found = fit(shape(missing=("hidden_size", "vocab_size"), checkpoint=CheckpointSize(files, 1)), engine())
    assert (found.fits, found.headroom_bytes, found.kv_cache_bytes) == (
        fits,
        GIB - files,
        max(0, GIB - files),
    )
    assert (found.weights_bytes_per_gpu, found.kv_bytes_per_token, found.kv_cache_tokens) == (files, 0, 0)
    assert (found.max_concurrency, found.max_model_len, found.reserve_bytes) == (0.0, 160, GIB)
    assert found.basis == "estimated"
    assert largest_max_model_len(shape(missing=("x",)), engine()) == 0
    assert largest_max_model_len(shape(), engine()) == 160
    assert found.notes[-1].startswith(
        "config.json does not have hidden_size, vocab_size: only the size of the weights"
    )


# ---- notes ------------------------------------------------------------------------------------------

COPIES, WHOLE = "KV heads is kept on", "keeps the whole latent KV cache"
UNLOADED, UNKNOWN = (
    "multi-token prediction layers are not loaded",
    "Not known here: the architecture New. Sizes are given as ranges",
)
GRAPHS, TYPE, RESERVE = (
    "In this release graphs need memory",
    "is counted with the size of the model's own type",
    "are reserved for",
)


@pytest.mark.parametrize(
    ("model", "version", "changes", "expected"),
    [
        ({}, "0.33.0", {}, {RESERVE}),
        ({}, "0.33.0", {"tp": 2}, {RESERVE}),
        ({}, "0.33.0", {"tp": 4}, {RESERVE, COPIES}),
        ({"kv_heads": 0}, "0.33.0", {"tp": 4}, {RESERVE}),
        ({"layers": ()}, "0.33.0", {"tp": 4}, {RESERVE}),
        ({"layers": (Layer((), (Cache(1, 25, 25, latent=True),)),)}, "0.33.0", {"tp": 4}, {RESERVE, WHOLE}),
        ({"layers": (Layer((), (Cache(1, 25, 25, latent=True),)),)}, "0.33.0", {}, {RESERVE}),
        ({"layers": (Layer((), (Cache(1, 25, 25, latent=True),)),)}, "0.33.0", {"tp": 4, "dcp": 2}, {RESERVE}),
        ({"unloaded": (LAYER,)}, "0.33.0", {}, {RESERVE, UNLOADED}),
        ({}, "0.33.0", {"kv_cache_dtype": "fp8"}, {RESERVE}),
        ({}, "0.33.0", {"kv_cache_dtype": "of-tomorrow"}, {RESERVE, TYPE}),
        ({"known": False, "unsure": "the architecture New"}, "0.33.0", {}, {RESERVE, UNKNOWN}),
        ({}, "0.33.0", {"kv_cache_memory_bytes": GIB}, set()),
        ({}, "0.33.0", {"platform": "cpu", "kv_cache_memory_bytes": GIB}, set()),
        # Before 0.26 graphs are in what is left to the GPU: here 2 GiB, or half of one.
        ({}, "0.25.1", {"enforce_eager": False}, {RESERVE}),
        ({}, "0.25.1", {"enforce_eager": False, "gpu_memory_utilization": 0.75}, {RESERVE}),
        ({}, "0.25.1", {"enforce_eager": False, "gpu_memory_utilization": 0.875}, {RESERVE, GRAPHS}),
        ({}, "0.26.0", {"enforce_eager": False, "gpu_memory_utilization": 0.875}, {RESERVE}),
        ({}, "0.25.1", {"enforce_eager": True, "gpu_memory_utilization": 0.875}, {RESERVE}),
        ({}, "0.25.1", {"enforce_eager": False, "gpu_memory_utilization": 0.875, "platform": "cpu",
                        "kv_cache_memory_bytes": GIB}, set()),
    ],
)  # fmt: skip
def test_notes(model: dict[str, Any], version: str, changes: dict[str, Any], expected: set[str]) -> None:
    notes = fit(shape(notes=("own",), **model), engine(version, **changes)).notes
    assert notes[0] == "own"
    assert len(notes) == len(expected) + 1
    assert {part for part in expected if any(part in note for note in notes)} == expected


def test_figures_in_notes() -> None:
    assert (
        "Each of the 2 KV heads is kept on 4 GPUs with a tensor parallel size of 8"
        in fit(shape(), engine(tp=8)).notes
    )
    late = engine("0.25.1", enforce_eager=False, gpu_memory_utilization=0.875)
    (graphs,) = (note for note in fit(shape(), late).notes if GRAPHS in note)
    assert graphs.endswith("which leaves 0.5 GiB")
    assert any("About 1.0 GiB per GPU (1.0 to 1.0)" in note for note in fit(shape(), engine()).notes)
    assert not any(UNKNOWN in note for note in fit(shape(known=False, missing=("x",)), engine()).notes)


# ---- remedies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "room", "expected"),
    [((8, 2, 1), 0, 1), ((8, 2), 0, 2), ((8, 4), 0, None), ((8,), 0, None), ((), 0, None)],
)
def test_the_smallest_size_of_those_that_may_be(
    choices: tuple[int, ...], room: int, expected: int | None
) -> None:
    assert smallest_tp(shape(), engine(memory_bytes=16 * GIB), choices) == expected  # it has two heads


def told(model: ModelShape, given: EngineConfig) -> list[str]:
    """The remedies by their first words."""
    return [
        text.split(" to ")[0].split(" quantized")[0].split(":")[0]
        for text in remedies(model, given, fit(model, given))
    ]


@pytest.mark.parametrize(("gib", "size"), [(10, 2), (20, 4), (40, 8)])
def test_more_gpus_are_a_remedy(gib: int, size: int) -> None:
    """Of sixteen GiB half may be used, of which 2.5 are set aside where there are several GPUs."""
    heavy = shape(
        layers=(Layer((Matrix("linear", gib << 20, 512, OUT),), LAYER.caches),), heads=8, kv_heads=8
    )
    given = engine(memory_bytes=16 * GIB)
    found = remedies(heavy, given, fit(heavy, given))
    assert f"Set tensor_parallel_size to {size}, the smallest that fits" in found
    assert smallest_tp(heavy, given) == size
    assert not any(
        "tensor_parallel_size" in text for text in remedies(heavy, replace(given, tp=8), fit(heavy, given))
    )


LENGTH, EIGHT, TENSOR = "Set max_model_len", "Set kv_cache_dtype", "Set tensor_parallel_size"
FP8, LARGER = "Use a checkpoint", "Use a larger GPU or partition"


@pytest.mark.parametrize(
    ("blocks", "changes", "expected"),
    [
        (65, {}, []),
        (64, {}, [LENGTH, EIGHT, TENSOR, LARGER]),
        (33, {}, [LENGTH, EIGHT, TENSOR, LARGER]),  # 512 tokens and the null block
        (32, {}, [LARGER]),  # so few are not worth it, and half of all is more
        (33, {"kv_cache_dtype": "fp8", "max_model_len": 2048}, [LENGTH, TENSOR, LARGER]),
        (64, {"kv_cache_dtype": "bfloat16"}, [LENGTH, TENSOR, LARGER]),
        (65, {"tp": 2, "max_model_len": 2048}, [LENGTH, EIGHT, LARGER]),
    ],
)
def test_which_remedies(blocks: int, changes: dict[str, Any], expected: list[str]) -> None:
    model = shape(context=1024)
    given = engine(kv_cache_memory_bytes=blocks * BLOCK, **changes)
    if "tp" in changes:  # two ranks share the heads
        given = replace(given, kv_cache_memory_bytes=blocks * BLOCK // 2)
    model = replace(model, context=max(1024, changes.get("max_model_len", 0)))
    assert told(model, given) == expected


def test_figures_in_remedies() -> None:
    model = shape(context=1024)
    given = engine(kv_cache_memory_bytes=40 * BLOCK)
    assert remedies(model, given, fit(model, given))[:2] == (
        f"Set max_model_len to {39 * 16} or less; the model's own is 1024",
        "Set kv_cache_dtype to fp8, which halves the KV cache and keeps max_model_len 1024",
    )
    heavy = shape(other_bytes=GIB)
    given = engine()
    assert remedies(heavy, given, fit(heavy, given))[-1] == (
        "Use a larger GPU or partition: the instance needs 2.0 GiB (2.0 GiB before the KV cache), "
        "which is 0.0 GiB more than it may use"
    )
    linear = Layer(
        (Matrix("linear", 1 << 15, 1 << 14, quantizable=True),), LAYER.caches
    )  # 1 GiB, half of it in FP8
    dense = shape(layers=(linear,) * 2)
    given = engine(memory_bytes=5 * GIB)
    found = remedies(dense, given, fit(dense, given))
    assert "Use a checkpoint quantized to FP8: its weights are about 1.0 GiB per GPU" in found
    assert "needs 3.0 GiB (3.0 GiB before the KV cache), which is 0.5 GiB more than it may use" in found[-1]
    for changes in ({"quantization": "fp8", "memory_bytes": 4 * GIB - 8}, {"memory_bytes": 4 * GIB - 8}):
        given = engine(**changes)
        assert not fit(dense, given).fits
        assert FP8 not in told(dense, given)
