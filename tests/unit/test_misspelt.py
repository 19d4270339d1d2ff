# SPDX-License-Identifier: Apache-2.0
"""Typos in names of variables are told; names of the operator's own are not."""

from __future__ import annotations

import pytest
from instinct.misspelt import misspelt

KNOWN = ("vllm_deployments", "gpu_partition_memory", "gpu_partition_compute", "offline", "hf_model_token")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("vllm_deployment", "vllm_deployments"),
        ("gpu_partition_memry", "gpu_partition_memory"),
        ("offlin", "offline"),
        ("hf_model_tokens", "hf_model_token"),
        ("ansible_host", ""),
        ("vllm_default_image", ""),
        ("hf_token", ""),
        ("vllm_deployments", ""),
    ],
)
def test_misspelt(name: str, near: str) -> None:
    told = (f"the variable {name} is none of the toolkit's: did you mean {near}?",) if near else ()
    assert misspelt([name], KNOWN) == told
