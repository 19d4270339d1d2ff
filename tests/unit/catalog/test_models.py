# SPDX-License-Identifier: Apache-2.0
"""Well-known models: found by name, with the published number of parameters and their quantization."""

from __future__ import annotations

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.facts import model_facts
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.models import (
    named_model,
    nearest_names,
)

from tests.worlds.catalogue import knowledge, model_shape


@pytest.mark.parametrize(
    ("repository", "parameters"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8.030e9),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 8.030e9),
        ("meta-llama/Meta-Llama-3-70B", 70.554e9),
        ("meta-llama/Llama-3.1-70B-Instruct", 70.554e9),
        ("meta-llama/Llama-3.2-1B-Instruct", 1.236e9),
        ("meta-llama/Llama-3.2-3B", 3.213e9),
        ("meta-llama/Llama-3.3-70B-Instruct", 70.554e9),
        ("meta-llama/Llama-3.1-405B-Instruct", 405.853e9),
        ("meta-llama/Llama-Guard-3-8B", 8.030e9),
        ("meta-llama/Llama-2-7b-chat-hf", 6.738e9),
        ("meta-llama/Llama-2-13b-chat-hf", 13.016e9),
        ("meta-llama/Llama-2-70b-chat-hf", 68.977e9),
        ("meta-llama/Llama-4-Scout-17B-16E", 108.642e9),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 108.642e9),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 401.584e9),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46.703e9),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", 140.63e9),
        ("mistralai/Mixtral-8x22B-v0.1", 140.62e9),
        ("deepseek-ai/DeepSeek-R1", 671.026e9),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 8.030e9),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", 8.191e9),
        ("Qwen/Qwen2-7B-Instruct", 7.616e9),
        ("Qwen/Qwen2-72B-Instruct", 72.706e9),
        ("Qwen/Qwen2-72B", 72.706e9),
        ("Qwen/Qwen3-32B", 32.762e9),
        ("Qwen/Qwen3-8B", 8.191e9),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 30.532e9),
        ("Qwen/Qwen3-235B-A22B", 235.094e9),
        ("openai/gpt-oss-120b", 116.83e9),
        ("openai/gpt-oss-20b", 20.91e9),
        ("google/gemma-3-27b-it", 27.009e9),
    ],
)
def test_parameters_as_published(repository: str, parameters: float) -> None:
    config = named_model(knowledge().models, repository).config
    assert config is not None
    shape = model_shape(config)
    assert shape.known
    vision = 0.01 if "vision_config" in config else 0.002  # a tower is estimated
    assert shape.parameters == pytest.approx(parameters, rel=vision)


@pytest.mark.parametrize(
    "repository",
    [
        "amd/Llama-3.1-8B-Instruct-FP8-KV",
        "amd/Llama-3.1-70B-Instruct-FP8-KV",
        "amd/Llama-3.1-405B-Instruct-FP8-KV",
        "amd/Llama-3.1-405B-Instruct-MXFP4-Preview",
        "amd/Llama-3.3-70B-Instruct-FP8-KV",
        "amd/Llama-3.3-70B-Instruct-MXFP4-Preview",
        "amd/Mixtral-8x7B-Instruct-v0.1-FP8-KV",
        "amd/Mixtral-8x22B-Instruct-v0.1-FP8-KV",
        "amd/DeepSeek-R1-0528-MXFP4-Preview",
        "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4",
        "RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16",
        "/data/Meta-Llama-3-8B-Instruct-FP8-KV",
    ],
)
def test_the_shapes_of_the_documents_other_models_are_known(repository: str) -> None:
    assert named_model(knowledge().models, repository).config is not None


@pytest.mark.parametrize(
    ("repository", "quantization", "scales"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "none", False),
        ("amd/Llama-3.1-70B-Instruct-FP8-KV", "fp8", True),
        ("/srv/models/Llama-3.1-70B-Instruct-FP8-KV", "fp8", True),
        ("amd/Mixtral-8x22B-Instruct-v0.1-FP8-KV", "fp8", True),
        ("amd/Llama-3.3-70B-Instruct-FP8-KV", "unknown_fp8", True),
        ("amd/Llama-3.1-8B-Instruct-FP8-KV-Quark-test", "quark_fp8", True),
        ("amd/Llama-3.2-1B-Instruct-FP8-KV", "unknown_fp8", True),  # nobody has looked at its label
        ("amd/Some-New-Model-FP8-KV", "unknown_fp8", True),
        ("amd/Llama-3.3-70B-Instruct-MXFP4-Preview", "quark_mxfp4", True),
        ("amd/DeepSeek-R1-0528-MXFP4-Preview", "quark_mxfp4", True),
        ("/models/DeepSeek-V3-MXFP4", "unknown_mxfp4", None),
        ("org/some-model-w-MXFP4", "unknown_mxfp4", None),
        ("unsloth/gpt-oss-20b-MXFP4", "mxfp4", False),
        ("Qwen/Qwen3-32B-AWQ", "awq", False),
        ("Qwen/Qwen3-235B-A22B-FP8", "fp8", False),
        ("Qwen/Qwen3-235B-A22B-GPTQ-Int4", "gptq", False),
        ("RedHatAI/Qwen3-32B-FP8-dynamic", "unknown_fp8", None),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16", "gptq", False),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "unknown_int8", None),
        ("deepseek-ai/DeepSeek-V3", "fp8", False),
        ("other/DeepSeek-V3-BF16", "none", False),
        ("openai/gpt-oss-20b", "mxfp4", False),
        ("someone/Llama-3.1-8B-Instruct", "unknown", None),
        ("/models/Llama-3.1-8B-Instruct", "unknown", None),
        ("org/model", "unknown", None),
        ("/path/to/model", "unknown", None),
    ],
)
def test_quantization_by_name(repository: str, quantization: str, scales: bool | None) -> None:
    found = named_model(knowledge().models, repository)
    facts = model_facts(repository, found.config, found.quantization)
    assert (facts.quantization, facts.kv_scales) == (quantization, scales)


@pytest.mark.parametrize(
    ("repository", "method", "quantization"),
    [
        ("org/model", "gptq", "gptq"),
        ("org/model-int8", "gptq", "gptq"),
        ("org/model-w4a16", "compressed-tensors", "compressed_tensors"),
        ("org/model-MXFP4", "quark", "quark_mxfp4"),
        ("org/model-MXFP4", "compressed-tensors", "compressed_tensors"),
        ("org/model-FP8", "quark", "quark_fp8"),
        ("org/model", "quark", "unknown"),
        ("org/model", "fp8", "unknown"),  # an unquantized one would be quantized at the start
        ("org/model-AWQ", "awq_marlin", "awq"),
        ("meta-llama/Llama-3.1-8B", "awq", "none"),  # its publisher's own files are not
    ],
)
def test_the_flag_says_what_the_name_does_not(repository: str, method: str, quantization: str) -> None:
    found = named_model(knowledge().models, repository, method)
    assert model_facts(repository, found.config, found.quantization).quantization == quantization


@pytest.mark.parametrize(
    ("repository", "method", "gigabytes"),
    [
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16", "", 39.8),  # the size of its file on the hub
        ("someone/Meta-Llama-3.1-70B-Instruct-w4a16", "gptq", 39.8),
        ("someone/Meta-Llama-3.1-70B-Instruct", "gptq", 39.8),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "", 39.8),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8", "", 72.7),
        ("amd/Llama-3.1-8B-Instruct-FP8-KV", "", 9.08),  # its files on the hub
    ],
)
def test_a_name_decides_the_size_of_the_weights(repository: str, method: str, gigabytes: float) -> None:
    config = named_model(knowledge().models, repository, method).config
    assert config is not None
    assert model_shape(config).stored_total / 1e9 == pytest.approx(gigabytes, rel=0.02)


@pytest.mark.parametrize(
    "repository", ["lab/tiny-llama", "deepseek-ai/DeepSeek-V3.2", "deepseek-ai/DeepSeek-VL2"]
)
def test_an_unknown_model(repository: str) -> None:
    assert named_model(knowledge().models, repository).config is None


@pytest.mark.parametrize(
    ("repository", "near"),
    [
        ("meta-llama/Lama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("meta-llama/Llama-3.1-8B-Instrct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("meta-lama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("deepseek/DeepSeek-R1", "deepseek-ai/DeepSeek-R1"),
        ("amd/Lama-3.1-70B-Instruct-FP8-KV", "amd/Llama-3.1-70B-Instruct-FP8-KV"),
    ],
)
def test_a_misspelt_name(repository: str, near: str) -> None:
    assert nearest_names(knowledge().models, repository)[0] == near


@pytest.mark.parametrize(
    "repository",
    [
        "meta-llama/Llama-3.1-8B",
        "unsloth/Llama-3.1-8B-Instruct",
        "lab/tiny-llama",
        "/models/Lama-3.1-8B",
        "Qwen/Qwen3-8B-AWQ",
    ],
)
def test_a_name_that_needs_no_correction(repository: str) -> None:
    assert nearest_names(knowledge().models, repository) == ()
