# SPDX-License-Identifier: Apache-2.0
"""What a plan refuses that the model cannot do: options of other kinds of models, inputs besides text, adapters."""

from __future__ import annotations

from typing import Any

import pytest

from tests.oracles.engine_cases import Case
from tests.oracles.real_engines import plan

ADAPTER = ["a=org/adapter"]
EAGLE = {"method": "eagle3", "model": "org/eagle3", "num_speculative_tokens": 3}
SHARED = "mm_shm_cache_max_object_size_mb"


@pytest.mark.parametrize(("version", "model", "flags", "sizes", "said"), [
    ("0.24.0", "qwen2.5-vl", {"media_io_kwargs": {"video": {"num_frames": 4}}}, {}, ""),
    ("0.24.0", "qwen2.5-vl", {"media_io_kwargs": {"video": 1}}, {}, "video is 1, not a map"),
    ("0.24.0", "qwen2.5-vl", {"limit_mm_per_prompt": {"image": 2}}, {}, ""),
    ("0.24.0", "qwen2.5-vl", {"limit_mm_per_prompt": {"video": {"count": 1, "num_frames": 8}}}, {}, ""),
    ("0.24.0", "qwen2.5-vl", {"limit_mm_per_prompt": {"image": "x"}}, {}, "image is 'x', not a number"),
    ("0.24.0", "qwen2.5-vl", {"limit_mm_per_prompt": {"image": -1}}, {}, "at least 0"),
    ("0.24.0", "llama", {"limit_mm_per_prompt": {"image": -1}}, {}, ""),
    ("0.13.0", "llama", {"allowed_media_domains": [""]}, {}, "empty"),
    ("0.24.0", "qwen2.5-vl", {SHARED: 0}, {}, "mm_processor_cache_type: shm"),
    ("0.24.0", "qwen2.5-vl", {SHARED: 0, "mm_processor_cache_type": "shm"}, {}, ""),
    ("0.24.0", "llama", {SHARED: 0}, {}, ""),
    ("0.28.0", "qwen2.5-vl", {"mm_tensor_ipc": "torch_shm"}, {"tensor_parallel_size": 2}, "only works on one GPU"),
    ("0.28.0", "qwen2.5-vl", {"mm_tensor_ipc": "torch_shm"}, {}, ""),
    ("0.24.0", "llama", {"lora_modules": ADAPTER}, {}, "Set enable_lora: true"),
    ("0.24.0", "llama", {"lora_modules": ADAPTER, "enable_lora": True}, {}, ""),
    ("0.24.0", "llama", {"lora_modules": ["a="], "enable_lora": True}, {}, "a= names no adapter"),
    ("0.13.0", "llama", {"ray_workers_use_nsight": True}, {}, "workers of Ray"),
    ("0.13.0", "llama", {"pooler_config": {}}, {}, "pooling_type"),
    ("0.16.0", "llama", {"pooler_config": {}}, {}, ""),
    ("0.16.0", "llama", {"model_impl": "terratorch"}, {}, "only runs models of TerraTorch"),
    ("0.28.0", "llama", {"use_replayssm": True}, {}, "Nemotron-H"),
    ("0.32.0", "llama", {"engram_config": {"embedding_across_dp": True}}, {}, "n-gram"),
    ("0.24.0", "llama", {"hf_overrides": {"architectures": ["Foo"]}}, {}, "no architecture is called Foo"),
    ("0.24.0", "llama", {"hf_overrides": {"architectures": ["LamaForCausalLM"]}}, {}, "mean LlamaForCausalLM"),
    ("0.24.0", "llama", {"hf_overrides": {"architectures": ["LlamaForSequenceClassification"]}}, {}, ""),
    ("0.11.2", "deepseek-v3", {"disable_sliding_window": True}, {}, "positions are scaled (yarn)"),
    ("0.13.0", "deepseek-v3", {"disable_sliding_window": True}, {}, ""),
    ("0.24.0", "llama", {"speculative_config": EAGLE}, {"pipeline_parallel_size": 2}, "pipeline stages"),
    ("0.24.0", "llama", {"speculative_config": EAGLE}, {}, ""),
    ("0.32.0", "qwen2", {"enable_return_routed_experts": True}, {}, "no experts"),
])  # fmt: skip
def test_what_the_model_cannot_do(
    version: str, model: str, flags: dict[str, Any], sizes: dict[str, int], said: str
) -> None:
    found = plan(Case(model, flags, sizes), version).problems
    assert bool(found) == bool(said), found
    assert said in " ".join(found)
