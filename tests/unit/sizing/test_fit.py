# SPDX-License-Identifier: Apache-2.0
"""Does a model fit: known models on real GPUs, sizes of files, parallel sizes, releases, refusals and remedies."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.recipes import statement
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.checkpoint import weight_files
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.amd_formula import (
    simple_formula,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.fit import (
    CATALOGUE,
    fit,
    largest_max_model_len,
    refusals,
    remedies,
    smallest_tp,
    stages,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.some import some
from tests.oracles.fit_cases import MODELS, case, planned
from tests.worlds.catalogue import knowledge, kv_rules, model_shape
from tests.worlds.fit_world import CONFIGS, MI300X, engine, model

GIB = 1 << 30
CPX = MI300X // 8

LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B"
LLAMA_405B = "meta-llama/Llama-3.1-405B"
LLAMA2_7B, LLAMA2_13B = "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-13b-hf"
MIXTRAL, DEEPSEEK = "mistralai/Mixtral-8x7B-v0.1", "deepseek-ai/DeepSeek-V3"
QWEN_MOE, GPT_OSS = "Qwen/Qwen3-235B-A22B-FP8", "openai/gpt-oss-120b"
GEMMA = "google/gemma-3-27b-it (language model)"


# --- known models on real GPUs ------------------------------------------------------------------------------------


def test_the_guides_two_examples() -> None:
    """Llama-2-7B fits a CPX partition of 24 GB, 13B does not; the guide's formula says the same of both."""
    seven, thirteen = model(LLAMA2_7B), model(LLAMA2_13B)
    partition = engine(memory_bytes=CPX)
    simple = simple_formula(seven, partition, 1, 4096)
    assert (simple.kv_bytes_per_token, simple.kv_cache_bytes) == (524288, 2 * GIB)
    assert simple.fits
    assert simple_formula(thirteen, partition, 1, 4096).kv_bytes_per_token == 819200
    assert not simple_formula(thirteen, partition, 1, 4096).fits
    found = fit(seven, partition)
    assert found.fits
    assert found.max_concurrency > 2
    assert not fit(thirteen, partition).fits
    assert smallest_tp(thirteen, partition) == 2


def test_the_simple_formula_knows_no_grouped_heads() -> None:
    found, simple = fit(model(LLAMA_8B), engine()), simple_formula(model(LLAMA_8B), engine(), 1, 131072)
    assert simple.kv_bytes_per_token == 4 * found.kv_bytes_per_token
    latent = simple_formula(model(DEEPSEEK), engine(tp=8), 1, 4096)
    assert latent.kv_bytes_per_token > 20 * fit(model(DEEPSEEK), engine(tp=8)).kv_bytes_per_token


@pytest.mark.parametrize(
    ("name", "changes", "smallest"),
    [
        (LLAMA_8B, {}, 1),
        (LLAMA_70B, {"max_model_len": 8192}, 1),  # amd-vllm-v1-guide: 70B fits a single MI300X
        (LLAMA_70B, {}, 2),
        (LLAMA_405B, {"max_model_len": 8192}, 8),  # and 405B a host of eight
        (MIXTRAL, {}, 1),
        (DEEPSEEK, {}, 4),  # with 1 GiB to spare, of an estimate that may be 7 GiB off
        (DEEPSEEK, {"max_num_seqs": 1024, "max_num_batched_tokens": 16384}, 8),
        (QWEN_MOE, {}, 2),
        (GPT_OSS, {}, 1),
        (GEMMA, {}, 1),
        (LLAMA_8B, {"memory_bytes": CPX, "max_model_len": 8192}, 1),
        (LLAMA_70B, {"memory_bytes": CPX, "max_model_len": 8192}, 8),
        (QWEN_MOE, {"memory_bytes": CPX}, None),
    ],
)
def test_smallest_tensor_parallel_size(name: str, changes: dict[str, Any], smallest: int | None) -> None:
    assert smallest_tp(model(name), engine(**changes)) == smallest


def test_deepseek_on_a_host_of_eight() -> None:
    """671 billion parameters of one byte over eight GPUs, and a latent KV cache that each keeps whole."""
    found = fit(model(DEEPSEEK), engine(tp=8))
    assert found.fits
    assert 78 * GIB < found.weights_bytes_per_gpu < 82 * GIB
    assert found.kv_bytes_per_token == 61 * 576 * 2
    assert fit(model(DEEPSEEK), engine(tp=4)).kv_bytes_per_token == found.kv_bytes_per_token
    assert any("latent" in note for note in found.notes)


def test_gpt_oss_is_padded_on_rocm_only() -> None:
    """vLLM rounds 2880 up to 3072 in both dimensions of an expert."""
    shape = model(GPT_OSS)
    padded = fit(shape, engine()).weights_bytes_per_gpu
    plain = fit(shape, engine(platform="cpu", kv_cache_memory_bytes=GIB)).weights_bytes_per_gpu
    assert plain == pytest.approx(65248815744, rel=1e-3)
    assert 1.11 < padded / plain < 1.14
    assert refusals(shape, engine(tp=8)) == ()


# --- what the files say ---------------------------------------------------------------------------------------------


def test_other_copies_of_the_weights_do_not_count() -> None:
    files = [
        ("model-00001-of-00002.safetensors", 10),
        ("model-00002-of-00002.safetensors", 5),
        ("consolidated.safetensors", 15),
        ("original/consolidated.00.pth", 15),
        ("metal/model.bin", 15),
        ("adapter_model.safetensors", 1),
        ("pytorch_model.bin", 15),
        ("config.json", 1),
    ]
    assert sum(size for _, size in weight_files(files)) == 15
    assert weight_files([("consolidated.safetensors", 7), ("params.json", 1)]) == (
        ("consolidated.safetensors", 7),
    )
    assert weight_files([("pytorch_model.bin", 7), ("training_args.bin", 1)]) == (("pytorch_model.bin", 7),)
    assert weight_files([("model.gguf", 7)]) == ()


def test_layers_that_are_stored_and_not_loaded() -> None:
    """DeepSeek's checkpoint has a layer for multi-token prediction, which does not count as weights."""
    with_files = model_shape(CONFIGS[DEEPSEEK], [("model.safetensors", 688_586_727_753)])
    assert with_files.factor == 1
    assert (
        fit(with_files, engine(tp=8)).weights_bytes_per_gpu
        == fit(model(DEEPSEEK), engine(tp=8)).weights_bytes_per_gpu
    )
    without = model_shape(CONFIGS[DEEPSEEK], [("model.safetensors", 673_150_000_000)])
    assert without.factor == 1


def test_what_is_beyond_the_language_model_is_kept_whole() -> None:
    """Gemma 3's vision tower: 27,432,406,640 parameters in all."""
    shape = model_shape(CONFIGS[GEMMA], index_total=2 * 27_432_406_640)
    assert shape.known
    assert shape.other_bytes == 2 * (27_432_406_640 - 27_009_346_304)
    one, four = (fit(shape, engine(tp=tp)).weights_bytes_per_gpu for tp in (1, 4))
    assert one == pytest.approx(2 * 27_432_406_640, rel=1e-3)
    assert four > one / 4 + shape.other_bytes / 2


def test_files_that_disagree_scale_the_weights_and_say_so() -> None:
    shape = model_shape(CONFIGS[LLAMA_8B], [("model.safetensors", 5_000_000_000)])
    found = fit(shape, engine())
    assert found.basis == "estimated"
    assert found.weights_bytes_per_gpu == pytest.approx(5_000_000_000, rel=0.01)
    assert "-68.9 %" in found.notes[0]


def test_a_checkpoint_in_float32_is_loaded_in_16_bit() -> None:
    shape = model_shape(CONFIGS[LLAMA_8B], [("model.safetensors", 32_121_044_992)])
    assert fit(shape, engine()).weights_bytes_per_gpu == pytest.approx(16_060_522_496, rel=0.001)
    assert fit(shape, engine(dtype="float32")).weights_bytes_per_gpu == pytest.approx(
        32_121_044_992, rel=0.001
    )


def test_an_unknown_architecture_is_estimated() -> None:
    config = {**CONFIGS[LLAMA_8B], "model_type": "llama-of-tomorrow"}
    found = fit(model_shape(config, [("model.safetensors", 16_060_522_496)]), engine())
    assert found.basis == "estimated"
    assert found.fits
    assert found.kv_cache_tokens == fit(model(LLAMA_8B), engine()).kv_cache_tokens


def test_an_unknown_quantization_is_sized_by_its_files() -> None:
    shape = model_shape(
        {**CONFIGS[LLAMA_8B], "quantization_config": {"quant_method": "of-tomorrow"}},
        [("a.safetensors", 6 * GIB)],
    )
    found = fit(shape, engine())
    assert found.basis == "estimated"
    assert found.weights_bytes_per_gpu == pytest.approx(6 * GIB, rel=0.01)


def test_a_config_without_numbers_says_so() -> None:
    shape = model_shape({"model_type": "mystery"}, [("model.safetensors", 30 * GIB)])
    assert set(shape.missing) == {"hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"}
    found = fit(shape, engine(tp=2))
    assert found.fits
    assert (found.weights_bytes_per_gpu, found.basis, found.kv_cache_tokens) == (15 * GIB, "estimated", 0)
    assert "hidden_size" in found.notes[-1]
    assert not fit(shape, engine(memory_bytes=CPX)).fits
    assert refusals(shape, engine(tp=3)) == ()
    assert simple_formula(shape, engine(), 1, 4096).fits is None
    assert remedies(shape, engine(memory_bytes=CPX), fit(shape, engine(memory_bytes=CPX)))


# --- quantization ---------------------------------------------------------------------------------------------------


def test_quantized_checkpoints_leave_some_modules_as_they_are() -> None:
    """FP8 of Llama 405B: attention, and the first and last feed-forward blocks, stay in 16 bit."""
    layers = 126
    keep = [f"model.layers.{index}.self_attn.{name}_proj" for index in range(layers) for name in "qkvo"]
    keep += [f"model.layers.{index}.mlp.{name}_proj" for index in (0, 125) for name in ("gate", "up", "down")]
    config = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": [*keep, "lm_head"]}
    shape = model(LLAMA_405B, quantization_config=config)
    blocks = 3 * 16384 * 53248
    saved = (
        fit(model(LLAMA_405B), engine()).weights_bytes_per_gpu - fit(shape, engine()).weights_bytes_per_gpu
    )
    assert saved == pytest.approx((layers - 2) * blocks, rel=1e-3)


@pytest.mark.parametrize(
    "ignore",
    [
        ["re:.*self_attn.*", "lm_head"],
        ["model.layers.*.self_attn*"],
        ["self_attn"],
        [f"language_model.model.layers.{index}.self_attn" for index in range(32)],
        [f"model.layers.{index}.self_attn.{name}_proj" for index in range(32) for name in ("qkv", "o")],
    ],
)
def test_exceptions_are_found_however_they_are_written(ignore: list[str]) -> None:
    config = {"quant_method": "fp8", "ignored_layers": ignore}
    attention = 32 * 2 * 4096 * (4096 + 1024)
    whole = fit(model(LLAMA_8B, quantization_config={"quant_method": "fp8"}), engine()).weights_bytes_per_gpu
    assert fit(
        model(LLAMA_8B, quantization_config=config), engine()
    ).weights_bytes_per_gpu - whole == pytest.approx(attention, rel=1e-3)


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, 8 + 24 / 128),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}},
            4.25,
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}},
            },
            8,
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8),
        (
            {
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
                }
            },
            8,
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
    ],
)
def test_bits_per_weight(config: dict[str, Any], bits: float) -> None:
    quantized = model(LLAMA_70B, quantization_config=config)
    assert quantized.known
    linear = sum(
        matrix.parameters for layer in quantized.layers for matrix in layer.matrices if matrix.quantizable
    )
    rest = 2 * (quantized.parameters - linear)
    assert fit(quantized, engine()).weights_bytes_per_gpu == pytest.approx(rest + linear * bits / 8, rel=2e-3)


def test_online_quantization_halves_linear_layers_of_a_plain_checkpoint() -> None:
    plain, asked = (
        fit(model(LLAMA_70B), engine(quantization=q)).weights_bytes_per_gpu for q in (None, "fp8")
    )
    assert 0.50 < asked / plain < 0.53
    stored = model(LLAMA_70B, quantization_config={"quant_method": "fp8"})
    assert fit(stored, engine(quantization="fp8")) == fit(stored, engine())


# --- parallel sizes -------------------------------------------------------------------------------------------------


def test_pipeline_stages_as_vllm_divides_them() -> None:
    layers = tuple(model(LLAMA_8B).layers[:1]) * 13
    assert [len(stage) for stage in stages(layers, 4)] == [3, 3, 4, 3]
    assert [len(stage) for stage in stages(layers[:11], 4)] == [3, 3, 3, 2]
    assert [len(stage) for stage in stages(layers[:12], 4)] == [3, 3, 3, 3]


def test_experts_are_shared_by_data_parallel_ranks_and_the_rest_is_not() -> None:
    shape = model(QWEN_MOE)
    alone = fit(shape, engine(tp=1)).weights_bytes_per_gpu
    slices = fit(shape, engine(tp=1, dp=4)).weights_bytes_per_gpu
    whole = fit(shape, engine(tp=1, dp=4, expert_parallel=True)).weights_bytes_per_gpu
    experts = 94 * 128 * 3 * 4096 * 1536
    assert alone - whole == pytest.approx(0.75 * experts, rel=1e-3)
    assert slices == pytest.approx(whole, rel=1e-3)
    assert (
        fit(shape, engine(dp=4, expert_parallel=True)).kv_bytes_per_token
        == fit(shape, engine()).kv_bytes_per_token
    )


def test_kv_heads_are_kept_several_times() -> None:
    found = fit(model(QWEN_MOE), engine(tp=8, expert_parallel=True))
    assert found.kv_bytes_per_token == fit(model(QWEN_MOE), engine(tp=4)).kv_bytes_per_token
    assert found.notes[:-1] == (
        "Each of the 4 KV heads is kept on 2 GPUs with a tensor parallel size of 8",
    )  # fmt: skip


def test_decode_context_parallelism_divides_tokens() -> None:
    one, two = (fit(model(DEEPSEEK), engine(tp=8, dcp=dcp)) for dcp in (1, 2))
    assert two.kv_cache_tokens == pytest.approx(2 * one.kv_cache_tokens, rel=0.001)


# --- memory and releases --------------------------------------------------------------------------------------------


def test_headroom_is_what_is_left_beside_one_request() -> None:
    found = fit(model(LLAMA_8B), engine())
    needed = 131072 * found.kv_bytes_per_token + 16 * found.kv_bytes_per_token  # and the null block
    assert found.headroom_bytes == found.kv_cache_bytes - needed
    budget = engine().requested_bytes - found.weights_bytes_per_gpu - found.reserve_bytes
    assert found.kv_cache_bytes == budget
    tight = fit(model(LLAMA_8B), engine(memory_bytes=24 * GIB))
    assert not tight.fits
    assert tight.headroom_bytes < 0


def test_graphs_are_counted_since_0_26_and_not_with_enforce_eager() -> None:
    before, since = (fit(model(LLAMA_8B), engine(version)).reserve_bytes for version in ("0.25.1", "0.26.0"))
    assert since - before == GIB
    assert fit(model(LLAMA_8B), engine(enforce_eager=True)).reserve_bytes == before
    assert any(
        "gpu_memory_utilization" in n
        for n in fit(model(LLAMA_8B), engine("0.20.0", gpu_memory_utilization=0.999)).notes
    )


def test_tokens_as_each_release_logs_them() -> None:
    """Blocks of all groups together, then by group, then by concurrency; before, sliding windows were kept whole."""
    given: dict[str, Any] = {"kv_cache_memory_bytes": 100 * GIB, "max_num_batched_tokens": 8192}
    found = {
        v: fit(model(GPT_OSS), engine(v, **given)).kv_cache_tokens
        for v in ("0.9.0.1", "0.11.0", "0.20.1", "0.26.0")
    }
    assert found["0.9.0.1"] == 100 * GIB // (36 * 16 * 2048) * 16
    assert found["0.11.0"] == 100 * GIB // (18 * 16 * 2048) // 2 * 16
    assert found["0.20.1"] == int(182044 / (8192 + 521) * 131072)
    assert found["0.26.0"] == found["0.20.1"]
    overlapped = fit(model(GPT_OSS), engine("0.26.0", async_scheduling=True, **given)).kv_cache_tokens
    assert overlapped == 2586544


def test_chunked_attention_is_cached_whole_before_0_14() -> None:
    shape = model_shape(case("llama4", 1)["config"])
    before, since = (
        fit(shape, engine(v, max_num_batched_tokens=512)).max_concurrency for v in ("0.13.0", "0.14.0")
    )
    assert since > before
    whole = engine("0.14.0", max_num_batched_tokens=512, hybrid_kv_cache=False)
    assert fit(shape, whole).max_concurrency == before


def test_states_are_copied_for_prefix_caching_since_0_28() -> None:
    shape = model_shape(case("nemotron_h", 1)["config"])
    blocks = [
        fit(shape, engine(v, max_model_len=128)).max_concurrency for v in ("0.27.1", "0.28.0", "0.32.0")
    ]
    groups = 4
    assert blocks[0] / blocks[1] == pytest.approx((1 + 2 * groups) / (1 + groups))
    assert blocks[0] / blocks[2] == pytest.approx((1 + 3 * groups) / (1 + groups))
    assert fit(shape, engine(max_model_len=128, prefix_caching=False)).max_concurrency == blocks[0]


@pytest.mark.parametrize(("version", "said"), [("0.11.2", False), ("0.12.0", True)])
def test_an_fp8_cache_is_no_remedy_where_latent_attention_has_none(version: str, said: bool) -> None:
    shape, asked = model(DEEPSEEK), engine(version, tp=8)
    length = shape.context
    needed = fit(shape, replace(asked, kv_cache_dtype="fp8"))
    asked = replace(asked, memory_bytes=asked.memory_bytes - int((needed.headroom_bytes - 100) / 0.9))
    found = fit(shape, asked)
    assert not found.fits
    assert (
        any("kv_cache_dtype" in text and str(length) in text for text in remedies(shape, asked, found))
        == said
    )


def test_without_chunked_prefill_a_whole_prompt_is_profiled() -> None:
    def reserve(version: str, **changes: Any) -> int:
        shape = model(LLAMA_8B)  # 131,072 tokens
        return fit(shape, engine(version, max_num_batched_tokens=2048, **changes)).reserve_bytes

    sampling = 256 * 128256 * 38 + 2048 * 2 * 4096  # more than the step
    chunked = reserve("0.9.1", v1=False, chunked_prefill=True)
    whole = reserve("0.9.1", v1=False)
    per_token = 2 * (4 * 4096 + 3 * 14336)
    assert whole - chunked == 131072 * per_token - sampling
    assert reserve("0.9.1", v1=False, max_model_len=1024) == chunked
    assert reserve("0.9.1") == chunked
    assert reserve("0.9.1", chunked_prefill=False) == whole
    # on ROCm long contexts were chunked by default before 0.6.6
    assert reserve("0.6.4", v1=False) == chunked < reserve("0.6.4", v1=False, max_model_len=32768)
    assert reserve("0.6.6", v1=False) == whole


def test_notes_say_what_is_an_estimate_and_where_the_shape_is_from() -> None:
    found = fit(model(LLAMA_8B), engine(), CATALOGUE)
    assert found.basis == "exact"
    assert f"About {found.reserve_bytes / GIB:.1f} GiB per GPU" in found.notes[-2]
    assert "estimate" in found.notes[-2]
    assert found.notes[-1].startswith("The model's shape is from the catalogue, by the model's name")
    measured = fit(model(LLAMA_8B), engine(kv_cache_memory_bytes=20 * GIB)).notes
    assert not any("estimate" in note or "shape" in note for note in measured)


def test_fp8_kv_cache_holds_twice_the_tokens() -> None:
    plain, eight = (fit(model(LLAMA_8B), engine(kv_cache_dtype=dtype)) for dtype in ("auto", "fp8"))
    assert eight.kv_cache_tokens == pytest.approx(2 * plain.kv_cache_tokens, rel=0.001)
    unknown = fit(model(LLAMA_8B), engine(kv_cache_dtype="of-tomorrow"))
    assert unknown.kv_cache_tokens == plain.kv_cache_tokens
    assert "of-tomorrow" in unknown.notes[0]


def test_given_cache_sizes() -> None:
    found = fit(model(LLAMA_8B), engine(kv_cache_memory_bytes=20 * GIB))
    assert found.kv_cache_bytes == 20 * GIB
    assert not fit(model(LLAMA_8B), engine(kv_cache_memory_bytes=GIB)).fits
    assert not fit(
        model(LLAMA_70B), engine(kv_cache_memory_bytes=60 * GIB)
    ).fits  # 131 GiB of weights beside it
    assert (
        fit(model(LLAMA_8B), engine(num_gpu_blocks_override=100, max_model_len=1024)).kv_cache_tokens == 1600
    )
    assert not fit(
        model(LLAMA_8B), engine(num_gpu_blocks_override=64, max_model_len=1024)
    ).fits  # and the null block
    assert fit(model(LLAMA_8B), engine(num_gpu_blocks_override=65, max_model_len=1024)).fits


# --- refusals and remedies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "rule", "numbers"),
    [
        (LLAMA_8B, {"tp": 3}, "attention-heads", "32 attention heads"),
        ("Qwen/Qwen2.5-7B-Instruct", {"tp": 8}, "attention-heads", "28 attention heads"),
        ("microsoft/phi-4", {"tp": 4}, "kv-heads", "10 KV heads"),
        (
            QWEN_MOE,
            {"tp": 8},
            "block-fp8-slices",
            "1536 on 8 GPUs is 192 each, which is not a multiple of 128",
        ),
        (
            LLAMA_8B,
            {"max_model_len": 200000},
            "context-beyond-model",
            "200000 is more than the model's own 131072",
        ),
        (LLAMA_8B, {"pp": 33}, "pipeline-support", "32 layers"),
        (LLAMA_8B, {"tp": 8, "dcp": 2}, "kv-heads", "copies of each KV head"),
    ],
)
def test_refusals_name_rule_and_numbers(name: str, changes: dict[str, Any], rule: str, numbers: str) -> None:
    found = dict(refusals(model(name), engine(**changes)))
    assert numbers in found[rule]
    assert statement(knowledge().recipes, rule).text


def test_refused_by_the_quantized_groups_of_a_slice() -> None:
    awq = model(LLAMA2_13B, quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128})
    assert refusals(awq, engine(tp=2)) == ()
    (found,) = refusals(awq, engine(tp=8))  # 13824 / 8 = 1728
    assert found[0] == "block-fp8-slices"
    assert "1728" in found[1]


def test_whole_experts_have_no_slices() -> None:
    assert refusals(model(QWEN_MOE), engine(tp=8, expert_parallel=True)) == ()
    assert refusals(model(QWEN_MOE), engine(tp=4)) == ()
    assert smallest_tp(model(QWEN_MOE), engine(memory_bytes=48 * GIB)) is None  # it would fit eight


def test_published_models_are_refused_nothing_on_one_gpu() -> None:
    for name in some(CONFIGS):
        assert refusals(model(name), engine()) == ()


def test_remedies_are_enough() -> None:
    """Each number that a remedy names makes it fit, and the next larger length does not."""
    shape, asked = model(LLAMA_70B), engine()
    found = fit(shape, asked)
    assert not found.fits
    length, eight, tensor, fp8, larger = remedies(shape, asked, found)
    tokens = int(length.split(" or less")[0].rpartition(" ")[2])
    assert fit(shape, replace(asked, max_model_len=tokens)).fits
    assert not fit(shape, replace(asked, max_model_len=tokens + 16)).fits
    assert eight.startswith("Set kv_cache_dtype to fp8")
    assert tensor == "Set tensor_parallel_size to 2, the smallest that fits"
    assert "FP8" in fp8
    assert f"{-found.headroom_bytes / GIB:.1f} GiB more than it may use" in larger


@pytest.mark.parametrize("version", ["0.9.0.1", "0.11.0", "0.26.0", "0.33.0"])
@pytest.mark.parametrize("name", [LLAMA_70B, GPT_OSS, GEMMA, DEEPSEEK, "ai21labs/Jamba-v0.1"])
def test_the_longest_length_is_the_longest(name: str, version: str) -> None:
    shape, asked = model(name), engine(version, tp=4, memory_bytes=200 * GIB, max_num_batched_tokens=2048)
    asked = replace(asked, memory_bytes=int((fit(shape, asked).weights_bytes_per_gpu + 7 * GIB) / 0.9))
    found = largest_max_model_len(shape, asked)
    assert found > 0
    assert fit(shape, replace(asked, max_model_len=found)).fits
    assert found == shape.context or not fit(shape, replace(asked, max_model_len=found + 1)).fits


def test_nothing_to_remedy() -> None:
    found = fit(model(LLAMA_8B), engine())
    assert remedies(model(LLAMA_8B), engine(), found) == ()


def test_json() -> None:
    found = fit(model(LLAMA_8B), engine()).to_json()
    assert json.loads(json.dumps(found)) == found
    assert {
        "weights_bytes_per_gpu",
        "kv_bytes_per_token",
        "kv_cache_tokens",
        "max_concurrency",
        "headroom_bytes",
    } < set(found)


# --- properties -----------------------------------------------------------------------------------------------------


@given(
    name=st.sampled_from(sorted(MODELS)),
    seed=st.integers(0, 50),
    memory=st.integers(1, 64),
    pair=st.sampled_from([("max_model_len", 512, 1024), ("max_num_batched_tokens", 512, 4096)]),
)
def test_more_asked_never_fits_better(name: str, seed: int, memory: int, pair: tuple[str, int, int]) -> None:
    shape = model_shape(case(name, seed)["config"])
    key, less, more = pair
    small, large = (
        fit(
            shape,
            engine(memory_bytes=memory * GIB // 4, max_num_seqs=8, **{"max_model_len": 1024, key: value}),
        )
        for value in (less, more)
    )
    assert small.headroom_bytes >= large.headroom_bytes
    assert small.fits >= large.fits


@given(st.dictionaries(st.sampled_from(["hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"]),
                       st.one_of(st.none(), st.integers(0, 64), st.text(max_size=3))))  # fmt: skip
def test_no_config_is_an_error(config: dict[str, Any]) -> None:
    assert fit(model_shape(config), engine()).max_model_len >= 0


def test_a_case_of_the_lab_fits() -> None:
    """What it costs to tell: make bench."""
    assert planned(case("llama", 1), kv_rules("0.32.0")).fits
