# SPDX-License-Identifier: Apache-2.0
"""Well-known models: found by name, with the published number of parameters and their quantization."""

from __future__ import annotations

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.catalog.models import known_config
from ansible_collections.instinct.fleet.plugins.plugin_utils.sizing.facts import model_facts
from ansible_collections.instinct.fleet.plugins.plugin_utils.sizing.shape import model_shape

from tests.worlds.catalogue import knowledge


@pytest.mark.parametrize(
    ("repository", "parameters"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8.030e9),
        ("meta-llama/Llama-3.1-70B-Instruct", 70.554e9),
        ("meta-llama/Llama-3.3-70B-Instruct", 70.554e9),
        ("meta-llama/Llama-3.1-405B-Instruct", 405.853e9),
        ("meta-llama/Llama-2-7b-chat-hf", 6.738e9),
        ("meta-llama/Llama-2-13b-chat-hf", 13.016e9),
        ("meta-llama/Llama-2-70b-chat-hf", 68.977e9),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46.703e9),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", 140.63e9),
        ("deepseek-ai/DeepSeek-R1", 671.026e9),
        ("Qwen/Qwen2-72B-Instruct", 72.706e9),
        ("Qwen/Qwen3-32B", 32.762e9),
        ("Qwen/Qwen3-8B", 8.191e9),
        ("Qwen/Qwen3-235B-A22B", 235.094e9),
        ("openai/gpt-oss-120b", 116.83e9),
        ("openai/gpt-oss-20b", 20.91e9),
        ("google/gemma-3-27b-it", 27.009e9),
    ],
)
def test_parameters_as_published(repository: str, parameters: float) -> None:
    config = known_config(knowledge().models, repository)
    assert config is not None
    shape = model_shape(config)
    assert shape.known
    assert shape.parameters == pytest.approx(parameters, rel=0.002)


@pytest.mark.parametrize(
    ("repository", "quantization", "scales"),
    [
        ("amd/Llama-3.1-70B-Instruct-FP8-KV", "quark_fp8", True),
        ("/srv/models/Llama-3.1-70B-Instruct-FP8-KV", "quark_fp8", True),
        ("amd/Llama-3.3-70B-Instruct-MXFP4-Preview", "quark_mxfp4", True),
        ("Qwen/Qwen3-32B-AWQ", "awq", False),
        ("Qwen/Qwen3-235B-A22B-FP8", "fp8", False),
        ("deepseek-ai/DeepSeek-V3", "fp8", False),
        ("openai/gpt-oss-20b", "mxfp4", False),
    ],
)
def test_quantization_by_name(repository: str, quantization: str, scales: bool) -> None:
    facts = model_facts(repository, known_config(knowledge().models, repository))
    assert (facts.quantization, facts.kv_scales) == (quantization, scales)


@pytest.mark.parametrize("repository", ["lab/tiny-llama", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"])
def test_an_unknown_model(repository: str) -> None:
    assert known_config(knowledge().models, repository) is None
