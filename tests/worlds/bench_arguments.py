# SPDX-License-Identifier: Apache-2.0
"""Arguments of the benchmark clients."""

from __future__ import annotations

from typing import Any

SERVE: dict[str, Any] = {
    "model": "m", "base_url": "http://127.0.0.1:8000", "api": "completions", "dataset_name": "random",
    "input_len": 1024, "output_len": 128, "num_prompts": 100, "request_rate": 2.0, "percentiles": [50, 99],
    "ignore_eos": True, "save_result": True, "result_directory": "/bench", "result_file": "x.json", "seed": 0,
}  # fmt: skip
LATENCY: dict[str, Any] = {
    "model": "m", "input_len": 128, "output_len": 128, "batch_size": 8, "iterations": 5, "warmup_iterations": 2,
    "output_json": "/bench/x.json",
}  # fmt: skip
OFFLINE: dict[str, Any] = {
    "model": "m", "dataset_name": "random", "input_len": 128, "output_len": 128, "num_prompts": 100,
    "output_json": "/bench/x.json",
}  # fmt: skip
SERVED = [
    "vllm", "serve", "m", "--served-model-name", "m", "--host", "::", "--port", "8000", "--tensor-parallel-size", "8",
    "--kv-cache-dtype=fp8", "--max-num-seqs", "256", "--trust-remote-code", "--tokenizer-mode", "auto",
]  # fmt: skip
