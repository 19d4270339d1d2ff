# SPDX-License-Identifier: Apache-2.0
"""Typos in names of variables are told; names of the operator's own are not."""

from __future__ import annotations

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.public_variables import (
    public_variables,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.unknown_variables import (
    unknown_extra_variables,
    unknown_variables,
)

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
        ("gpu_partition", ""),
        ("hf_cache_token", ""),
        ("gpu_partition_mem", "gpu_partition_memory"),
        ("vllm_image", ""),
        ("vllm_deployments", ""),
    ],
)
def test_misspelt(name: str, near: str) -> None:
    assert unknown_variables([name], KNOWN) == ({name: near} if near else {})


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("generaton", "generation"),
        ("deploymnt", "deployment"),
        ("instnce", "instance"),
        ("agian", "again"),
        ("canray", "canary"),
        ("serial", "upgrade_serial"),
        ("soak", "upgrade_soak"),
        ("deployment", ""),
        ("stage", ""),
        ("ansible_user", ""),
    ],
)
def test_a_slip_behind_e_is_an_error(name: str, near: str) -> None:
    listed = unknown_extra_variables([name], public_variables())
    assert [f"Did you mean {near}?" in text for text in listed] == ([True] if near else [])
