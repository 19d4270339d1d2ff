# SPDX-License-Identifier: Apache-2.0
"""What a start's log tells, in the words of each release, and how the plan uses it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.estimates import MeasuredStart
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.fit import Fit, fit
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.start_log import (
    StartLog,
    read_start_log,
)

from tests.worlds.fit_world import engine, model

GIB = 1 << 30
LLAMA_8B = "meta-llama/Llama-3.1-8B"


def gib(number: float) -> int:
    return int(number * GIB)


V0 = (
    "INFO worker.py:267] model weights take 13.95GiB; non_torch_memory takes 0.25GiB; PyTorch activation peak memory "
    "takes 0.19GiB; the rest of the memory reserved for KV Cache is 8.69GiB."
)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # V0 on ROCm prints blocks; 0.7.2 weights in GB, which are GiB.
        (
            ["Loading model weights took 13.9476 GB", V0, "# rocm blocks: 6495, # CPU blocks: 2340",
             "Maximum concurrency for 40960 tokens per request: 2.54x"],
            StartLog(gib(8.69), 6495 * 16, 40960, gib(13.9476)),
        ),
        (
            ["Model loading took 1.3379 GiB and 1.57 seconds", "# GPU blocks: 100, # CPU blocks: 0"],
            StartLog(None, 1600, None, gib(1.3379)),
        ),
        # 0.9.1 of AMD, two workers: the smaller cache counts.
        (
            ["(RayWorkerWrapper pid=1) Model loading took 13.9902 GiB and 5.94 seconds",
             "(RayWorkerWrapper pid=1) Available KV cache memory: 151.25 GiB", "Available KV cache memory: 151.50 GiB",
             "GPU KV cache size: 1,652,080 tokens", "GPU KV cache size: 1,654,784 tokens",
             "Maximum concurrency for 4,096 tokens per request: 403.34x"],
            StartLog(gib(151.25), 1652080, 4096, gib(13.9902)),
        ),
        # 0.28.0 has one line; 0.30.0 names the device; a CPU has no measured memory.
        (
            ["Model loading took 14.99 GiB memory and 3.1 seconds", "Available KV cache memory: 145.8 GiB",
             "GPU KV cache size: 1,194,384 tokens, Maximum concurrency for 8,192 tokens per request: 145.80x"],
            StartLog(gib(145.8), 1194384, 8192, gib(14.99)),
        ),
        (
            ["CPU KV cache size: 20,063 tokens, Maximum concurrency for 2,048 tokens per request: 9.80x"],
            StartLog(None, 20063, 2048, None),
        ),
        # A container whose engine started twice: the later start counts.
        (
            ["Model loading took 15.0 GiB memory", "Available KV cache memory: 100.0 GiB",
             "GPU KV cache size: 800,000 tokens", "Model loading took 15.0 GiB memory",
             "Available KV cache memory: 120.0 GiB", "GPU KV cache size: 960,000 tokens"],
            StartLog(gib(120.0), 960000, None, gib(15.0)),
        ),
        (["GPU KV cache usage: 10.5%", "Model loading took 1 GiB"], StartLog(None, None, None, GIB)),
        ([], StartLog()),
    ],
)  # fmt: skip
def test_lines_of_the_releases(lines: list[str], expected: StartLog) -> None:
    found = read_start_log(lines)
    assert found == expected
    assert bool(found) == (expected.tokens is not None)


def test_blocks_are_of_the_engine() -> None:
    assert read_start_log(["# rocm blocks: 10, # CPU blocks: 0"], block_size=32).tokens == 320


# --- the plan ---------------------------------------------------------------------------------------------------------

GIVEN = engine(max_num_seqs=1024, max_model_len=8192)
LOG = StartLog(gib(145.8), 1194384, 8192, gib(14.99))


def measured(log: StartLog) -> MeasuredStart:
    return MeasuredStart(log, "n1", "2026-06-04T10:00:00Z")


def with_log(log: StartLog, length: int = 8192) -> Fit:
    return fit(model(LLAMA_8B), replace(GIVEN, max_model_len=length), measured=measured(log))


def test_what_was_measured_replaces_the_estimates() -> None:
    found = with_log(LOG)
    assert (found.kv_cache_bytes, found.kv_cache_tokens) == (gib(145.8), 1194384)
    assert found.max_concurrency == pytest.approx(145.80, abs=0.01)
    assert found.weights_bytes_per_gpu == gib(14.99)
    assert found.reserve_bytes == GIVEN.requested_bytes - gib(14.99) - gib(145.8)
    assert found.measured == measured(LOG)
    assert not any("estimate" in note for note in found.notes)
    assert found.to_json()["measured"] == {
        "host": "n1", "at": "2026-06-04T10:00:00Z", "kv_cache_bytes": gib(145.8), "kv_cache_tokens": 1194384,
        "max_model_len": 8192, "weights_bytes_per_gpu": gib(14.99),
    }  # fmt: skip
    predicted = fit(model(LLAMA_8B), GIVEN)
    assert (found.predicted, predicted.measured) == (predicted.predicted, None)


def test_another_length_divides_the_same_cache() -> None:
    found = with_log(LOG, 131072)
    assert found.kv_cache_bytes == gib(145.8)
    assert found.kv_cache_tokens == pytest.approx(1194384, rel=0.001)
    assert found.max_concurrency == pytest.approx(1194384 / 131072, rel=0.001)
    # Of an estimated architecture the tokens of a byte are off as they were at the start.
    twice = replace(LOG, tokens=2 * 1194384)
    assert with_log(twice, 131072).kv_cache_tokens == pytest.approx(2 * found.kv_cache_tokens, rel=0.001)
    assert with_log(twice).kv_cache_tokens == 2 * 1194384


def test_a_length_that_does_not_fit_the_measured_cache() -> None:
    small = StartLog(GIB, 8192, 8192, gib(14.99))
    assert with_log(small).fits
    assert with_log(small, 4096).fits
    assert not with_log(small, 16384).fits


def test_a_release_that_prints_tokens_only() -> None:
    found = with_log(StartLog(None, 1194384, 8192))
    assert found.kv_cache_bytes == 1194384 * 131072
    assert found.kv_cache_tokens == 1194384


def test_a_cpu_measures_its_cache_too() -> None:
    cpu = engine(platform="cpu", kv_cache_memory_bytes=4 * GIB, max_model_len=8192)
    found = fit(model(LLAMA_8B), cpu, measured=measured(StartLog(None, 32768, 8192)))
    assert (found.kv_cache_tokens, found.reserve_bytes) == (32768, 0)
    assert found.measured
