# SPDX-License-Identifier: Apache-2.0
"""Shares of the HBM and FLOP roofline: published results, worked out by hand, and where they are not known."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import Redactor
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import (
    load_baselines,
    load_gpus,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.decode import decode_step
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary import roofline as module
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.roofline import (
    kv_bytes,
    roofline,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.summary import (
    build_summary,
    collect,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.bench_samples import GPU_MODELS, entry, instance_plan, variables
from tests.worlds.fit_world import engine, model

FP8 = {"quantization_config": {"quant_method": "fp8", "ignored_layers": ["lm_head"]}}


def made(name: str, changes: Any = None, gpu: str = "MI300X", mode: str = "SPX", **options: Any) -> Any:
    """INSTANCE.decode_step of a published model, as it comes back from a node."""
    product = load_gpus().by_name(gpu)
    assert product
    step = decode_step(model(name, **(changes or {})), engine(**options), product.peak_of(mode))
    assert step
    return json.loads(json.dumps(step.to_json()))


def batch(size: int, tokens_in: int, tokens_out: int, seconds: float, **more: Any) -> dict[str, Any]:
    """A run in which `size` requests start at once and decode for `seconds`."""
    return {
        "kind": "serve",
        "live": False,
        "failed": 0,
        "completed": size,
        "duration_s": seconds,
        "request_throughput": size / seconds,
        "total_input_tokens": size * tokens_in,
        "total_output_tokens": size * tokens_out,
        "median_tpot_ms": 1000 * seconds / tokens_out,
        "mean_ttft_ms": 1.0,
        "mean_e2el_ms": 1000 * seconds + 1.0,
        "prefix_hit_rate": None,
        "acceptance_length": None,
        "serve_command": "vllm serve m",
        "command": "vllm bench serve --dataset-name random --random-input-len 128",
        **more,
    }


SIMPLE = {
    "gpus": 2,
    "peak": {"hbm_bytes_per_second": 1000.0, "flops": {"bf16": 500.0, "fp8": 1000.0}},
    "parameters": {"bf16": 10, "fp8": 20},
    "sampled_parameters": {"bf16": 5},
    "reads": {
        "data_parallel_ranks": 1, "weights_bytes": 60, "experts_bytes": 0, "experts": 0, "experts_per_token": 1,
        "kv": [{"bytes_per_token": 1, "window": 0, "chunk": 0}], "state_bytes": 4,
    },
}  # fmt: skip


def test_a_step_by_hand() -> None:
    """2 requests of 8 + 4 tokens, 2 s for each token: 8 s.

    In a step: 60 of weights, and for each sequence 4 of state and 10 of KV cache: 88 bytes in 2 s of 1000 bytes/s.
    Products: 24 tokens of 2 x 10 at 500/s and 2 x 20 at 1000/s, 8 sampled ones of 2 x 5 at 500/s: 2.08 of 8 s x 2 GPUs.
    """
    found = roofline(batch(2, 8, 4, 8.0), SIMPLE)
    assert found == {
        "hbm_share": pytest.approx(88 / 2000),
        "flop_share": pytest.approx((24 * 0.08 + 8 * 0.02) / 16),
        "roofline_note": None,
    }


def published(name: str, tokens_in: int, size: int) -> float:
    """The seconds of a batch on 8 MI300X with vLLM 0.9.1, as AMD published them."""
    (found,) = (
        item["metrics"]["latency_seconds"]
        for data in load_baselines()
        for item in data["results"]
        if item["setup"] == "mi300x-0.9.1-2025-07-18" and item["kind"] == "latency" and item["model"] == name
        and (item["input_tokens"], item["output_tokens"], item["batch_size"]) == (tokens_in, 2048, size)
    )  # fmt: skip
    return float(found)


# By hand, 405B at batch 1: 48.453 s / 2048 = 23.66 ms, in which HBM delivers 125.4 GB. A GPU reads 401.6e9 / 8 bytes of
# FP8 and 2.1e9 x 2 / 8 of the output layer, 50.7 GB: 40 %. At batch 128 the KV cache of 1152 tokens adds 128 x 1152 x
# 32,256 bytes = 4.8 GB in 57.1 ms. FLOPs: 2 x 401.6e9 x 278,528 tokens in 117 s of 8 x 2614.9 TFLOPS are 9.1 %.
@pytest.mark.parametrize(
    ("size", "params", "tokens_in", "hbm", "flop"),
    [
        ("70B", "meta-llama/Llama-3.1-70B", (128, 1), 0.198, 0.00085),
        ("70B", "meta-llama/Llama-3.1-70B", (2048, 128), 0.1245, 0.0665),
        ("405B", "meta-llama/Llama-3.1-405B", (128, 1), 0.405, 0.0017),
        ("405B", "meta-llama/Llama-3.1-405B", (128, 128), 0.183, 0.092),
        ("405B", "meta-llama/Llama-3.1-405B", (2048, 128), 0.195, 0.161),
    ],
)
def test_published_results_of_mi300x(
    size: str, params: str, tokens_in: tuple[int, int], hbm: float, flop: float
) -> None:
    length, count = tokens_in
    seconds = published(f"amd/Llama-3.1-{size}-Instruct-FP8-KV", length, count)
    found = roofline(batch(count, length, 2048, seconds), made(params, FP8, tp=8, kv_cache_dtype="fp8"))
    assert found["hbm_share"] == pytest.approx(hbm, rel=0.01)
    assert found["flop_share"] == pytest.approx(flop, rel=0.05)


@pytest.mark.parametrize(
    ("name", "options", "size", "fraction"),
    [
        # 1 token touches 2 of 8 experts, 2 touch 8 x (1 - 0.75^2) = 3.5, 64 nearly all.
        ("mistralai/Mixtral-8x7B-v0.1", {"tp": 8}, 1, 2 / 8),
        ("mistralai/Mixtral-8x7B-v0.1", {"tp": 8}, 2, 3.5 / 8),
        ("mistralai/Mixtral-8x7B-v0.1", {}, 64, 1.0),
        ("deepseek-ai/DeepSeek-V3", {"tp": 8}, 1, 8 / 256),
        ("deepseek-ai/DeepSeek-V3", {"tp": 8}, 64, 1 - (248 / 256) ** 64),
        ("deepseek-ai/DeepSeek-V3", {"dp": 8, "expert_parallel": True}, 64, 1 - (248 / 256) ** 64),
    ],
)
def test_experts_that_a_batch_touches(name: str, options: Any, size: int, fraction: float) -> None:
    step = made(name, **options)
    reads = step["reads"]
    found = roofline(batch(size, 1000, 1000, 20.0), step)
    of_rank = size / options.get("dp", 1)
    expected = (
        reads["weights_bytes"]
        + fraction * reads["experts_bytes"]
        + of_rank * 1500 * reads["kv"][0]["bytes_per_token"]
    )
    assert found["hbm_share"] == pytest.approx(expected / (0.02 * 5.3e12), rel=1e-6)
    assert found["hbm_share"] < 1


def test_a_partition_has_its_part_of_both() -> None:
    run = batch(4, 1000, 1000, 100.0)
    whole, part = (roofline(run, made("meta-llama/Llama-3.1-8B", mode=mode)) for mode in ("SPX", "CPX"))
    for key in module.KEYS:
        assert part[key] == pytest.approx(8 * whole[key])
    assert part["hbm_share"] < 1


def test_mxfp4_is_converted_where_there_are_no_matrix_cores_for_it() -> None:
    step = {**SIMPLE, "parameters": {"mxfp4": 10}, "sampled_parameters": {}}
    native = {**step, "peak": {**SIMPLE["peak"], "flops": {"bf16": 500.0, "mxfp4": 2000.0}}}  # type: ignore[dict-item]
    run = batch(2, 8, 4, 8.0)
    assert roofline(run, native)["flop_share"] == pytest.approx(roofline(run, step)["flop_share"] / 4)


@pytest.mark.parametrize(
    ("kind", "context", "tokens"),
    [
        ({"window": 0, "chunk": 0}, 100.0, 100.0),
        ({"window": 64, "chunk": 0}, 100.0, 64.0),
        ({"window": 128, "chunk": 0}, 100.0, 100.0),
        ({"window": 0, "chunk": 64}, 100.0, 32.0),
        ({"window": 0, "chunk": 128}, 100.0, 100.0),
    ],
)
def test_tokens_of_the_cache_that_are_read(kind: Any, context: float, tokens: float) -> None:
    assert kv_bytes([{"bytes_per_token": 3, **kind}] * 2, context) == 6 * tokens


def test_speculation_reads_the_same_for_more_tokens() -> None:
    step = made("mistralai/Mixtral-8x7B-v0.1", tp=8)
    given = {"method": "ngram", "num_speculative_tokens": 3}
    run = batch(1, 1000, 1000, 20.0)
    command = f"vllm serve m --speculative-config '{json.dumps(given)}'"
    drafted = {**run, "serve_command": command, "acceptance_length": 2.0}
    # A step takes two TPOT, and its four tokens touch 8 x (1 - 0.75^4) experts.
    reads = step["reads"]
    size = (
        reads["weights_bytes"]
        + (1 - 0.75**4) * reads["experts_bytes"]
        + 1500 * reads["kv"][0]["bytes_per_token"]
    )
    found = roofline(drafted, step)
    assert found["hbm_share"] == pytest.approx(size / (0.04 * 5.3e12))
    assert found["flop_share"] == roofline(run, step)["flop_share"]
    older = "vllm serve m --speculative-model d --num-speculative-tokens 3"
    assert roofline({**drafted, "serve_command": older}, step) == found


HBM, FLOP = module.KEYS


@pytest.mark.parametrize(
    ("run", "step", "missing", "note"),
    [
        ({}, None, (HBM, FLOP), module.NO_STEP),
        ({}, {"peak": None}, (HBM, FLOP), module.NO_PEAK),
        ({"live": True}, {}, (HBM, FLOP), module.LIVE),
        ({"failed": 1}, {}, (HBM, FLOP), module.FAILED),
        ({"failed": None}, {}, (), None),
        ({}, {"reads": None}, (HBM,), module.PIPELINE),
        ({"median_tpot_ms": None}, {}, (HBM,), module.NO_LATENCY),
        ({"mean_e2el_ms": None}, {}, (HBM,), module.NO_LATENCY),
        ({"total_output_tokens": 0}, {}, (HBM, FLOP), module.NO_TOKENS),
        ({"duration_s": None}, {}, (FLOP,), module.NO_TOKENS),
        ({"serve_command": "vllm serve m --speculative-config '{}'"}, {}, (HBM,), module.DRAFTS),
        ({"serve_command": "vllm serve m --speculative-config x", "acceptance_length": 2}, {}, (HBM,), module.DRAFTS),
        ({"serve_command": "vllm serve m --num-speculative-tokens 3"}, {}, (HBM,), module.DRAFTS),
        ({"command": "vllm bench serve --dataset-name sharegpt"}, {}, (FLOP,), module.PREFIX),
        ({"command": "vllm bench serve --dataset-name random --random-prefix-len 64"}, {}, (FLOP,), module.PREFIX),
        ({"command": "vllm bench serve --dataset-name sharegpt", "prefix_hit_rate": 0.5}, {}, (), None),
        ({"command": None, "serve_command": "vllm serve m --no-enable-prefix-caching"}, {}, (), None),
        ({}, {"parameters": {"int8": 1}}, (FLOP,), "the catalogue has no peak FLOPS of the GPU for int8"),
        ({"median_tpot_ms": None, "duration_s": None}, {}, (HBM, FLOP), f"{module.NO_LATENCY}; {module.NO_TOKENS}"),
        ({"kind": "latency"}, {}, (HBM, FLOP), None),
    ],
)  # fmt: skip
def test_what_is_not_known_is_null_and_says_why(run: Any, step: Any, missing: Any, note: str | None) -> None:
    found = roofline(batch(2, 8, 4, 8.0, **run), None if step is None else {**SIMPLE, **step})
    assert {key for key in module.KEYS if found[key] is None} == set(missing)
    assert found["roofline_note"] == note


def test_prompt_tokens_of_the_prefix_cache_are_not_computed() -> None:
    run = batch(2, 8, 4, 8.0)
    assert roofline({**run, "prefix_hit_rate": 0.5}, SIMPLE)["flop_share"] == pytest.approx(
        (16 * 0.08 + 8 * 0.02) / 16
    )
    assert (
        roofline({**run, "prefix_hit_rate": 0.5}, SIMPLE)["hbm_share"] == roofline(run, SIMPLE)["hbm_share"]
    )


def test_requests_that_wait_or_pause_do_not_decode() -> None:
    run = batch(2, 8, 4, 8.0)
    waited = {**run, "mean_ttft_ms": 5000.0, "mean_e2el_ms": 13000.0}
    assert roofline(waited, SIMPLE)[HBM] == roofline(run, SIMPLE)[HBM]
    # With one request in ten minutes, a step still decodes a whole sequence.
    rare = roofline({**run, "request_throughput": 1 / 600}, SIMPLE)
    assert rare[HBM] == pytest.approx((60 + 4 + 10) / 2000)


# ---- properties -------------------------------------------------------------------------------------

RUNS = st.builds(
    batch, st.integers(1, 512), st.integers(1, 10_000), st.integers(2, 4_000), st.floats(1.0, 1000.0)
)
STEPS = st.sampled_from([
    made("meta-llama/Llama-3.1-70B", FP8, tp=8),
    made("deepseek-ai/DeepSeek-V3", tp=8),
    made("openai/gpt-oss-120b", gpu="MI355X"),
    made("Qwen/Qwen3-Next-80B-A3B", tp=2),
])  # fmt: skip
TIMES = ("median_tpot_ms", "mean_ttft_ms", "mean_e2el_ms", "duration_s")


@given(RUNS, STEPS, st.floats(0.01, 100.0))
def test_units_of_time_do_not_matter(run: dict[str, Any], step: Any, unit: float) -> None:
    other = {**run, **{key: run[key] * unit for key in TIMES}}
    other["request_throughput"] = run["request_throughput"] / unit
    peak = step["peak"]
    slower = {
        "hbm_bytes_per_second": peak["hbm_bytes_per_second"] / unit,
        "flops": {name: value / unit for name, value in peak["flops"].items()},
    }
    before, after = roofline(run, step), roofline(other, {**step, "peak": slower})
    for key in module.KEYS:
        assert after[key] == pytest.approx(before[key], rel=1e-6)


@given(RUNS, STEPS, st.floats(1.01, 10.0))
def test_slower_steps_have_smaller_shares(run: dict[str, Any], step: Any, factor: float) -> None:
    slow = {**run, "median_tpot_ms": run["median_tpot_ms"] * factor, "duration_s": run["duration_s"] * factor}
    before, after = roofline(run, step), roofline(slow, step)
    for key in module.KEYS:
        assert after[key] == pytest.approx(before[key] / factor)
        assert before[key] > 0


@given(RUNS, STEPS)
def test_more_sequences_and_longer_ones_read_more(run: dict[str, Any], step: Any) -> None:
    share = roofline(run, step)[HBM]
    assert roofline({**run, "request_throughput": run["request_throughput"] * 2}, step)[HBM] >= share
    assert roofline({**run, "total_input_tokens": run["total_input_tokens"] * 2}, step)[HBM] >= share
    reads = step["reads"]
    floor = reads["weights_bytes"] + reads["experts_bytes"] * reads["experts_per_token"] / max(
        1, reads["experts"]
    )
    available = run["median_tpot_ms"] / 1000 * step["peak"]["hbm_bytes_per_second"]
    assert share * available >= floor * (1 - 1e-9)


# ---- in a summary -----------------------------------------------------------------------------------


def test_rows_and_cells_have_the_shares() -> None:
    step = made("meta-llama/Llama-3.1-70B", tp=8)
    gpus = tuple(range(8))
    own = entry("n1", gpus=gpus, instance_plan=instance_plan("llama", 0, list(gpus), decode_step=step))
    own["runs"] *= 3
    own["runs"][1] = {
        **own["runs"][1],
        "result": {**own["runs"][1]["result"], "spec_decode_acceptance_length": 1.5},
    }
    measured = collect(["n1"], {"n1": variables("n1", [own, entry("n1", index=1)])}, Redactor(), GPU_MODELS)
    rows = build_summary("r", "2026-01-31T10:18:41Z", measured)["benchmarks"]
    assert 0.1 < rows[0][HBM] < 1
    assert 0.001 < rows[0][FLOP] < 1
    assert rows[0]["roofline_note"] is None
    assert rows[0]["acceptance_length"] == 1.5
    assert [rows[1][key] for key in (*module.KEYS, "roofline_note")] == [None, None, module.NO_STEP]
