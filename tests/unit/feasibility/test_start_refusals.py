# SPDX-License-Identifier: Apache-2.0
"""What stops vLLM's server at its start, and is no condition on single arguments."""

from __future__ import annotations

from typing import Any

import pytest

from tests.oracles.engine_cases import Case
from tests.oracles.real_engines import plan

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
EAGLE = {"method": "eagle3", "num_speculative_tokens": 3}
WITH_DRAFT = {**EAGLE, "model": "org/eagle3", "draft_tensor_parallel_size": 2}


@pytest.mark.parametrize(("model", "flags", "said"), [
    ("llama", {"enable_auto_tool_choice": True}, "needs --tool-call-parser"),
    ("llama", {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}, ""),
    ("llama", {"enable_log_outputs": True}, "needs --enable-log-requests"),
    ("llama", {"hf_overrides": [1]}, "is not a map"),
    ("llama", {"hf_overrides": '{"rope_theta": 1e6}'}, ""),
    ("llama", {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}, "layers that draft"),
    ("deepseek-v3", {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}, ""),
    ("llama", {"speculative_config": {"method": "ngram"}}, "no num_speculative_tokens"),
    ("llama", {"speculative_config": EAGLE}, "none is named"),
    ("llama", {"speculative_config": {**NGRAM, "prompt_lookup_min": 5, "prompt_lookup_max": 2}}, "prompt_lookup_min"),
    ("llama", {"speculative_config": WITH_DRAFT}, "draft_tensor_parallel_size is 2"),
    ("llama", {"cudagraph_capture_sizes": [1, 2], "max_cudagraph_capture_size": 8}, "capture_size"),
    ("llama", {"enable_expert_parallel": True}, "no experts"),
    ("mixtral", {"enable_expert_parallel": True}, ""),
    ("qwen2.5-vl", {"video_pruning_rate": 1.5}, "out of range"),
    ("llama", {"video_pruning_rate": 1.5}, ""),
    ("llama", {"num_gpu_blocks_override": ""}, ""),  # the parser reads it as none
    ("llama-awq", {}, ""),
    ("llama-awq", {"dtype": "float32"}, "does not compute in float32"),
])  # fmt: skip
def test_the_plan_says_what_vllm_would(model: str, flags: dict[str, Any], said: str) -> None:
    """Each verdict is that of the release's own engine configuration."""
    found = plan(Case(model, flags, {}), "0.19.0").problems
    assert bool(found) == bool(said), found
    assert said in " ".join(found)
