# SPDX-License-Identifier: Apache-2.0
"""What vLLM's engine configuration would refuse after its parser is refused in the plan, per release."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.tuning.test_feasibility import FACTS, LLAMA_8B, verdict

PADDED = {"method": "ngram", "num_speculative_tokens": 3, "disable_padded_drafter_batch": True}


def refused(release: str, config: dict[str, Any] | None = None, **keys: Any) -> list[str]:
    found = verdict(
        LLAMA_8B if config is None else config, software=replace(FACTS, vllm=release), recipes=False, **keys
    )
    return [problem.text() for problem in found.problems]


@pytest.mark.parametrize(
    ("release", "args", "text"),
    [
        (
            "0.11.2",
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192},
            "max_num_batched_tokens 8192 is below",
        ),
        (
            "0.33.0",
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192},
            "max_num_batched_tokens 8192 is below",
        ),
        (
            "0.33.0",
            {"max_num_active_seqs": 64, "max_num_seqs": 32},
            "max_num_active_seqs 64 is above max_num_seqs 32",
        ),
        ("0.33.0", {"enable_eplb": True}, "enable_expert_parallel is off"),
        ("0.33.0", {"kv_transfer_config": {"kv_connector": "NixlConnector"}}, "kv_role"),
        ("0.33.0", {"ec_transfer_config": {"ec_connector": "X"}}, "ec_role"),
        ("0.33.0", {"profiler_config": {"torch_profiler_dir": "/tmp/x"}}, "profiler"),
        ("0.33.0", {"watermark": 1.5}, "watermark 1.5 is not below 1"),
        ("0.33.0", {"stream_interval": 0}, "stream_interval 0 is below 1"),
        ("0.11.2", {"async_scheduling": True, "speculative_config": PADDED}, "async_scheduling is on"),
        ("0.33.0", {"numa_bind_nodes": [0]}, "numa_bind is off"),
        (
            "0.33.0",
            {"enable_lora": True, "max_loras": 8, "max_cpu_loras": 4},
            "max_cpu_loras 4 is below max_loras 8",
        ),
        ("0.33.0", {"collect_detailed_traces": ["all"]}, "otlp_traces_endpoint"),
        ("0.33.0", {"decode_context_parallel_size": 3}, "decode_context_parallel_size"),
    ],
)
def test_what_the_engine_configuration_refuses(release: str, args: dict[str, Any], text: str) -> None:
    found = refused(release, engine_args=args)
    assert any(text in item for item in found), found


@pytest.mark.parametrize(
    ("release", "args"),
    [
        ("0.11.2", {"enable_chunked_prefill": False, "max_num_batched_tokens": 131072}),
        ("0.33.0", {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192, "max_model_len": 8192}),
        ("0.33.0", {"max_num_active_seqs": 16, "max_num_seqs": 32}),
        ("0.33.0", {"kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}}),
        ("0.33.0", {"enable_lora": True, "max_loras": 4}),
        ("0.33.0", {"async_scheduling": True}),
        ("0.33.0", {"max_cpu_loras": 4, "max_loras": 8}),
        ("0.8.5", {}),
        ("0.6.3", {"max_num_seqs": 64}),
    ],
)
def test_what_it_takes(release: str, args: dict[str, Any]) -> None:
    assert refused(release, engine_args=args) == []
