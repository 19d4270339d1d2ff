# SPDX-License-Identifier: Apache-2.0
"""Values of flags and variables that the plan's arithmetic reads: a text in place of a number never ends a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.facts import model_facts
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.deployment import (
    Deployment,
    parse_deployments,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.feasibility.engine_arguments import (
    engine_of,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.feasibility.feasibility import (
    Feasibility,
    KnownModel,
    check_feasibility,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.tune import TunedSettings, tune
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.unit.feasibility.test_feasibility import FACTS, LLAMA_8B
from tests.worlds.catalogue import knowledge
from tests.worlds.tune_world import MI300X, deployment

NUMBERS = (
    "block_size", "decode_context_parallel_size", "gpu_memory_utilization", "kv_cache_memory_bytes",
    "max_model_len", "max_num_batched_tokens", "max_num_seqs", "num_gpu_blocks_override",
)  # fmt: skip
OTHERS = (
    "async_scheduling", "compilation_config", "dtype", "enable_chunked_prefill", "enable_prefix_caching",
    "hf_overrides", "kv_cache_dtype", "lora_modules", "quantization", "speculative_config", "O",
)  # fmt: skip
VARIABLES = (
    "VLLM_CPU_KVCACHE_SPACE", "VLLM_ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB", "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION",
)  # fmt: skip
UNKNOWN = "9.9"
"""A release that the catalogue does not have: a value that looks wrong is a warning there."""
TEXTS = st.one_of(
    st.sampled_from((
        "", "None", "none", "auto", "AUTO", "-1", "0", "1e3", "1_000", "0.5", "1.5K", " 4G ", "4g", "²", "٣", "nan",
        "inf", "1e999", "9" * 400 + "k", "9" * 5000, "9" * 5000 + "K", "[" * 100_000, "{", "true", "null", "FP",
    )),
    st.from_regex(r"[-+ ]?[0-9]{0,4}([.e][0-9]{0,3})?[kKmMgGtTxX]? ?", fullmatch=True),
    st.text(max_size=6),
)  # fmt: skip


def judge(wanted: Deployment, version: str, platform: str = "rocm") -> tuple[TunedSettings, Feasibility]:
    """What a plan says of a deployment."""
    software = replace(FACTS, vllm=version, platform=platform)
    model = model_facts(wanted.model, LLAMA_8B)
    tuned = tune(wanted, MI300X, software, model, knowledge())
    known = KnownModel(model, LLAMA_8B, "a test")
    return tuned, check_feasibility(wanted, MI300X, software, tuned, known, knowledge())


@pytest.mark.parametrize(
    ("key", "name"),
    [*(("engine_args", name) for name in (*NUMBERS, *OTHERS)), *(("env", name) for name in VARIABLES)],
)
@settings(max_examples=25)
@given(TEXTS, st.sampled_from(("0.9.1", "0.11.1", "0.33.0", UNKNOWN)), st.sampled_from(("rocm", "cpu")))
def test_no_text_ends_a_plan(key: str, name: str, text: str, version: str, platform: str) -> None:
    """It is what vLLM makes of it, or refused with its place, or in a warning where the release is not known."""
    values = {"env": {"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "FP"}, "engine_args": {}}
    values[key][name] = text
    found, problems = parse_deployments([{"name": "m", "model": "a/b", "image": "r/i:t", **values}])
    assume(not problems)
    tuned, _verdict = judge(found[0], version, platform)
    assert all(problem.path[2:4] == (key, name) for problem in tuned.problems)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("words", ["", "None"])
def test_no_value_in_words_is_the_default(name: str, words: str) -> None:
    """Where vLLM's parser takes them; elsewhere they are refused."""
    wanted = deployment(engine_args={name: words}, recipes=False)
    tuned, _verdict = judge(wanted, "0.33.0")
    if tuned.problems:
        assert "is not a " in tuned.problems[0].text()
        return
    default, _verdict = judge(deployment(recipes=False), "0.33.0")
    engines = (engine_of(wanted, MI300X, FACTS, item, knowledge()) for item in (tuned, default))
    assert next(engines) == next(engines)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("gpu_memory_utilization", "nan", "nan is out of range. It is the part of a GPU's memory"),
        ("max_model_len", "9" * 400 + "k", "is too large"),
        ("kv_cache_memory_bytes", "some", "'some' is not a whole number"),
        ("max_num_seqs", "²", "'²' is not a whole number"),
        ("speculative_config", "[" * 100_000, "is not JSON"),
    ],
)
def test_what_is_no_number_is_refused_with_its_place(name: str, value: Any, text: str) -> None:
    tuned, _verdict = judge(deployment(engine_args={name: value}), "0.33.0")
    assert text in tuned.problems[0].text()
    assert f"engine_args.{name}" in tuned.problems[0].text()


@pytest.mark.parametrize(("name", "value"), [("max_num_seqs", "many"), ("gpu_memory_utilization", "most")])
def test_an_unknown_release_may_know_better(name: str, value: str) -> None:
    tuned, verdict = judge(deployment(engine_args={name: value}), UNKNOWN)
    assert not tuned.problems
    assert not verdict.problems
    assert verdict.fit is None
    assert any(
        f"could not check whether a/b fits: {name}: {value!r} is not a" in text for text in verdict.warnings
    )
