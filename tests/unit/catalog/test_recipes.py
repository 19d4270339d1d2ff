# SPDX-License-Identifier: Apache-2.0
"""Recipes: valid wherever their conditions hold, chosen by closeness, and rendered into accepted commands."""

from __future__ import annotations

import fnmatch
from itertools import product
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.facts import (
    ModelFacts,
    model_facts,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.recipes import (
    OBJECTIVES,
    Context,
    RecipeEntry,
    condition_facts,
    match_rank,
    select_recipes,
    speculative_pairs,
    statement,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.rules.conditions import SPAN
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.rules.repositories import (
    matches_pattern,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.env_vars import check_env
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.findings import errors
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.settings import (
    render_setting,
)
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.helpers.some import some
from tests.oracles.vllm_parser import check_argv
from tests.worlds.catalogue import covered, knowledge, render_settings, to_argv
from tests.worlds.recipe_models import ERAS, MODELS, OTHERS

RECIPES = knowledge().recipes
LINE = knowledge().line
SETTINGS = [(recipe.name, entry) for recipe in RECIPES for entry in recipe.settings]


def context(version: str, **changes: Any) -> Context:
    defaults: dict[str, Any] = {"gfx": "gfx942", "gpu": "MI300X", "engine": engine(version)}
    return Context(knowledge().release(version), LINE, **{**defaults, **changes})


def engine(version: str) -> str:
    return "V1" if LINE.order[version] >= LINE.order["0.9.2"] else "V0"


LETTERS = st.text("ab/-*?[]!.", max_size=8)


@given(LETTERS, st.lists(LETTERS, max_size=3))
def test_patterns_are_those_of_the_shell(name: str, patterns: list[str]) -> None:
    """Most differ in their first letters already; the answer is the same."""
    assume(not name.startswith("/"))  # a path, of which the last part counts
    assert matches_pattern(name, patterns) == any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@pytest.mark.parametrize(
    ("recipe", "entry"), SETTINGS, ids=lambda item: item if isinstance(item, str) else ""
)
def test_settings_can_be_said_where_their_conditions_hold(recipe: str, entry: RecipeEntry) -> None:
    """In every release that an entry covers, its settings render without an error or a warning, and are accepted."""
    releases = covered(LINE, entry.when.get("since"), entry.when.get("until"))
    if entry.when.get("engine") == ["V1"]:
        releases = tuple(release for release in releases if LINE.order[release] >= LINE.order["0.7.3"])
    if entry.when.get("engine") == ["V0"]:
        releases = tuple(release for release in releases if LINE.order[release] < LINE.order["0.11.0"])
    assert releases
    for release in releases:
        book = knowledge().book(release)
        for name, value in entry.settings.items():
            found = render_setting(book, name, value)
            assert found.findings == (), f"{release}: {[finding.text() for finding in found.findings]}"
            assert not errors(check_argv(book.flags, ["m", *to_argv(book.flags, found.args)])), release
            for variable, text in found.env.items():
                assert not check_env(book.env, variable, text).is_error


@pytest.mark.parametrize("releases", [
    pytest.param(ERAS, id="eras"), pytest.param(OTHERS, id="others", marks=pytest.mark.deep),
])  # fmt: skip
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.repository)
def test_every_recipe_becomes_an_accepted_command(model: ModelFacts, releases: tuple[str, ...]) -> None:
    """Models x GPUs x partitions x objectives x releases: no contradiction, and nothing that vLLM would refuse."""
    for version, gfx, objective, tp in product(releases, ("gfx942", "gfx950"), OBJECTIVES, (1, 8)):
        gpu = "MI300X" if gfx == "gfx942" else "MI355X"
        for changes in ({}, {"compute": "CPX", "memory": "NPS4"}, {"speculative": True}, {"kv_cache": "fp8"}):
            where = context(version, gfx=gfx, gpu=gpu, objective=objective, tp=tp, **changes)
            chosen = select_recipes(RECIPES, model, where)
            book = knowledge().book(version)
            found = render_settings(book, [(item.setting, item.value) for item in chosen.choices])
            said = f"{version} {gfx} {objective} tp {tp} {changes}"
            assert not errors(found.findings), f"{said}: {[item.text() for item in errors(found.findings)]}"
            refused = errors(check_argv(book.flags, ["m", *to_argv(book.flags, found.args)]))
            assert not refused, f"{said}: {[item.text() for item in refused]}"
            assert not any(check_env(book.env, name, text).is_error for name, text in found.env.items()), said
            names = [choice.setting for choice in chosen.choices]
            assert len(names) == len(set(names))
            assert all(choice.reason and choice.source for choice in chosen.choices)


def values(model: ModelFacts, version: str, **changes: Any) -> dict[str, Any]:
    given = changes.pop("given", None)
    chosen = select_recipes(RECIPES, model, context(version, **changes), given)
    return {item.setting: item.value for item in chosen.choices}


def model(part: str) -> ModelFacts:
    return next(item for item in MODELS if part in item.repository)


@pytest.mark.parametrize(
    ("part", "version", "changes", "expected"),
    [
        (
            "Llama-3.1-70B",
            "0.18.0",
            {},
            {"attention_backend": "aiter_fa", "aiter": True, "graph_mode": "FULL_AND_PIECEWISE"},
        ),
        (
            "Llama-3.1-70B",
            "0.11.0",
            {"objective": "interactive"},
            {"max_num_batched_tokens": 8192, "async_scheduling": False},
        ),
        (
            "Llama-3.1-70B",
            "0.11.0",
            {"objective": "streaming"},
            {"max_num_batched_tokens": 32768, "async_scheduling": True},
        ),
        (
            "Llama-3.1-70B",
            "0.11.0",
            {"tp": 8},
            {"max_num_batched_tokens": 131072, "quick_reduce": "FP", "rccl_min_channels": 112},
        ),
        (
            "Llama-3.1-70B",
            "0.6.6",
            {},
            {"scheduler_steps": 10, "chunked_prefill": False, "triton_flash_attention": False},
        ),
        ("Llama-3.1-405B", "0.9.1", {"kv_cache": "fp8"}, {"aiter": False}),
        (
            "Llama-3.3-70B-Instruct-FP8",
            "0.11.2",
            {"gfx": "gfx950"},
            {"custom_ops": ["-rms_norm", "-quant_fp8", "-silu_and_mul"]},
        ),
        (
            "Llama-3.3-70B-Instruct-FP8",
            "0.11.2",
            {"gfx": "gfx950", "objective": "interactive"},
            {"async_scheduling": True},
        ),
        ("MXFP4", "0.11.2", {"gfx": "gfx950"}, {"aiter_fp4_asm_gemm": True, "kv_cache_dtype": "fp8"}),
        (
            "DeepSeek-R1",
            "0.10.2",
            {"tp": 8},
            {"block_size": 1, "attention_backend": "aiter_mla", "aiter_moe": True},
        ),
        ("DeepSeek-R1", "0.12.0", {"tp": 8}, {"attention_backend": "aiter_mla"}),
        # AITER MLA takes 16 or 128 heads per GPU before 0.18.0, then more and more numbers
        ("DeepSeek-V2-Lite", "0.9.1", {"tp": 1}, {"attention_backend": "aiter_mla", "block_size": 1}),
        ("DeepSeek-V2-Lite", "0.9.1", {"tp": 2}, {"attention_backend": "triton_mla", "block_size": None}),
        ("DeepSeek-R1", "0.12.0", {"tp": 4}, {"attention_backend": "triton_mla"}),
        ("Kimi-K2", "0.17.1", {"tp": 8}, {"attention_backend": "triton_mla", "graph_mode": "PIECEWISE"}),
        ("Kimi-K2", "0.18.0", {"tp": 8}, {"attention_backend": "aiter_mla"}),
        ("DeepSeek-V2-Lite", "0.19.0", {"tp": 8}, {"attention_backend": "triton_mla"}),  # 2 heads
        ("DeepSeek-V2-Lite", "0.20.0", {"tp": 8}, {"attention_backend": "aiter_mla"}),
        ("GLM-5", "0.33.0", {"tp": 8}, {"attention_backend": "aiter_mla_sparse"}),
        ("R1-MXFP4", "0.11.2", {"tp": 8, "gfx": "gfx950"}, {"kv_cache_dtype": None}),
        ("R1-MXFP4", "0.12.0", {"tp": 8, "gfx": "gfx950"}, {"kv_cache_dtype": "fp8"}),
        ("R1-MXFP4", "0.12.0", {"tp": 4, "gfx": "gfx950"}, {"kv_cache_dtype": None}),
        ("DeepSeek-R1", "0.19.0", {"tp": 8, "kv_cache": "fp8"}, {"kv_scales": None}),
        (
            "DeepSeek-V3.2",
            "0.15.0",
            {"tp": 8},
            {"block_size": 1, "kv_cache_dtype": "bfloat16", "attention_backend": "aiter_mla_sparse"},
        ),
        (
            "gpt-oss",
            "0.19.0",
            {},
            {"attention_backend": "aiter_unified", "block_size": 64, "graph_mode": "FULL"},
        ),
        ("Mixtral-8x22B", "0.9.1", {"tp": 8}, {"aiter": True, "aiter_rmsnorm": False, "aiter_moe": True}),
        ("Qwen3-235B-A22B-FP8", "0.19.0", {"tp": 4}, {"tensor_parallel_size": 4, "executor": "mp"}),
        ("Qwen3-32B-AWQ", "0.19.0", {}, {"triton_awq": True, "dtype": "auto"}),
        ("gemma-3", "0.19.0", {"tp": 2}, {"mm_encoder_tp_mode": "data", "attention_backend": "aiter_fa"}),
        (
            "Llama-3.1-8B",
            "0.19.0",
            {"workload": ("short-input",)},
            {"attention_backend": "rocm_attn", "graph_mode": "FULL"},
        ),
        ("Llama-3.1-8B", "0.19.0", {"workload": ("synthetic",)}, {"prefix_caching": False}),
        ("Llama-3.1-8B", "0.19.0", {"compute": "CPX", "tp": 2}, {"register_allocator_hook": True}),
    ],
)
def test_what_the_documents_recommend(
    part: str, version: str, changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = values(model(part), version, **changes)
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("part", "version", "changes", "name"),
    [
        ("DeepSeek-R1", "0.12.0", {"tp": 8}, "block_size"),  # optional from 0.11.1 on
        ("Llama-3.1-70B", "0.9.1", {}, "attention_backend"),  # nothing to choose before 0.9.2
        ("Llama-3.1-70B", "0.11.0", {}, "rccl_min_channels"),  # one GPU
        (
            "Llama-3.1-70B",
            "0.11.0",
            {"gfx": "gfx950", "tp": 8},
            "rccl_min_channels",
        ),  # AMD says so for MI300X
        ("gpt-oss", "0.10.0", {}, "attention_backend"),
        ("OPT", "0.19.0", {}, "attention_backend"),
    ],
)
def test_what_is_left_alone(part: str, version: str, changes: dict[str, Any], name: str) -> None:
    chosen = model("other-model") if part == "OPT" else model(part)
    assert name not in values(chosen, version, **changes)


def test_the_closer_recipe_wins_and_says_so() -> None:
    chosen = select_recipes(
        RECIPES, model("Llama-3.3-70B-Instruct-FP8"), context("0.11.2", gfx="gfx950", gpu="MI355X")
    )
    utilization = next(choice for choice in chosen.choices if choice.setting == "gpu_memory_utilization")
    assert (utilization.value, utilization.recipe) == (0.9, "llama-3.3")
    assert [(other.recipe, other.value) for other in utilization.overridden] == [("general", 0.95)]


def test_what_the_operator_decided_stays() -> None:
    given = {"attention_backend": "triton", "max_num_seqs": 10}
    found = values(model("Llama-3.1-70B"), "0.19.0", given=given)
    assert not set(given) & set(found)
    assert found["graph_mode"] == "FULL"  # as the backend that he chose allows it


def test_the_same_choice_in_any_order_of_files() -> None:
    where = context("0.19.0", tp=8)
    chosen = {
        choice.setting: choice.value
        for choice in select_recipes(RECIPES, model("DeepSeek-R1"), where).choices
    }
    again = {
        choice.setting: choice.value
        for choice in select_recipes(RECIPES[::-1], model("DeepSeek-R1"), where).choices
    }
    assert chosen == again


def advice(part: str, version: str, **changes: Any) -> dict[str, str]:
    given = changes.pop("given", None)
    found = select_recipes(RECIPES, model(part), context(version, **changes), given)
    return {item.name: item.say for item in found.advice}


@pytest.mark.parametrize(
    ("part", "version", "changes", "name", "say"),
    [
        ("MXFP4", "0.19.0", {}, "mxfp4-needs-gfx950", "refuse"),
        ("DeepSeek-R1", "0.10.2", {"given": {"block_size": 16}}, "deepseek-mla-block-size", "refuse"),
        ("DeepSeek-V4", "0.24.0", {}, "deepseek-v4-flash-mi300x", "advise"),
        ("DeepSeek-V4", "0.19.0", {}, "deepseek-v4-first-release", "refuse"),
        ("DeepSeek-R1", "0.9.1", {}, "deepseek-context-0.9.1", "warn"),
        ("Llama-3.1-405B", "0.9.1", {"kv_cache": "fp8"}, "aiter-fp8-kv", "warn"),
        ("Llama-3.1-8B", "0.9.1", {"compute": "CPX", "tp": 2}, "cpx-nps1-one-partition", "refuse"),
        ("Llama-3.1-8B", "0.13.0", {"pp": 2, "speculative": True}, "pipeline-speculation", "refuse"),
        (
            "Llama-3.1-8B",
            "0.11.0",
            {"pp": 2, "given": {"async_scheduling": True}},
            "pipeline-async-scheduling",
            "refuse",
        ),
        ("DeepSeek-R1", "0.11.0", {"given": {"block_size": 16}}, "mla-block-size", "refuse"),
        (
            "Llama-3.1-405B",
            "0.9.1",
            {"kv_cache": "fp8", "given": {"aiter": True}},
            "aiter-and-fp8-kv",
            "refuse",
        ),
        ("DeepSeek-R1", "0.9.1", {"given": {"aiter": True, "kv_cache_dtype": "fp8"}}, "mla-fp8-kv", "refuse"),
        ("DeepSeek-R1", "0.11.2", {"given": {"kv_cache_dtype": "fp8"}}, "mla-fp8-kv", "refuse"),
        ("Llama-3.1-8B", "0.28.0", {"dp": 2, "balancing": "external"}, "external-data-parallel", "refuse"),
        ("Llama-3.1-8B", "0.19.0", {"given": {"quick_reduce": "INT4"}}, "quick-reduce-accuracy", "warn"),
        ("gpt-oss", "0.10.0", {}, "gpt-oss-first-release", "refuse"),
        ("Qwen3-235B-A22B-FP8", "0.19.0", {"tp": 8}, "qwen3-235b-fp8-tp8", "refuse"),
        ("command-r", "0.9.1", {}, "command-r-crash", "warn"),
        (
            "Llama-3.1-8B",
            "0.19.0",
            {"speculative": True, "speculative_tokens": 3},
            "speculative-tokens",
            "warn",
        ),
    ],
)
def test_rules(part: str, version: str, changes: dict[str, Any], name: str, say: str) -> None:
    assert advice(part, version, **changes).get(name) == say


@pytest.mark.parametrize(
    ("part", "version", "changes", "name"),
    [
        ("DeepSeek-R1", "0.10.2", {}, "deepseek-mla-block-size"),  # the recipe sets it
        ("DeepSeek-V2-Lite", "0.10.2", {"tp": 2}, "deepseek-mla-block-size"),  # Triton MLA refuses it
        ("DeepSeek-R1", "0.12.0", {"given": {"kv_cache_dtype": "fp8"}}, "mla-fp8-kv"),
        ("DeepSeek-R1", "0.11.2", {"given": {"kv_cache_dtype": "fp8", "mla": False}}, "mla-fp8-kv"),
        ("DeepSeek-R1", "0.12.0", {"given": {"block_size": 16}}, "deepseek-mla-block-size"),
        ("MXFP4", "0.19.0", {"gfx": "gfx950"}, "mxfp4-needs-gfx950"),
        ("Llama-3.1-8B", "0.19.0", {}, "quick-reduce-accuracy"),
        ("Llama-3.1-8B", "0.19.0", {"speculative": True, "speculative_tokens": 2}, "speculative-tokens"),
        ("Llama-3.1-8B", "0.19.0", {}, "attention-heads"),  # a statement: arithmetic decides it
    ],
)
def test_rules_that_do_not_apply(part: str, version: str, changes: dict[str, Any], name: str) -> None:
    assert name not in advice(part, version, **changes)


def test_statements_can_be_quoted() -> None:
    found = statement(RECIPES, "attention-heads")
    assert (found.say, bool(found.text), found.source) == ("refuse", True, "vllm-source")
    with pytest.raises(KeyError):
        statement(RECIPES, "no-such-rule")


def test_rule_ids_are_unique() -> None:
    names = [entry.name for recipe in RECIPES for entry in recipe.rules]
    assert sorted(names) == sorted(set(names))


def test_every_setting_that_recipes_name_exists() -> None:
    known = set(knowledge().settings)
    for recipe in some(RECIPES):
        for entry in (*recipe.settings, *recipe.rules):
            assert {*entry.settings, *entry.needs, *entry.unless} <= known, recipe.name
        for pair in recipe.pairs:
            assert set(pair["settings"]) <= known


def test_every_condition_is_understood() -> None:
    known = {*SPAN, "repositories", *condition_facts(MODELS[0], context("0.19.0"))}
    for recipe in some(RECIPES):
        for entry in (*recipe.settings, *recipe.rules):
            assert set(entry.when) <= known, f"{recipe.name} {entry.name}"


def test_speculative_pairs() -> None:
    old = speculative_pairs(RECIPES, model("Llama-3.1-405B"), context("0.9.1"))
    assert [pair["draft"] for pair in old] == ["amd/Llama-3.1-8B-Instruct-FP8-KV"]
    new = speculative_pairs(RECIPES, model("Llama-3.1-8B"), context("0.19.0"))
    assert [pair["speculative"]["method"] for pair in new] == ["eagle3"]
    assert not speculative_pairs(RECIPES, model("Llama-3.1-405B"), context("0.19.0"))


def test_speculative_pairs_become_accepted_commands() -> None:
    for pair in some([pair for recipe in RECIPES for pair in recipe.pairs]):
        for release in some(covered(LINE, pair["since"], pair["until"])):
            book = knowledge().book(release)
            settings = {**pair["settings"], "speculative": pair["speculative"]}
            found = render_settings(book, settings.items())
            assert not errors(found.findings), release
            assert not errors(check_argv(book.flags, ["m", *to_argv(book.flags, found.args)])), release


@pytest.mark.parametrize(
    ("repository", "pattern", "fits"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "*/Llama-3.1-8B*", True),
        ("META-LLAMA/llama-3.1-8b", "*/Llama-3.1-8B*", True),
        ("/models/Llama-3.1-8B-Instruct/", "*/Llama-3.1-8B*", True),
        ("/models/Qwen3-30B-A3B", "Qwen/Qwen3-*B-A*B*", True),
        ("meta-llama/Llama-3.1-80B", "*/Llama-3.1-8B*", False),
        ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-[0-9][0-9]B", False),
    ],
)
def test_names(repository: str, pattern: str, fits: bool) -> None:
    assert matches_pattern(repository, [pattern]) == fits


def test_a_recipe_fits_by_name_more_closely_than_by_architecture() -> None:
    mixtral = next(recipe for recipe in RECIPES if recipe.name == "mixtral")
    general = next(recipe for recipe in RECIPES if recipe.name == "general")
    found = [match_rank(mixtral, ModelFacts(name, archs)) for name, archs in (
        ("mistralai/Mixtral-8x7B-v0.1", ("MixtralForCausalLM",)), ("x/tuned", ("MixtralForCausalLM",)), ("x/y", ())
    )]  # fmt: skip
    assert found == [2, 1, None]
    assert match_rank(general, ModelFacts("x/y")) == 0


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_attention_heads": 32},
            {"head_size": 128, "quantization": "none", "moe": False},
        ),
        (
            {"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512, "n_routed_experts": 256,
             "num_attention_heads": 128,
             "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
            {"mla": True, "moe": True, "quantization": "fp8", "kv_scales": False, "heads": 128, "sparse": False},
        ),
        (
            {"kv_lora_rank": 512, "index_topk": 2048}, {"sparse": True, "heads": None},
        ),
        (
            {"architectures": ["GptOssForCausalLM"], "num_local_experts": 128, "head_dim": 64, "sliding_window": 128,
             "layer_types": ["sliding_attention", "full_attention"],
             "quantization_config": {"quant_method": "mxfp4"}},
            {"sinks": True, "moe": True, "head_size": 64, "sliding_window": True, "quantization": "mxfp4"},
        ),
        (
            {"architectures": ["LlamaForCausalLM"], "head_dim": 128,
             "quantization_config": {"quant_method": "fp8", "kv_cache_scheme": "static"}},
            {"quantization": "fp8", "kv_scales": True},
        ),
        (
            {"quantization_config": {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}},
                                     "layer_quant_config": {"*k_proj": {"output_tensors": {"dtype": "fp8_e4m3"}}}}},
            {"quantization": "quark_mxfp4", "kv_scales": True},
        ),
        (
            {"quantization_config": {"quant_method": "quark", "global_quant_config": {"weight": {"dtype":
            "fp8_e4m3"}}}}, {"quantization": "quark_fp8", "kv_scales": False},
        ),
        (
            {"vision_config": {}, "text_config": {"head_dim": 128, "sliding_window": 1024, "num_experts": 1}},
            {"multimodal": True, "head_size": 128, "sliding_window": True, "moe": False},
        ),
        ({"use_sliding_window": False, "sliding_window": 4096}, {"sliding_window": False}),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, {"quantization": "compressed_tensors"}),
        (None, {"quantization": "unknown", "head_size": None, "moe": None, "mla": None, "kv_scales": None}),
    ],
)  # fmt: skip
def test_facts_of_a_model(config: dict[str, Any] | None, expected: dict[str, Any]) -> None:
    found = model_facts("x/y", config)
    assert {name: getattr(found, name) for name in expected} == expected
