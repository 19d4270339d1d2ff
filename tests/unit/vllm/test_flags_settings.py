# SPDX-License-Identifier: Apache-2.0
"""Neutral settings, in every release."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.env_vars import check_env
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.findings import errors
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.flags import check
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.settings import (
    RenderedSetting,
    render_setting,
)

from tests.oracles.vllm_parser import check_argv
from tests.worlds.catalogue import knowledge, render_settings, to_argv
from tests.worlds.setting_values import MAPS, values

RELEASES = knowledge().line.releases


def rendered(version: str, *settings: tuple[str, Any]) -> RenderedSetting:
    return render_settings(knowledge().book(version), settings)


@pytest.mark.parametrize("name", knowledge().settings)
def test_what_is_rendered_is_accepted(name: str) -> None:
    """Every setting, every value, every release: the flags and variables that come out are valid there."""
    assert values(name), f"{name} has no example here"
    reported = 0
    for release in RELEASES:
        book = knowledge().book(release)
        for value in values(name):
            found = render_setting(book, name, value)
            for flag, item in found.args.items():
                assert not check(book.flags, flag, item).is_error, (
                    f"{release}: {check(book.flags, flag, item)}"
                )
            argv = ["m", *to_argv(book.flags, found.args)]
            assert not errors(check_argv(book.flags, argv)), f"{release}: {argv}"
            for variable, text in found.env.items():
                finding = check_env(book.env, variable, text)
                assert finding.status in ("ok", "no effect"), f"{release}: {finding}"
            reported += bool(found.args or found.env)
            for finding in found.findings:
                assert finding.what
                assert finding.is_error != bool(
                    knowledge().settings[name].get("optional") or finding.harmless
                )
    assert reported, f"{name} never becomes anything"


@pytest.mark.parametrize(
    ("version", "name", "value", "argv", "env"),
    [
        ("0.6.3", "log_requests", False, ["--disable-log-requests"], {}),
        ("0.10.1", "log_requests", False, [], {}),
        ("0.10.1", "log_requests", True, ["--enable-log-requests"], {}),
        ("0.6.3", "prefix_caching", False, [], {}),
        ("0.6.5", "prefix_caching", False, ["--no-enable-prefix-caching"], {}),
        ("0.8.4", "chunked_prefill", False, ["--enable-chunked-prefill", "False"], {}),
        ("0.8.5", "chunked_prefill", False, ["--no-enable-chunked-prefill"], {}),
        ("0.33.0", "async_scheduling", False, ["--no-async-scheduling"], {}),
        ("0.9.1", "graph_mode", "FULL", ["--compilation-config", '{"full_cuda_graph":true}'], {}),
        ("0.9.1", "graph_mode", "NONE", ["--enforce-eager"], {}),
        ("0.11.0", "graph_mode", "FULL", ["--compilation-config", '{"cudagraph_mode":"FULL"}'], {}),
        (
            "0.10.2",
            "attention_backend",
            "aiter_fa",
            [],
            {"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_USE_AITER_MHA": "1"},
        ),
        (
            "0.19.0",
            "attention_backend",
            "aiter_fa",
            ["--attention-backend", "ROCM_AITER_FA"],
            {"VLLM_ROCM_USE_AITER": "1"},
        ),
        (
            "0.18.0",
            "quantization",
            "ptpc_fp8",
            ["--quantization", "ptpc_fp8", "--allow-deprecated-quantization"],
            {},
        ),
        ("0.24.0", "quantization", "ptpc_fp8", ["--quantization", "fp8_per_channel"], {}),
        ("0.9.1", "engine", "V1", [], {"VLLM_USE_V1": "1"}),
        ("0.9.2", "engine", "V1", [], {}),
        (
            "0.8.1",
            "speculative",
            MAPS["speculative"],
            ["--speculative-model", "m", "--num-speculative-tokens", "2"],
            {},
        ),
        ("0.11.0", "all2all", "naive", [], {"VLLM_ALL2ALL_BACKEND": "naive"}),
        ("0.11.1", "all2all", "naive", ["--all2all-backend", "naive"], {}),
        ("0.7.3", "custom_ops", ["-rms_norm"], ["--compilation-config", "{'custom_ops': ['-rms_norm']}"], {}),
        ("0.33.0", "custom_all_reduce", False, ["--disable-custom-all-reduce"], {}),
        ("0.33.0", "triton_buffer_ops", False, [], {"AMDGCN_USE_BUFFER_OPS": "0"}),
    ],
)
def test_forms(version: str, name: str, value: Any, argv: list[str], env: dict[str, str]) -> None:
    found = rendered(version, (name, value))
    assert to_argv(knowledge().flags(version), found.args) == argv
    assert dict(found.env) == env
    assert found.findings == ()


@pytest.mark.parametrize(
    ("version", "name", "value", "error", "said"),
    [
        ("0.9.1", "async_scheduling", True, False, "from vLLM 0.10.0 on, and this is 0.9.1"),
        ("0.10.1", "scheduler_steps", 8, False, "before vLLM 0.10.1"),
        ("0.11.0", "engine", "V0", True, "before vLLM 0.11.0"),
        ("0.28.0", "kv_scales", "calculated", False, "before vLLM 0.28.0"),
        ("0.8.1", "aiter", True, False, "from vLLM 0.8.2 on"),
        ("0.7.3", "expert_parallel", True, True, "came with vLLM 0.8.0"),
        ("0.20.0", "quantization", "ptpc_fp8", False, "per-tensor FP8"),
        ("0.7.3", "block_size", 1, True, "1 is not valid in vLLM 0.7.3"),
        ("0.20.0", "graph_mode", "HALF", True, "'HALF' is not valid"),
        ("0.20.0", "max_num_seqs", "many", True, "must be int"),
        ("0.20.0", "max_num_seqs", True, True, "must be int"),
        ("0.20.0", "async_schedulling", True, True, "Did you mean async_scheduling?"),
        ("0.20.0", "speculative", {"modle": "m"}, True, "no key modle"),
    ],
)
def test_what_cannot_be_said(version: str, name: str, value: Any, error: bool, said: str) -> None:
    findings = rendered(version, (name, value)).findings
    assert len(findings) == 1
    assert findings[0].is_error == error
    assert said in findings[0].text()


def test_settings_of_one_flag_are_put_together() -> None:
    found = rendered(
        "0.19.0", ("graph_mode", "FULL"), ("custom_ops", ["-rms_norm"]), ("fuse_rope_kvcache", True),
        ("inductor_graph_partition", True),
    )  # fmt: skip
    assert found.args["--compilation-config"] == {
        "cudagraph_mode": "FULL",
        "custom_ops": ["-rms_norm"],
        "pass_config": {"fuse_rope_kvcache": True},
        "use_inductor_graph_partition": True,
    }
    assert not found.findings


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(AssertionError, match="VLLM_ROCM_USE_AITER', wanted='1', held='0'"):
        rendered("0.11.0", ("aiter", False), ("attention_backend", "aiter_fa"))
