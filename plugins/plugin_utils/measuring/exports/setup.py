# SPDX-License-Identifier: Apache-2.0
"""Read from a row's command lines how the engine was set up. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..measurement import commands
from .run_results import Row

Options = Mapping[str, str]
"""Options of a command line by their long name with underscores; one without a value has "true"."""

_IN_NAMES = (
    ("fp8", re.compile(r"(?i)(^|[^a-z])(fp8|float8)")),
    ("fp4", re.compile(r"(?i)(^|[^a-z])(mxfp4|nvfp4|fp4)")),
    ("int4", re.compile(r"(?i)(^|[^a-z])(int4|w4a16|awq|gptq)")),
    ("int8", re.compile(r"(?i)(^|[^a-z])(int8|w8a8)")),
)
"""Number formats of weights, in the name of a quantization method or of a model; the first match counts."""
_DTYPES = {
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float": "fp32",
}


@dataclass(frozen=True)
class EngineSetup:
    """How an engine is set up. Sizes are vLLM's defaults where its command line is known and does not set them.

    precision: the format of the weights (fp8, fp4, int4, int8, bf16, fp16, fp32), None if it is not stated, as with
    `--dtype auto`. speculative: the method of speculative decoding, "none" without one.
    """

    tensor_parallel: int | None
    pipeline_parallel: int | None
    data_parallel: int | None
    prefill_context_parallel: int | None
    decode_context_parallel: int | None
    expert_parallel: bool
    precision: str | None
    speculative: str | None
    gpus: int | None


def options_of(command: str | None) -> Options:
    """Return the options of a command line, {} for None. Several values of an option are joined by spaces."""
    return {name.lstrip("-").replace("-", "_"): value for name, value in commands.options(command).items()}


def engine_options(row: Row) -> Options:
    """Return the engine's options."""
    return options_of(_engine_command(row))


def engine_setup(row: Row) -> EngineSetup:
    """Return how the engine of a row was set up."""
    is_known, options = bool(_engine_command(row)), engine_options(row)
    sizes = {
        name: integer(options.get(f"{name}_size"), 1) if is_known else None
        for name in (
            "tensor_parallel",
            "pipeline_parallel",
            "data_parallel",
            "prefill_context_parallel",
            "decode_context_parallel",
        )
    }
    # Ranks of decode context parallelism share the GPUs of tensor parallelism.
    world = 1
    for name, size in sizes.items():
        world *= 1 if name == "decode_context_parallel" else size or 0
    return EngineSetup(
        **sizes,
        expert_parallel=options.get("enable_expert_parallel") == "true",
        precision=_precision(options, str(row.get("model") or "")),
        speculative=_speculative(options) if is_known else None,
        gpus=world or len(row.get("gpus") or []) or None,
    )


def integer(value: Any, default: int | None = None) -> int | None:
    """Return a whole number, or the default for anything else."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return default


def _engine_command(row: Row) -> Any:
    """Return the command line of the server, or of the offline benchmark, which is the engine itself."""
    return row.get("serve_command" if row.get("kind") == "serve" else "command")


def _precision(options: Options, model: str) -> str | None:
    for text in (options.get("quantization", ""), model):
        for name, pattern in _IN_NAMES:
            if pattern.search(text):
                return name
    return _DTYPES.get(options.get("dtype", "auto"))


def _speculative(options: Options) -> str:
    """Return the method that vLLM was given, in its JSON or, before 0.8, by the name of a draft model."""
    config = options.get("speculative_config")
    if config is None:
        return "draft_model" if options.get("speculative_model") else "none"
    try:
        return str(json.loads(config).get("method") or "draft_model")
    except (ValueError, AttributeError):
        return "unknown"
