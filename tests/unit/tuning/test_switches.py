# SPDX-License-Identifier: Apache-2.0
"""Switches beside each other: no recipe takes the effect of the operator's, and one without effect is named."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.facts import (
    ModelFacts,
    model_facts,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.tune import TunedSettings

from tests.worlds.catalogue import knowledge
from tests.worlds.tune_world import LLAMA, tuned

R1 = ModelFacts(
    "deepseek-ai/DeepSeek-R1",
    ("DeepseekV3ForCausalLM",),
    True,
    True,
    head_size=192,
    quantization="fp8",
    heads=128,
)
UNKNOWN = model_facts("some/model", None)
AITER, MOE, MHA = "VLLM_ROCM_USE_AITER", "VLLM_ROCM_USE_AITER_MOE", "VLLM_ROCM_USE_AITER_MHA"
SPLIT, UNIFIED = "VLLM_V1_USE_PREFILL_DECODE_ATTENTION", "VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION"
OLD_UNIFIED, NAMED = "VLLM_USE_AITER_UNIFIED_ATTENTION", "VLLM_ATTENTION_BACKEND"
FP8BMM, QUICK = "VLLM_ROCM_USE_AITER_FP8BMM", "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"


def idle(found: TunedSettings) -> list[str]:
    """What the warnings say has no effect."""
    return [
        text.partition(" has no effect")[0].rstrip(":") for text in found.warnings if "has no effect" in text
    ]


@pytest.mark.parametrize("objective", ["", "throughput", "latency"])
@pytest.mark.parametrize(
    ("version", "env", "without"),
    [
        ("0.9.2", {SPLIT: "1"}, {AITER, MHA}),
        ("0.10.1", {SPLIT: "1"}, {AITER, MHA}),
        ("0.11.0", {SPLIT: "true"}, {AITER, MHA}),
        ("0.11.1", {SPLIT: "1"}, {AITER, MHA}),
        ("0.11.2", {SPLIT: "1"}, {AITER, MHA}),
        ("0.13.0", {SPLIT: "1"}, {AITER, MHA, "--attention-backend"}),
        ("0.14.0", {SPLIT: "1"}, {AITER, MHA, "--attention-backend"}),
        ("0.11.1", {NAMED: "TRITON_ATTN"}, {AITER, MHA}),
        ("0.11.1", {NAMED: "ROCM_ATTN"}, {AITER, MHA}),
        ("0.10.1", {OLD_UNIFIED: "1"}, {MHA}),
        ("0.11.1", {UNIFIED: "1"}, {MHA}),
        ("0.33.0", {MHA: "0"}, {"--attention-backend"}),
        ("0.16.0", {MHA: "0"}, {"--attention-backend"}),
    ],
)
def test_no_recipe_voids_a_choice(
    version: str, env: dict[str, str], without: set[str], objective: str
) -> None:
    keys = {"objective": objective} if objective else {}
    found = tuned(version, env=env, **keys)
    assert not without & {*found.args, *found.env} - {*env}
    (name,) = env
    said = [item for item in found.omitted if name in item.reason]
    assert "attention_backend" in {item.setting for item in said}
    assert all(item.source for item in said)


def test_what_goes_with_a_backend_is_chosen_for_the_one_in_effect() -> None:
    found = tuned("0.11.1", env={SPLIT: "1"}, objective="throughput")
    assert found.args["--compilation-config"] == {"cudagraph_mode": "FULL"}
    latent = tuned("0.11.1", R1, env={AITER: "0"}, objective="throughput", tensor_parallel_size=8)
    assert latent.args["--compilation-config"] == {"cudagraph_mode": "PIECEWISE"}


def test_with_its_condition_a_choice_keeps_the_other_kernels() -> None:
    found = tuned("0.11.1", env={SPLIT: "1", MHA: "0"})
    assert found.env[AITER] == "1"
    assert idle(found) == []


@pytest.mark.parametrize("version", ["0.10.2", "0.11.1", "0.14.0", "0.24.0", "0.33.0"])
def test_recipes_add_no_part_of_what_is_off(version: str) -> None:
    found = tuned(version, R1, env={AITER: "0"}, tensor_parallel_size=8)
    assert [name for name in found.env if name.startswith(AITER)] == [AITER]
    assert MOE in {item.setting for item in found.omitted}


@pytest.mark.parametrize(
    ("version", "model", "keys", "names"),
    [
        ("0.11.1", R1, {"env": {MOE: "1"}}, ["env." + MOE]),
        ("0.11.1", R1, {"env": {MOE: "1", AITER: "0"}}, ["env." + MOE]),
        ("0.11.1", R1, {"env": {MOE: "1", AITER: "True"}}, []),
        ("0.11.1", R1, {"env": {MOE: "0"}}, []),
        ("0.11.1", LLAMA, {"env": {MOE: "1", AITER: "1"}}, ["env." + MOE]),
        ("0.11.1", UNKNOWN, {"env": {MOE: "1", AITER: "1"}}, []),
        ("0.11.1", LLAMA, {"env": {FP8BMM: "1", AITER: "1"}}, ["env." + FP8BMM]),
        (
            "0.33.0",
            R1,
            {"env": {"VLLM_ROCM_USE_AITER_FP4BMM": "1", AITER: "1"}},
            ["env.VLLM_ROCM_USE_AITER_FP4BMM"],
        ),
        ("0.33.0", LLAMA, {"settings": {"aiter_moe": True}}, ["settings.aiter_moe: " + MOE]),
        ("0.11.1", LLAMA, {"env": {UNIFIED: "1", AITER: "1"}}, ["env." + UNIFIED]),
        ("0.11.1", LLAMA, {"env": {UNIFIED: "1", AITER: "1", MHA: "0"}}, []),
        ("0.11.1", LLAMA, {"env": {UNIFIED: "1"}}, ["env." + UNIFIED]),
        ("0.10.1", LLAMA, {"env": {OLD_UNIFIED: "1", AITER: "1", MHA: "0"}}, []),
        ("0.11.1", LLAMA, {"env": {SPLIT: "1", AITER: "1"}}, ["env." + SPLIT]),
        ("0.11.1", R1, {"env": {SPLIT: "1"}}, ["env." + SPLIT]),
        ("0.11.1", LLAMA, {"env": {MHA: "1"}}, ["env." + MHA]),
        ("0.33.0", LLAMA, {"env": {MHA: "0", AITER: "1"}}, ["env." + MHA]),
        ("0.11.1", LLAMA, {"env": {MHA: "0"}}, []),
        ("0.11.1", LLAMA, {"env": {QUICK: "INT4"}}, ["env." + QUICK]),
        ("0.11.1", LLAMA, {"env": {QUICK: "NONE"}}, []),
        ("0.11.1", LLAMA, {"env": {QUICK: "FP"}, "tensor_parallel_size": 8}, []),
        ("0.11.1", LLAMA, {"settings": {"quick_reduce": "FP"}}, ["settings.quick_reduce: " + QUICK]),
        (
            "0.11.1",
            LLAMA,
            {
                "env": {QUICK: "FP"},
                "tensor_parallel_size": 8,
                "engine_args": {"disable_custom_all_reduce": True},
            },
            ["env." + QUICK],
        ),
        (
            "0.11.1",
            LLAMA,
            {"env": {AITER: "1"}, "engine_args": {"compilation_config": '{"cudagraph_mode": "FULL"}'}},
            ["engine_args.compilation_config: cudagraph_mode"],
        ),
        (
            "0.11.1",
            R1,
            {"env": {AITER: "1"}, "settings": {"graph_mode": "FULL"}},
            ["settings.graph_mode: cudagraph_mode"],
        ),
        ("0.11.1", LLAMA, {"engine_args": {"compilation_config.cudagraph_mode": "FULL"}}, []),
        ("0.11.1", LLAMA, {"env": {"VLLM_USE_TRITON_AWQ": "1"}}, ["env.VLLM_USE_TRITON_AWQ"]),
    ],
)
def test_a_switch_without_effect_is_named(
    version: str, model: ModelFacts, keys: dict[str, Any], names: list[str]
) -> None:
    found = tuned(version, model, recipes=False, **keys)
    assert idle(found) == names
    for text in found.warnings:
        if "has no effect" in text:
            assert text.endswith("]")
            assert text.count(". ") >= 1


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({UNIFIED: "1", AITER: "1"}, f"Set {MHA} to 0 as well"),
        ({UNIFIED: "1"}, f"Set {MHA} to 0 and {AITER} to 1 as well"),
        ({SPLIT: "1", AITER: "1"}, f"Set {MHA} to 0 as well"),
        ({MHA: "1"}, f"Set {AITER} to 1 as well"),
    ],
)
def test_the_warning_says_what_makes_it_work(env: dict[str, str], text: str) -> None:
    (warning,) = [item for item in tuned("0.11.1", recipes=False, env=env).warnings if "no effect" in item]
    assert text in warning


@pytest.mark.parametrize("model", [LLAMA, R1])
@pytest.mark.parametrize("objective", ["latency", "interactive", "streaming", "throughput"])
def test_recipes_choose_no_switch_without_effect(model: ModelFacts, objective: str) -> None:
    for version in knowledge().line.releases:
        for size in (1, 8):
            found = tuned(version, model, objective=objective, tensor_parallel_size=size)
            env = {name: text for name, text in found.env.items() if name.startswith("VLLM_")}
            args = {name.lstrip("-"): value for name, value in found.args.items() if "attention" in name}
            again = tuned(version, model, recipes=False, tensor_parallel_size=size, env=env, engine_args=args)
            assert idle(again) == [], version


@pytest.mark.parametrize("text", ["True", "true", "1"])
def test_a_variable_means_the_same_in_every_spelling(text: str) -> None:
    plans = [tuned("0.11.1", env={AITER: spelled}) for spelled in (text, "1")]
    assert plans[0].args == plans[1].args
    assert {**plans[0].env, AITER: "1"} == dict(plans[1].env)
    off = tuned("0.11.1", env={AITER: "yes"})
    assert off.known["aiter"] is False
    assert MHA not in off.env


@pytest.mark.parametrize(("version", "said"), [("0.10.2", False), ("0.11.1", True), ("0.33.0", True)])
def test_what_older_releases_needed_is_explained_where_it_is_omitted(version: str, said: bool) -> None:
    found = tuned(version, R1, tensor_parallel_size=8)
    assert (found.args.get("--block-size") == 1) is not said
    texts = [f"{item.setting} {item.value}: {item.reason}" for item in found.omitted]
    assert any(text.startswith("block_size 1: only before vLLM 0.11.1: ") for text in texts) is said
    given = tuned(version, R1, tensor_parallel_size=8, engine_args={"block_size": 1})
    assert "block_size" not in {item.setting for item in given.omitted}
