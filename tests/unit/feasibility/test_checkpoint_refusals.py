# SPDX-License-Identifier: Apache-2.0
"""What a plan refuses about a checkpoint: its quantization, its data types, the format of its configuration.

Each verdict is that of the release's own engine configuration, on a simulated host with MI300X.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.oracles.engine_cases import Case
from tests.oracles.real_engines import plan

GPTQ, AWQ = {"quantization": "gptq"}, {"quantization": "awq"}
EAGLE = {"method": "eagle", "model": "org/eagle", "num_speculative_tokens": 2}


@pytest.mark.parametrize(("version", "model", "flags", "said"), [
    ("0.11.2", "llama-gptq", {}, ""),
    ("0.11.2", "llama-gptq", GPTQ, ""),
    ("0.11.2", "llama-gptq", AWQ, "is quantized with gptq, but quantization is awq"),
    ("0.11.2", "deepseek-v3", GPTQ, "is quantized with fp8, but quantization is gptq"),
    ("0.11.2", "gpt-oss", GPTQ, "is quantized with mxfp4"),
    ("0.21.0", "gpt-oss", {"quantization": "fp8"}, ""),  # a method of its own takes any flag
    ("0.24.0", "gpt-oss", {}, ""),
    ("0.24.0", "llama-awq", {"quantization": "awq_marlin"}, ""),
    ("0.28.0", "llama-gptq", {"quantization": "gptq_marlin"}, ""),  # which auto_gptq runs
    ("0.24.0", "llama-w8a8", {"quantization": "fp8"}, "is quantized with compressed-tensors"),
    ("0.24.0", "llama", {"quantization": "fp8"}, ""),
    ("0.24.0", "llama", AWQ, "no quantize_config.json or quant_config.json"),
    ("0.32.0", "llama", {"quantization": "modelopt"}, "no hf_quant_config.json"),
    ("0.24.0", "llama", {"quantization": "compressed-tensors"}, "no quantization_config"),
    ("0.24.0", "llama", {"quantization": "quark"}, "no quantization_config"),
    ("0.24.0", "llama", {"quantization": "fp8_per_tensor"}, ""),
    ("0.6.3", "llama-gptq", {}, "gptq_marlin, which is not for ROCm. Set quantization: gptq"),
    ("0.6.3", "llama-gptq", GPTQ, ""),
    ("0.11.2", "llama", {"quantization": "bitsandbytes"}, "does not run the quantization method bitsandbytes on ROCm"),
    ("0.24.0", "llama", {"quantization": "hqq"}, "has no quantization method hqq"),
    ("0.24.0", "llama", {"quantization": "fbgemm_fp8"}, "deprecated"),
])  # fmt: skip
def test_quantization(version: str, model: str, flags: dict[str, Any], said: str) -> None:
    found = plan(Case(model, flags, {}), version).problems
    assert bool(found) == bool(said), found
    assert said in " ".join(found)


@pytest.mark.parametrize(("version", "model", "flags", "said"), [
    ("0.11.2", "llama-awq", {"dtype": "bfloat16"}, "float16"),
    ("0.21.0", "llama-awq", {"dtype": "bfloat16"}, ""),  # the kernels of awq_marlin
    ("0.21.0", "llama-awq", {**AWQ, "dtype": "bfloat16"}, "awq does not compute in bfloat16. Set dtype: float16"),
    ("0.21.0", "llama-gptq", {"dtype": "bfloat16"}, "gptq does not compute in bfloat16"),
    ("0.24.0", "llama-gptq", {"dtype": "bfloat16"}, ""),
    ("0.13.0", "llama-fp8", {"dtype": "float"}, "fp8 does not compute in float32"),
    ("0.13.0", "llama-w8a8", {"dtype": "float"}, ""),
    ("0.13.0", "gpt-oss", {"dtype": "half"}, "mxfp4 does not compute in float16. Set dtype: bfloat16"),
    ("0.13.0", "llama", {"dtype": "float"}, ""),
    ("0.21.0", "gemma3", {"dtype": "half"}, "gemma3_text are not stable in float16"),
    ("0.21.0", "gemma3", {"dtype": "float32"}, ""),
    ("0.8.5", "gemma3", {"dtype": "half"}, ""),
])  # fmt: skip
def test_data_types(version: str, model: str, flags: dict[str, Any], said: str) -> None:
    found = plan(Case(model, flags, {}), version).problems
    assert bool(found) == bool(said), found
    assert said in " ".join(found)


@pytest.mark.parametrize(("version", "flags", "said"), [
    ("0.24.0", {"config_format": "hf"}, ""),
    ("0.24.0", {"config_format": "mistrl"}, "no config format mistrl. Did you mean mistral?"),
    ("0.32.0", {"speculative_config": {**EAGLE, "quantization": "foo"}}, "no quantization method foo"),
    ("0.24.0", {"speculative_config": {**EAGLE, "quantization": "fp8"}}, ""),
])  # fmt: skip
def test_formats_and_drafts(version: str, flags: dict[str, Any], said: str) -> None:
    found = plan(Case("llama", flags, {}), version).problems
    assert bool(found) == bool(said), found
    assert said in " ".join(found)
