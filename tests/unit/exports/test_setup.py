# SPDX-License-Identifier: Apache-2.0
"""What command lines say of the engine."""

from __future__ import annotations

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.exports.setup import (
    engine_setup,
    options_of,
)


def test_options() -> None:
    text = "vllm serve m -tp 8 --max-num-seqs=4 --enforce_eager --seed -1 --header A=1 B=2"
    assert options_of(text) == {
        "tensor_parallel_size": "8",
        "max_num_seqs": "4",
        "enforce_eager": "true",
        "seed": "-1",
        "header": "A=1 B=2",
    }
    assert options_of(None) == {}


@pytest.mark.parametrize(
    ("model", "options", "precision"),
    [
        ("org/m", "", None),
        ("org/m", "--dtype auto", None),
        ("org/m", "--dtype float16", "fp16"),
        ("org/m", "--dtype bfloat16 --quantization fp8", "fp8"),
        ("org/m", "--quantization ptpc_fp8", "fp8"),
        ("amd/Llama-3.1-405B-Instruct-FP8-KV", "--dtype float16", "fp8"),
        ("amd/DeepSeek-R1-MXFP4", "", "fp4"),
        ("org/m-AWQ", "", "int4"),
        ("org/m-W8A8", "--dtype float16", "int8"),
        ("openai/gpt-oss-120b", "", None),
    ],
)
def test_precision(model: str, options: str, precision: str | None) -> None:
    row = {"kind": "serve", "model": model, "serve_command": f"vllm serve {model} {options}"}
    assert engine_setup(row).precision == precision


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ("", 1),
        ("-tp 8", 8),
        ("-tp 4 -pp 2", 8),
        ("-tp 2 -dp 4", 8),
        ("-tp 8 --decode-context-parallel-size 2", 8),
    ],
)
def test_gpus_of_an_engine(options: str, gpus: int) -> None:
    assert engine_setup({"kind": "serve", "serve_command": f"vllm serve m {options}"}).gpus == gpus


def test_without_a_command_nothing_is_assumed() -> None:
    setup = engine_setup({"kind": "serve", "gpus": [0, 1]})
    assert (setup.tensor_parallel, setup.speculative, setup.gpus) == (None, None, 2)


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ("", "none"),
        ('--speculative-config \'{"method": "eagle3"}\'', "eagle3"),
        ('--speculative-config \'{"model": "m"}\'', "draft_model"),
        ("--speculative-model m --num-speculative-tokens 5", "draft_model"),
        ("--speculative-config broken", "unknown"),
    ],
)
def test_speculative_decoding(options: str, method: str) -> None:
    assert engine_setup({"kind": "serve", "serve_command": f"vllm serve m {options}"}).speculative == method
