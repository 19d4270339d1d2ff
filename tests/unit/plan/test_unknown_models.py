# SPDX-License-Identifier: Apache-2.0
"""What an offline plan says of models whose config.json is unknown: what their names show, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.plan_world import deployment, plan, problems

OFFLINE: dict[str, Any] = {"offline": True, "instinct_gpus": {"model": "MI300X", "count": 8}}
ASSERTED = ("ptpc-fp8", "quantization-at-start")


def wanted(model: str, **keys: Any) -> list[dict[str, Any]]:
    image = "rocm/vllm:rocm7.0.0_vllm_0.11.1_20251103"
    return [deployment(model=model, image=image, vllm_version="0.11.1", tensor_parallel_size=8, **keys)]


def described(model: str, **keys: Any) -> dict[str, Any]:
    made = plan({"n1": None}, wanted(model, **keys), **OFFLINE)
    found: dict[str, Any] = dict(made.hosts[0].instances[0].described)
    return found


def hints(model: str, **keys: Any) -> set[str]:
    return {item["name"] for item in described(model, **keys)["hints"]}


@pytest.mark.parametrize(
    "model",
    [
        "/path/to/model", "org/some-model", "org/some-model-GPTQ", "RedHatAI/Qwen3-14B-FP8-dynamic", "org/x.w8a8",
        "/models/Llama-3.1-8B-Instruct", "RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16",
    ],
)  # fmt: skip
def test_no_hint_that_a_checkpoint_is_not_quantized(model: str) -> None:
    assert not hints(model).intersection(ASSERTED)


def test_what_the_publisher_does_not_quantize_has_the_hints() -> None:
    assert hints("meta-llama/Llama-3.1-70B-Instruct").issuperset(ASSERTED)


@pytest.mark.parametrize(
    "model",
    [
        "amd/DeepSeek-R1-0528-MXFP4-Preview",
        "amd/Some-Model-MXFP4",
        "/models/Llama-3.3-70B-Instruct-MXFP4",
        "org/m-w-mxfp4",
    ],
)
def test_mxfp4_by_name_is_refused_on_mi300x(model: str) -> None:
    (problem,) = problems({"n1": None}, wanted(model), **OFFLINE)
    assert "MXFP4" in problem
    mi355 = {"offline": True, "instinct_gpus": {"model": "MI355X", "count": 8}}
    assert plan({"n1": None}, wanted(model), **mi355)


def test_mxfp4_of_gpt_oss_runs_on_mi300x() -> None:
    assert described("openai/gpt-oss-120b")["fit"]["fits"]


@pytest.mark.parametrize(
    ("model", "engine_args"),
    [
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16", {"quantization": "gptq"}),
        ("someone/Meta-Llama-3.1-70B-Instruct", {"quantization": "gptq"}),
        ("someone/Meta-Llama-3.1-70B-Instruct-int4", {}),
    ],
)
def test_the_weights_of_a_quantized_70b(model: str, engine_args: dict[str, Any]) -> None:
    fit = described(model, engine_args=engine_args)["fit"]
    assert 8 * fit["weights_bytes_per_gpu"] < 45 << 30


def test_did_you_mean() -> None:
    warnings = described("meta-llama/Lama-3.1-8B-Instruct")["warnings"]
    assert any("did you mean meta-llama/Llama-3.1-8B-Instruct" in text for text in warnings)
    assert not any("did you mean" in text for text in described("org/some-model")["warnings"])


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"model": "Llama-3.1-8B-Instruct"}, "model"),
        ({"engine_args": {"tokenizer": "gpt2"}}, "engine_args.tokenizer"),
        ({"settings": {"speculative": {"model": "Llama-3.2-1B", "num_speculative_tokens": 3}}},
         "settings.speculative.model"),
    ],
)  # fmt: skip
def test_a_name_without_its_organisation_is_refused(keys: dict[str, Any], path: str) -> None:
    found = problems({"n1": None}, [{**wanted("org/model")[0], **keys}], **OFFLINE)
    assert any(f"vllm_deployments[0].{path}" in text and "organisation/name" in text for text in found)
