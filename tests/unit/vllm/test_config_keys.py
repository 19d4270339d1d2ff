# SPDX-License-Identifier: Apache-2.0
"""Keys and values inside the JSON of flags, for every configuration class that vLLM validates."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.findings import (
    BAD_CHOICE,
    BAD_VALUE,
    NO_EFFECT,
    OK,
    UNKNOWN,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.flags import check
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.value_types import (
    choices,
    mismatch,
)

from tests.worlds.catalogue import knowledge


def test_every_flag_with_a_configuration_class_is_known() -> None:
    """A class that the parser itself reads is in configs.json, so that no key in it goes unchecked."""
    table = knowledge().flags("0.33.0")
    wanted = [name for name, flag in table.flags.items() if flag.type.rstrip("?") == "config"]
    assert len(wanted) >= 20
    assert [name for name in wanted if not table.configs.fields(table.configs.of_flag(name) or "")] == []


@pytest.mark.parametrize(
    "flag",
    [
        "aux_output_config", "fault_tolerance_config", "ec_manager_config", "ec_transfer_config", "engram_config",
        "ir_op_priority", "logging_config", "pooler_config", "profiler_config", "quantization_config",
        "reasoning_config", "weight_transfer_config", "watchdog_config", "kv_events_config", "eplb_config",
        "kernel_config", "attention_config", "structured_outputs_config",
    ],
)  # fmt: skip
def test_unknown_keys_are_refused_in_every_class(flag: str) -> None:
    found = check(knowledge().flags("0.33.0"), flag, {"no_such_key": 1})
    assert found.is_error
    assert found.status == UNKNOWN
    assert "no_such_key" in found.subject


@pytest.mark.parametrize(
    ("release", "flag", "value", "status", "text"),
    [
        ("0.33.0", "pooler_config", {"pooling_type": "CLZ"}, BAD_CHOICE, "Did you mean CLS?"),
        ("0.33.0", "pooler_config", {"task": "embed"}, OK, ""),
        ("0.15.0", "pooler_config", {"dimensionz": 3}, NO_EFFECT, "silently drops"),
        ("0.33.0", "kv_transfer_config", {"kv_connector": "X", "kv_role": "kv_bot"}, BAD_CHOICE, "kv_both"),
        ("0.33.0", "kv_transfer_config", {"kv_connector": "X", "kv_role": "kv_both"}, OK, ""),
        ("0.33.0", "kv_transfer_config", {"kv_connector": "X", "kv_port": "abc"}, BAD_VALUE, "whole number"),
        ("0.33.0", "eplb_config", {"window_size": 0}, BAD_VALUE, "not above 0"),
        ("0.33.0", "reasoning_config", {"reasoning_start_str": 3}, BAD_VALUE, "not text"),
        ("0.33.0", "profiler_config", {"profiler": "torche"}, BAD_CHOICE, "torch"),
        ("0.33.0", "speculative_config", {"draft_load_config": 1}, BAD_VALUE, "not a map"),
        ("0.33.0", "speculative_config", {"draft_load_config": {}}, OK, ""),
        ("0.33.0", "attention_config", {"backend": "TRITON_ATN"}, BAD_CHOICE, "TRITON_ATTN"),
        ("0.33.0", "attention_config", {"backend": "triton_attn"}, OK, ""),
        (
            "0.33.0",
            "compilation_config",
            {"cudagraph_mode": "full_decode_onli"},
            BAD_CHOICE,
            "FULL_DECODE_ONLY",
        ),
        ("0.33.0", "compilation_config", {"cudagraph_mode": 3.5}, BAD_VALUE, "refuses"),
        (
            "0.33.0",
            "compilation_config",
            {"cudagraph_capture_sizes": ["a"]},
            BAD_VALUE,
            "list of whole numbers",
        ),
        ("0.33.0", "compilation_config", {"cudagraph_capture_sizes": ["8", 16]}, OK, ""),
        (
            "0.33.0",
            "compilation_config",
            {"pass_config": {"fuse_norm_quant": "maybe"}},
            BAD_VALUE,
            "true or false",
        ),
        ("0.33.0", "kernel_config", {"moe_backend": "AITER"}, OK, ""),
        ("0.33.0", "kernel_config", {"moe_backend": "aitr"}, BAD_CHOICE, "aiter"),
        ("0.12.0", "speculative_config", {"num_speculative_tokens": "x"}, BAD_VALUE, "whole number"),
        ("0.33.0", "speculative_config", {"num_speculative_tokens": 0}, BAD_VALUE, "not above 0"),
        ("0.9.0", "speculative_config", {"method": "eagle3", "num_speculative_tokens": 3}, OK, ""),
        ("0.33.0", "ir_op_priority", {"rms_norm": "native"}, OK, ""),
        ("0.33.0", "ir_op_priority", {"rms_norm": 1}, BAD_VALUE, "not a list"),
    ],
)
def test_values_have_the_types_of_the_release(
    release: str, flag: str, value: dict[str, Any], status: str, text: str
) -> None:
    found = check(knowledge().flags(release), flag, value)
    assert found.status == status, found
    assert text in found.text()


@pytest.mark.parametrize(
    ("kind", "value", "wrong"),
    [
        ("int", "3", ""), ("int", 3.0, ""), ("int", True, ""), ("int", 3.5, "not a whole number"),
        ("float", "1e-3", ""), ("bool", "off", ""), ("bool", 2, "not true or false"), ("str", 3, "not text"),
        ("Optional[int]", None, ""), ("int | None", None, ""), ("int", None, "not a whole number"),
        ("dict[str, int]", {"a": "x"}, "not a map"), ("Union[int, list[str]]", ["x"], ""),
        ("Annotated[int, Field(ge=1)]", "x", "not a whole number"), ("SkipValidation[Thing]", 3, ""),
        ("Literal['a', 1]", 1, ""), ("Literal['a', 1]", "b", "not one of a, 1"), ("'int | None'", "x", "not a"),
    ],
)  # fmt: skip
def test_a_value_is_what_pydantic_takes(kind: str, value: Any, wrong: str) -> None:
    found = mismatch(kind, value, {}, {})
    assert found.startswith(wrong) if wrong else found == ""


def test_choices_are_those_of_literals_alone() -> None:
    assert choices("Optional[Literal['a', 'b']]") == ("a", "b")
    assert choices("Literal['a'] | str") is None
