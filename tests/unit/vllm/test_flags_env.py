# SPDX-License-Identifier: Apache-2.0
"""Which variables a release reads, and what text they take."""

from __future__ import annotations

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.env_vars import check_env
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.findings import (
    BAD_CHOICE,
    BAD_VALUE,
    GONE,
    NO_EFFECT,
    NOT_YET,
    OK,
    UNKNOWN,
)

from tests.worlds.catalogue import knowledge


@pytest.mark.parametrize(
    ("version", "name", "value", "status", "said"),
    [
        ("0.11.0", "VLLM_ROCM_USE_AITER", "1", OK, ""),
        ("0.11.0", "VLLM_ROCM_USE_AITER", "yes", NO_EFFECT, "'yes' is read as false"),
        ("0.8.1", "VLLM_ROCM_USE_AITER", "1", NOT_YET, "from vLLM 0.8.2 on"),
        ("0.11.0", "VLLM_ROCM_FP8_PADDING", "true", BAD_VALUE, "vLLM stops"),
        ("0.11.0", "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "INT5", BAD_CHOICE, "INT4"),
        ("0.15.0", "VLLM_ATTENTION_BACKEND", "ROCM_ATTN", GONE, "--attention-backend"),
        ("0.11.1", "VLLM_USE_V1", "1", GONE, "the only engine"),
        ("0.19.0", "VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION", "1", NO_EFFECT, "attention_backend"),
        ("0.30.0", "VLLM_ROCM_USE_AITER_FP4_ASM_GEMM", "1", GONE, "back from 0.31.0"),
        ("0.31.0", "VLLM_ROCM_USE_AITER_FP4_ASM_GEMM", "1", OK, ""),
        ("0.12.0", "VLLM_RPC_TIMEOUT", "1800000", NO_EFFECT, "VLLM_ENGINE_READY_TIMEOUT_S"),
        ("0.12.0", "VLLM_ROCM_USE_ATIER", "1", UNKNOWN, "Did you mean VLLM_ROCM_USE_AITER?"),
        ("0.12.0", "RCCL_DEBUG", "INFO", NO_EFFECT, "Use NCCL_DEBUG"),
        ("0.12.0", "NCCL_DEBUG", "LOUD", BAD_CHOICE, "WARN"),
        ("0.12.0", "NCCL_MIN_NCHANNELS", "112", OK, ""),
        ("0.12.0", "SOMETHING_ELSE", "x", OK, ""),
        ("0.12.0", "VLLM_HOST_IP", "10.0.0.1", OK, ""),
    ],
)
def test_check_env(version: str, name: str, value: str, status: str, said: str) -> None:
    finding = check_env(knowledge().env(version), name, value)
    assert finding.status == status, finding
    assert said in finding.text()


def test_only_a_refused_text_stops_vllm() -> None:
    table = knowledge().env("0.12.0")
    assert check_env(table, "VLLM_ROCM_MOE_PADDING", "true").is_error
    assert check_env(table, "VLLM_NO_SUCH_THING", "1").is_warning
    assert check_env(table, "VLLM_USE_V1", "0").is_warning


def test_no_message_ends_a_sentence_twice() -> None:
    known = knowledge()
    table = known.env(known.line.releases[-1])
    for name in table.runtime:
        found = check_env(table, name, "1")
        assert not found.what.endswith("."), name
    assert check_env(table, "RCCL_DEBUG", "INFO").text().count("..") == 0
