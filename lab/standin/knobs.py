# SPDX-License-Identifier: Apache-2.0
"""The behaviour of a stand-in, set through the environment. README.md explains each variable."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

START_FAILURES = (
    "oom",
    "kv_cache",
    "unrecognized_argument",
    "missing_weights",
    "port_in_use",
    "gpu_fault",
    "rccl",
    "hang",
)
FAILURES = (*START_FAILURES, "first_request")


_READERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": lambda text: text not in ("", "0", "false"),
}


class KnobError(ValueError):
    """An unknown or invalid STANDIN_ variable."""


@dataclass(frozen=True)
class Knobs:
    """The settings: field `x` is the variable STANDIN_X."""

    version: str = "0.32.0"
    startup_seconds: float = 0.0
    tokens_per_second: float = 100.0  # of each request
    kv_tokens: int = 1_048_576
    fail: str = ""
    crash_after: int = 0  # requests; 0: never
    truncate_after: int = 0  # tokens of a stream; 0: never
    garbage: bool = False
    attention: str = ""  # vLLM's name of the backend that is taken whatever was asked for
    answers: str = ""  # file of prompts and their answers, JSON, an object a line
    wrong_rate: float = 0.0  # share of those that are answered wrongly, 0 to 1
    fail_rate: float = 0.0  # share of requests answered with 500, 0 to 1
    nll_shift: float = 0.0  # nat per token, of prompt_logprobs: perturbed weights
    seed: int = 0  # of what is wrong, and of what fails

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Knobs:
        """Read the STANDIN_ variables. Raise KnobError with the nearest valid name or value for an invalid one."""
        types = {f"STANDIN_{field.name.upper()}": field for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, text in environ.items():
            if not name.startswith("STANDIN_"):
                continue
            if name not in types:
                near = difflib.get_close_matches(name, types, 1) or list(types)
                raise KnobError(f"environment: no variable {name}; did you mean {near[0]}?")
            field = types[name]
            try:
                values[field.name] = _READERS[str(field.type)](text)
            except ValueError as error:
                raise KnobError(f"environment: {name}={text!r} is not of type {field.type}") from error
        knobs = cls(**values)
        if knobs.fail and knobs.fail not in FAILURES:
            raise KnobError(f"environment: STANDIN_FAIL={knobs.fail!r} is none of {', '.join(FAILURES)}")
        if knobs.tokens_per_second <= 0:
            raise KnobError("environment: STANDIN_TOKENS_PER_SECOND must be above 0")
        for name in ("wrong_rate", "fail_rate"):
            if not 0 <= getattr(knobs, name) <= 1:
                raise KnobError(f"environment: STANDIN_{name.upper()} must be from 0 to 1")
        return knobs
