# SPDX-License-Identifier: Apache-2.0
"""What is said of a deployment before anything is pulled: image, memory, shape, and what would serve it better."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import Problem
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.facts import model_facts
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.images import ImageFacts
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.decode import PeakRates
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.engine_config import (
    EngineConfig,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.feasibility import feasibility
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.feasibility.engine_arguments import (
    engine_of,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.feasibility.feasibility import (
    Feasibility,
    KnownModel,
    check_feasibility,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.tune import TargetGpu, tune

from tests.worlds.catalogue import knowledge
from tests.worlds.tune_world import MI300X, deployment

PARTITION = TargetGpu("gfx942", "MI300X", "CPX", "NPS4", 206141652992 // 8, 206141652992)
LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
LLAMA_70B = {
    **LLAMA_8B,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
GPT_OSS_SINKS = {**LLAMA_8B, "architectures": ["GptOssForCausalLM"]}
FACTS = ImageFacts("r/i:t", "tag", vllm="0.11.1", rocm="7.0.0", platform="rocm", gfx=("gfx942",))


def verdict(
    config: dict[str, Any] | None, machine: TargetGpu = MI300X, software: ImageFacts = FACTS, **keys: Any
) -> Feasibility:
    """judge() after tune()."""
    wanted = deployment(**keys)
    model = model_facts(wanted.model, config)
    tuned = tune(wanted, machine, software, model, knowledge())
    return check_feasibility(
        wanted, machine, software, tuned, KnownModel(model, config, "a test"), knowledge()
    )


def texts(problems: tuple[Problem, ...]) -> str:
    """All problems."""
    return "\n".join(problem.text() for problem in problems)


def test_a_model_that_fits() -> None:
    found = verdict(LLAMA_8B, engine_args={"max_model_len": 8192})
    assert not found.problems
    assert not found.warnings
    assert found.fit is not None
    assert found.fit.kv_bytes_per_token == 131072
    assert found.fit.weights_bytes_per_gpu == pytest.approx(8_030_261_248 * 2, rel=0.01)


def test_a_decode_step_is_of_a_whole_engine_on_gpus() -> None:
    peak = PeakRates(5.3e12)
    found = verdict(LLAMA_8B, replace(MI300X, peak=peak), tensor_parallel_size=2, data_parallel_size=2).step
    assert found
    assert (found.peak, found.gpus) == (peak, 4)
    # Each server of an engine is measured by itself, and does not show what the others do.
    shared = verdict(LLAMA_8B, data_parallel_size=2, data_parallel_balancing="external")
    assert shared.fit
    assert shared.step is None
    assert verdict(LLAMA_8B, software=replace(FACTS, platform="cpu")).step is None
    assert verdict(None).step is None


def test_a_model_that_does_not_fit_says_what_helps() -> None:
    found = verdict(LLAMA_70B, PARTITION)
    text = texts(found.problems)
    assert "a/b does not fit: weights 131.4 GiB per GPU" in text
    assert "of the 21.6 GiB that gpu_memory_utilization 0.9 gives of 24.0 GiB" in text
    assert "larger GPU or partition" in text


def test_advice_of_copies_needs_that_one_fits() -> None:
    small = verdict(LLAMA_8B, tensor_parallel_size=8, engine_args={"max_model_len": 8192})
    assert [item.name for item in small.advice] == ["copies-before-tensor-parallel"]
    assert "It fits:" in small.advice[0].text
    huge = {**LLAMA_70B, "num_hidden_layers": 126, "hidden_size": 16384, "intermediate_size": 53248}
    huge["num_attention_heads"] = 128
    assert not verdict(huge, tensor_parallel_size=8, engine_args={"max_model_len": 8192}).advice
    assert not verdict(LLAMA_8B, tensor_parallel_size=8, objective="latency").advice


def test_a_partition_that_starves_the_cache() -> None:
    found = verdict(LLAMA_8B, PARTITION, engine_args={"max_model_len": 16384})
    assert not found.problems
    assert any("CPX leaves too little memory for this model's KV cache" in text for text in found.warnings)


def engine_for(machine: TargetGpu, version: str, **keys: Any) -> EngineConfig:
    """The engine without recipes, which set these flags themselves."""
    wanted, software = deployment(recipes=False, **keys), replace(FACTS, vllm=version)
    tuned = tune(wanted, machine, software, model_facts(wanted.model, LLAMA_8B), knowledge())
    return engine_of(wanted, machine, software, tuned, knowledge())


HALF = TargetGpu("gfx942", "MI300X", "DPX", "NPS2", 206141652992 // 2, 206141652992)


@pytest.mark.parametrize(
    ("machine", "version", "batch"),
    [
        (MI300X, "0.11.0", (1024, 8192)),
        (MI300X, "0.33.0", (1024, 16384)),
        (HALF, "0.11.0", (1024, 8192)),
        (HALF, "0.33.0", (1024, 8192)),
        (PARTITION, "0.11.0", (256, 2048)),
        (PARTITION, "0.33.0", (256, 2048)),
    ],
)
def test_vllm_takes_smaller_batches_on_a_small_partition(
    machine: TargetGpu, version: str, batch: tuple[int, int]
) -> None:
    given = engine_for(machine, version)
    assert (given.max_num_seqs, given.max_num_batched_tokens) == batch
    told = engine_for(machine, version, engine_args={"max_num_seqs": 77, "max_num_batched_tokens": 999})
    assert (told.max_num_seqs, told.max_num_batched_tokens) == (77, 999)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"tensor_parallel_size": 3}, "attention heads"),
        ({"engine_args": {"max_model_len": 200000}}, "131072"),
        ({"engine_args": {"max_model_len": 200000}, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}}, ""),
        ({"settings": {"attention_backend": "rocm_attn"}}, ""),
    ],
)
def test_shape_rules(keys: dict[str, Any], text: str) -> None:
    found = verdict(LLAMA_8B, **keys)
    assert bool(found.problems) == bool(text)
    assert text in texts(found.problems)


def test_a_backend_that_cannot_run_the_model() -> None:
    named = {"settings": {"attention_backend": "rocm_attn"}}
    found = verdict(GPT_OSS_SINKS, software=replace(FACTS, vllm="0.24.0"), **named)
    assert "attention backend rocm_attn: attention sinks are not supported." in texts(found.problems)
    assert not verdict(GPT_OSS_SINKS, **named).problems  # 0.11.1 takes it, and Triton does that part


LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 102400,
    "max_position_embeddings": 16384,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("version", "keys", "text"),
    [
        ("0.9.1", {"tensor_parallel_size": 2}, ""),  # the recipe takes Triton MLA
        ("0.11.1", {"tensor_parallel_size": 2}, ""),
        (
            "0.11.1",
            {"tensor_parallel_size": 2, "settings": {"attention_backend": "aiter_mla"}},
            "attention backend aiter_mla: 8 attention heads per GPU are not among 16, 128; tensor_parallel_size 1",
        ),
        (
            "0.11.1",
            {"tensor_parallel_size": 2, "recipes": False, "env": {"VLLM_ROCM_USE_AITER": "1"}},
            "8 attention heads per GPU",
        ),
        (
            "0.11.1",
            {"tensor_parallel_size": 2, "env": {"VLLM_ROCM_USE_AITER_MLA": "1"}},
            "8 attention heads per GPU",
        ),
        (
            "0.11.1",
            {"tensor_parallel_size": 2, "env": {"VLLM_ROCM_USE_AITER": "1", "VLLM_MLA_DISABLE": "1"}},
            "",
        ),
        (
            "0.17.1",
            {"tensor_parallel_size": 2, "engine_args": {"attention_backend": "ROCM_AITER_MLA"}},
            "8 attention heads per GPU",
        ),
        ("0.18.0", {"tensor_parallel_size": 2, "engine_args": {"attention_backend": "ROCM_AITER_MLA"}}, ""),
        ("0.17.1", {"engine_args": {"kv_cache_dtype": "fp8"}}, ""),
        (
            "0.17.1",
            {"tensor_parallel_size": 2, "engine_args": {"kv_cache_dtype": "fp8"}},
            "attention backend triton_mla: kv_cache_dtype fp8 is not among auto",
        ),
        ("0.18.0", {"tensor_parallel_size": 2, "engine_args": {"kv_cache_dtype": "fp8"}}, ""),
    ],
)
def test_heads_and_cache_of_latent_attention(version: str, keys: dict[str, Any], text: str) -> None:
    software = replace(FACTS, vllm=version)
    found = verdict(LITE, software=software, **keys)
    assert bool(found.problems) == bool(text), texts(found.problems)
    assert text in texts(found.problems)


OTHER_NAMES = {**{key: value for key, value in LLAMA_8B.items() if "heads" not in key}, "n_head": 32}


@pytest.mark.parametrize(
    ("config", "software", "keys", "planned"),
    [
        (LLAMA_8B, {}, {}, "aiter_fa"),
        (LLAMA_8B, {}, {"env": {"VLLM_ROCM_USE_AITER": "0"}}, "triton"),
        (LLAMA_8B, {"vllm": "0.9.1+gb432b7a28"}, {}, "triton"),
        (LLAMA_8B, {"vllm": "0.9.1"}, {"env": {"VLLM_USE_V1": "0"}}, "rocm_flash_v0"),
        (LLAMA_8B, {"vllm": "0.32.0"}, {"settings": {"attention_backend": "auto"}}, "rocm_attn"),
        (
            LLAMA_8B,
            {"vllm": "0.32.0"},
            {
                "settings": {"attention_backend": "auto"},
                "env": {"VLLM_ROCM_USE_AITER": "0"},
                "engine_args": {"kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}},
            },
            "aiter_unified",
        ),
        (GPT_OSS_SINKS, {"vllm": "0.32.0"}, {"settings": {"attention_backend": "auto"}}, "aiter_fa"),
        (LITE, {}, {}, "aiter_mla"),
        (LITE, {"vllm": "0.13.0"}, {"env": {"VLLM_ROCM_USE_AITER": "0"}}, "triton_mla"),
        (
            {**LITE, "index_topk": 2048},
            {"vllm": "0.13.0"},
            {"settings": {"attention_backend": "auto"}},
            "aiter_mla_sparse",
        ),
        (LITE, {}, {"env": {"VLLM_MLA_DISABLE": "1"}}, None),  # the shape without it is not known
        (OTHER_NAMES, {}, {}, None),  # its number of heads is not read
        (None, {}, {}, None),
        (LLAMA_8B, {"platform": ""}, {}, None),
        (LLAMA_8B, {"platform": "cpu"}, {}, None),
        (LLAMA_8B, {"vllm": "0.11.1+rocm700"}, {}, "aiter_fa"),
        (LLAMA_8B, {"vllm": "0.11.2.dev364+g1234567"}, {}, None),  # no release
        (LLAMA_8B, {"vllm": "99.0"}, {}, None),
    ],
)  # fmt: skip
def test_the_attention_backend_that_is_claimed(
    config: dict[str, Any] | None, software: dict[str, Any], keys: dict[str, Any], planned: str | None
) -> None:
    more = {"engine_args": {"max_model_len": 8192, **keys.pop("engine_args", {})}, **keys}
    found = verdict(config, software=replace(FACTS, **software), **more)
    assert not found.problems, texts(found.problems)
    assert (found.attention.planned if found.attention else None) == planned


def test_a_model_that_may_not_fit_is_claimed_for_too() -> None:
    found = verdict(LLAMA_8B, PARTITION, engine_args={"max_model_len": 40960})
    assert (found.problems, found.fit and found.fit.fits) == ((), False)
    assert found.attention is not None


def test_an_image_for_other_gpus() -> None:
    software = ImageFacts("r/i:t", "tag", vllm="0.11.1", platform="rocm", gfx=("gfx950",))
    assert "was built for gfx950, and the GPUs are gfx942" in texts(
        verdict(LLAMA_8B, software=software).problems
    )


def test_an_old_driver_is_warned_of() -> None:
    machine = TargetGpu("gfx942", "MI300X", "SPX", "NPS1", 1 << 37, 1 << 37, "6.3.6")
    found = verdict(LLAMA_8B, machine, engine_args={"max_model_len": 8192})
    assert any(text.startswith("amdgpu driver 6.3.6 is older than") for text in found.warnings)


def test_without_a_config_fit_is_said_to_be_unknown() -> None:
    found = verdict(None)
    assert found.fit is None
    assert found.warnings == (
        "could not check whether a/b fits: its config.json is unknown; point model_config at a copy of it on the "
        "control node",
    )


def test_an_image_for_cpu_is_said() -> None:
    software = ImageFacts("r/i:t", "image", vllm="0.32.0+cpu", platform="cpu")
    found = verdict(
        LLAMA_8B, software=software, env={"VLLM_CPU_KVCACHE_SPACE": "1"}, engine_args={"max_model_len": 4096}
    )
    assert found.fit is not None
    assert found.fit.kv_cache_bytes == 1 << 30
    assert found.warnings == ("the image's vLLM is built for CPU, so the GPUs are not used",)


@pytest.mark.parametrize(
    ("version", "args", "name", "value"),
    [
        ("0.19.0", {}, "gpu_memory_utilization", 0.9),
        ("0.20.0", {}, "gpu_memory_utilization", 0.92),
        ("0.11.1", {}, "max_num_seqs", 1024),
        ("0.11.1", {"max_model_len": "128k"}, "max_model_len", 128000),
        ("0.33.0", {"max_model_len": "auto"}, "max_model_len", None),
        ("0.11.1", {"kv_cache_memory_bytes": "4G"}, "kv_cache_memory_bytes", 4 << 30),
        ("0.13.0", {}, "async_scheduling", False),
        ("0.14.0", {}, "async_scheduling", True),
        ("0.14.0", {"async_scheduling": False}, "async_scheduling", False),
        ("0.11.1", {"kv_cache_dtype": "fp8"}, "kv_cache_dtype", "fp8"),
        ("0.11.1", {"enable_prefix_caching": False}, "prefix_caching", False),
        ("0.9.1", {}, "v1", False),
        ("0.9.1", {}, "max_num_batched_tokens", 2048),  # V1's default is larger
        ("0.9.1", {}, "chunked_prefill", None),
        ("0.9.1", {"enable_chunked_prefill": True}, "chunked_prefill", True),
        ("0.9.2", {}, "v1", True),
        ("0.9.2", {}, "max_num_batched_tokens", 8192),
        ("0.9.2", {"enable_chunked_prefill": False}, "chunked_prefill", False),
    ],
)
def test_engine_of(version: str, args: dict[str, Any], name: str, value: Any) -> None:
    wanted = deployment(engine_args=args)
    software = ImageFacts("r/i:t", "tag", vllm=version)
    tuned = tune(wanted, MI300X, software, model_facts("a/b", LLAMA_8B), knowledge())
    assert getattr(engine_of(wanted, MI300X, software, tuned, knowledge()), name) == value


NEW = {**LLAMA_8B, "architectures": ["NewForCausalLM"], "model_type": "new", "hidden_act": "silu"}


def test_an_unknown_architecture_is_a_range_and_neither_refused_nor_promised() -> None:
    whole = verdict(NEW, engine_args={"max_model_len": 8192})
    assert not whole.problems
    assert not whole.warnings
    assert any("Not known here: the architecture NewForCausalLM" in note for note in whole.notes)
    part = verdict({**NEW, "num_hidden_layers": 385}, engine_args={"max_model_len": 8192})
    assert not part.problems
    assert (
        "whether a/b fits is not known: the architecture NewForCausalLM is not known here" in part.warnings[0]
    )
    assert "Start one instance first: vLLM's log says" in part.warnings[0]
    none = verdict({**NEW, "num_hidden_layers": 900}, engine_args={"max_model_len": 8192})
    assert "does not fit: weights" in texts(none.problems)
    assert "or more per GPU" in texts(none.problems)


def test_a_config_without_the_numbers_is_not_sized() -> None:
    found = verdict({"model_type": "rwkv", "state_size": 64, "hidden_size": 64})
    assert (found.fit, found.problems) == (None, ())
    assert (
        "could not check whether a/b fits: its config.json does not have num_hidden_layers"
        in found.warnings[-1]
    )


def test_what_breaks_the_arithmetic_names_deployment_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_unused: Any) -> None:
        raise ZeroDivisionError("integer division or modulo by zero")

    monkeypatch.setattr(feasibility, "model_shape", broken)
    found = verdict(LLAMA_8B)
    assert (found.fit, found.problems) == (None, ())
    assert "could not check whether a/b fits: its size cannot be computed" in found.warnings[-1]
    assert f"(deployment {deployment().name}: integer division" in found.warnings[-1]


@pytest.mark.parametrize(
    ("version", "args", "layers", "said"),
    [
        ("0.33.0", {}, 385, True),
        ("0.33.0", {"max_num_batched_tokens": 16384}, 385, False),
        ("0.27.0", {}, 385, False),
        ("0.33.0", {}, 32, False),
    ],
)
def test_a_default_that_was_doubled_is_told_where_memory_is_tight(
    version: str, args: dict[str, Any], layers: int, said: bool
) -> None:
    """vLLM issue 53961."""
    config = {**LLAMA_8B, "num_hidden_layers": layers}
    found = verdict(
        config,
        software=replace(FACTS, vllm=version),
        recipes=False,
        engine_args={"max_model_len": 8192, **args},
    )
    told = [text for text in found.warnings if "--max-num-batched-tokens 8192" in text]
    assert bool(told) == said
    if said:
        assert "From 0.28.0 on vLLM takes 16384 batched tokens by default" in told[0]
