# SPDX-License-Identifier: Apache-2.0
"""Families against recorded answers of the real vLLM, and what is said of models that are none's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes import shape as reading
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.fit import fit
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.fit_result import Fit, FitRange

from tests import ROOT
from tests.oracles.fit_cases import planned
from tests.worlds.catalogue import knowledge, kv_rules, model_shape
from tests.worlds.fit_world import engine

GIB = 1 << 30
RECORDED = json.loads((ROOT / "tests/data/fit/families_0.32.0.json").read_text())
RULES = kv_rules(RECORDED["vllm"])
CASES = {case["name"]: case for case in RECORDED["cases"]}
DBRX: dict[str, Any] = {
    "architectures": ["DbrxForCausalLM"],
    "model_type": "dbrx",
    "d_model": 6144,
    "n_heads": 48,
    "n_layers": 40,
    "vocab_size": 100352,
    "max_seq_len": 32768,
    "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500000},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("name", CASES)
def test_a_family_is_as_vllm_builds_it(name: str) -> None:
    case = CASES[name]
    found, answer = planned(case, RULES), case["answer"]
    if found.between is None:
        assert found.basis == "exact"
        assert found.weights_bytes_per_gpu == pytest.approx(answer["weights_bytes"], rel=0.01)
        assert found.kv_cache_tokens == pytest.approx(answer["tokens"], rel=0.01)
        assert found.max_concurrency == pytest.approx(answer["concurrency"], rel=0.01)
    else:
        holds(found.between, answer)


def test_what_was_recorded_covers_many_architectures() -> None:
    """Sixty and more that the older record of small models does not have, a part of them on two ranks."""
    older = json.loads((ROOT / "tests/data/fit/cpu_0.32.0.json").read_text())["cases"]
    new = {(name, case["tp"]) for case in CASES.values() for name in case["config"]["architectures"]}
    new -= {(name, tp) for case in older for name in case["config"]["architectures"] for tp in (1, 2)}
    assert len({name for name, _ in new}) >= 60
    assert len({name for name, tp in new if tp == 2}) >= 15


def holds(between: FitRange, answer: dict[str, Any]) -> None:
    low, high = between.weights_bytes_per_gpu
    assert low <= answer["weights_bytes"] <= high
    low, high = between.kv_cache_tokens
    assert low <= answer["tokens"] <= high


STATE_SPACES = ("mamba", "mamba2", "falcon_mamba")


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n]["config"]["model_type"] not in STATE_SPACES])
def test_a_family_that_was_unknown_would_be_inside_its_range(name: str) -> None:
    """What is known is taken away: the same config under a model_type that nobody has."""
    case = CASES[name]
    found = planned({**case, "config": {**case["config"], "model_type": "of-tomorrow"}}, RULES)
    assert (found.basis, found.between is None) == ("estimated", False)
    assert found.between
    holds(found.between, case["answer"])


@pytest.mark.parametrize("kind", STATE_SPACES)
def test_a_state_space_without_attention(kind: str) -> None:
    """These ended the plan of a whole fleet."""
    case = next(case for case in CASES.values() if case["config"]["model_type"] == kind)
    for tp in (1, 2):
        found = fit(model_shape(case["config"]), engine(tp=tp))
        assert (found.fits, found.basis) == (True, "exact")
        assert found.kv_bytes_per_token == 0
        assert found.max_concurrency > 1


def test_dbrx_is_not_planned_onto_one_gpu() -> None:
    known = fit(model_shape(DBRX), engine())
    assert known.weights_bytes_per_gpu / GIB == pytest.approx(245.1, rel=0.01)
    assert not known.fits
    unknown = fit(reading.model_shape(DBRX, {}), engine())
    assert unknown.between
    low, high = unknown.between.weights_bytes_per_gpu
    assert low < known.weights_bytes_per_gpu < high
    assert not unknown.certain
    # The files' size narrows it, and leaves no case in which it fits.
    files = [("model-00001.safetensors", known.weights_bytes_per_gpu)]
    assert not fit(reading.model_shape(DBRX, {}, files), engine()).fits


LLAVA: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "text_config": {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "vocab_size": 32064, "max_position_embeddings": 4096, "torch_dtype": "float16",
        "tie_word_embeddings": False,
    },
    "vision_config": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24},
}  # fmt: skip


def test_a_tower_is_an_estimate_until_the_files_are_known() -> None:
    alone = fit(model_shape(LLAVA["text_config"]), engine())
    found = fit(model_shape(LLAVA), engine())
    assert (alone.basis, found.basis) == ("exact", "estimated")
    assert found.between
    assert found.between.unsure == "the size of what reads images or sound"
    assert found.between.weights_bytes_per_gpu[0] == alone.weights_bytes_per_gpu
    assert found.certain
    sized = fit(model_shape(LLAVA, [("model.safetensors", alone.weights_bytes_per_gpu + GIB)]), engine())
    assert (sized.basis, sized.between) == ("exact", None)


NEW: dict[str, Any] = {
    "architectures": ["NewForCausalLM"], "model_type": "new", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 8192, "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip


def test_sizes_of_files_narrow_the_range() -> None:
    def width(found: Fit) -> float:
        assert found.between
        low, high = found.between.weights_bytes_per_gpu
        return high / low

    config = {name: value for name, value in NEW.items() if name != "hidden_act"}
    files = [("model.safetensors", 16 * 10**9)]
    assert width(fit(model_shape(config, files), engine())) == pytest.approx(1.15 / 0.8, rel=0.01)
    assert width(fit(model_shape(config), engine())) > 1.5


@pytest.mark.parametrize(
    ("memory", "fits", "certain"), [(64 * GIB, True, True), (19 * GIB, True, False), (8 * GIB, False, False)]
)
def test_the_whole_range_a_part_of_it_or_none(memory: int, fits: bool, certain: bool) -> None:
    found = fit(model_shape(NEW), engine(memory_bytes=memory, max_num_batched_tokens=512, max_num_seqs=8))
    assert (found.fits, found.certain) == (fits, certain)
    assert found.between
    assert found.between.unsure == "the architecture NewForCausalLM"
    assert any("Not known here: the architecture NewForCausalLM" in note for note in found.notes)
    assert found.to_json()["between"]["fits"] is certain


def test_the_models_of_2026_are_families() -> None:
    assert {
        "deepseek_v4", "glm_moe_dsa", "minimax_m2", "minimax_m3_vl_text", "qwen3_5_text", "qwen3_5_moe_text",
        "gemma4_text", "mimo_v2", "mimo_v2_flash", "longcat_flash", "ernie4_5", "ernie4_5_moe", "hunyuan_v1_dense",
        "exaone4", "smollm3", "apertus", "olmoe", "stablelm", "ministral3", "glm4", "glm4_moe_lite", "kimi_linear",
        "internlm2", "minicpm", "minicpm3", "nemotron_h", "jamba",
    } <= set(knowledge().families)  # fmt: skip


def test_deepseek_v4_has_fp4_experts_and_pages_of_several_sizes() -> None:
    """Flash has 284e9 weights in files of 148.66 GiB: experts in FP4, the rest in FP8."""
    config = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        **json.loads((ROOT / "tests/data/fit/config_shapes.json").read_text())["defaults"]["deepseek_v4"],
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    shape = model_shape(config)
    assert shape.parameters / 1e9 == pytest.approx(284, rel=0.02)
    assert shape.stored_total / GIB == pytest.approx(148.66, rel=0.04)
    one, eight = (
        fit(shape, engine(tp=tp, memory_bytes=400 * GIB, kv_cache_memory_bytes=GIB)) for tp in (1, 8)
    )
    assert one.between is eight.between is None
    assert one.kv_cache_tokens == eight.kv_cache_tokens > 0


@pytest.mark.parametrize("name", ["DeepSeek-V4-Flash", "Zamba2-1.2B", "Zamba2-7B", "Zamba2-1.2B tp2"])
def test_what_was_a_wide_range_is_known(name: str) -> None:
    assert planned(CASES[name], RULES).between is None
