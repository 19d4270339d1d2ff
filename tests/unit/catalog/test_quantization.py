# SPDX-License-Identifier: Apache-2.0
"""Which method runs a checkpoint: as the catalogue has it, and as it is read out of sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.quantization import (
    method_of,
    quantization_config,
)

from catalog.tools.architectures import architectures
from catalog.tools.quantization import checkpoints, quantization
from catalog.tools.sources import Sources
from tests.worlds.catalogue import knowledge

QUANTIZATION = "vllm/model_executor/layers/quantization"
FILES = {
    f"{QUANTIZATION}/__init__.py": """
from typing import Literal
QuantizationMethods = Literal["fp8", "gptq", "gptq_marlin", "inc"]
DEPRECATED_QUANTIZATION_METHODS = ["inc"]
def get_quantization_config(quantization):
    from .fp8 import Fp8Config
    from .gptq import GPTQConfig, Marlin
    known = {"fp8": Fp8Config, "gptq": GPTQConfig, "gptq_marlin": Marlin}
    return known[quantization]
""",
    f"{QUANTIZATION}/fp8.py": """
class Fp8Config:
    def __init__(self, scheme="dynamic"): ...
    def get_supported_act_dtypes(self): return [torch.bfloat16, torch.half]
    @staticmethod
    def get_config_filenames(): return []
""",
    f"{QUANTIZATION}/gptq.py": """
class GPTQConfig:
    def __init__(self, bits, group_size): ...
    @classmethod
    def get_supported_act_dtypes(cls): return [torch.half]
    @classmethod
    def get_config_filenames(cls): return ["quantize_config.json"]
    @classmethod
    def override_quantization_method(cls, config, user): return None
class Marlin(GPTQConfig):
    TYPES = {4: scalar_types.uint4}
    @classmethod
    def override_quantization_method(cls, config: dict[str, Any], user) -> str | None:
        if not current_platform.is_cuda_alike() or config.get("bits") not in cls.TYPES:
            return None
        return "gptq_marlin" if config["quant_method"] == "gptq" and user in (None, "gptq_marlin") else None
""",
    "vllm/config/__init__.py": """
class ModelConfig:
    def _verify_quantization(self):
        overrides = ["gptq_marlin"]
""",
    "vllm/platforms/rocm.py": """
class RocmPlatform:
    supported_quantization: list[str] = ["fp8", "gptq", "gptq_marlin"]
""",
    "vllm/model_executor/models/registry.py": """
_TEXT_GENERATION_MODELS = {"LlamaForCausalLM": ("llama", "LlamaForCausalLM")}
_PREVIOUSLY_SUPPORTED_MODELS = {"OldForCausalLM": "0.9.0"}
""",
}


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """A package that is like vLLM where this looks."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Sources(tmp_path / "vllm")


def test_reading_methods(sources: Sources) -> None:
    found = quantization(sources)
    gptq = {"files": ["quantize_config.json"], "dtypes": ["float16"], "unquantized": False}
    assert found["gptq"] == {"rocm": True, "deprecated": False, **gptq}
    assert found["gptq_marlin"] == found["gptq"]  # inherits it
    assert found["fp8"]["unquantized"]
    assert found["fp8"]["dtypes"] == ["bfloat16", "float16"]
    assert found["inc"] == {"rocm": False, "deprecated": True, "unquantized": True}  # nothing is known of it


def test_reading_which_method_runs_a_checkpoint(sources: Sources) -> None:
    runs = {"": "gptq_marlin", "gptq": "gptq", "gptq_marlin": "gptq_marlin"}
    assert checkpoints(sources) == {"gptq": {"runs": runs}}


def test_reading_architectures(sources: Sources) -> None:
    assert architectures(sources) == {"LlamaForCausalLM": {}}


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quant_method": "compressed_tensors"}, "compressed-tensors"),
        ({"quant_method": "FP8"}, "fp8"),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}, "modelopt_fp4"),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}, "modelopt"),
        ({}, ""),
    ],
)
def test_the_method_that_a_checkpoint_names(config: dict[str, Any], method: str) -> None:
    assert method_of(config) == method


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_where_quantization_is_looked_for(key: str) -> None:
    found = {"quant_method": "fp8"}
    assert quantization_config({key: found}) == quantization_config({"text_config": {key: found}}) == found
    assert quantization_config({"text_config": None}) is None


@pytest.mark.parametrize(("version", "algorithm", "wanted", "method"), [
    ("0.19.0", "FP8", "", "petit_nvfp4"),
    ("0.20.0", "FP8", "", "modelopt"),
    ("0.24.0", "FP8", "awq", "modelopt"),
    ("0.24.0", "NVFP4", "", "modelopt_fp4"),
    ("0.24.0", "MXFP8", "", None),
    ("0.25.0", "MXFP8", "", "modelopt_mxfp8"),
])  # fmt: skip
def test_modelopt(version: str, algorithm: str, wanted: str, method: str | None) -> None:
    found = knowledge().quantization(knowledge().release(version))
    assert found.running({"quant_method": "modelopt", "quant_algo": algorithm}, "llama", wanted) == method
