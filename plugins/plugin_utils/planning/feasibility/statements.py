# SPDX-License-Identifier: Apache-2.0
"""Find the recipes' statements that apply to a decided deployment, where no condition in the recipe decides. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...knowledge.catalog.facts import ModelFacts
from ...knowledge.catalog.recipes import Advice, Recipe, statement
from ...knowledge.shapes.shape import ModelShape
from ...knowledge.sizing.amd_formula import simple_formula
from ...knowledge.sizing.engine_config import EngineConfig
from ...knowledge.sizing.fit import Fit
from ..desired.actions import size
from ..desired.deployment import Deployment
from ..tuning.tune import TargetGpu, TunedSettings

MANY_SEQUENCES, MUCH_MEMORY = 256, 0.95
"""The largest values that the statements on sequences and on graphs recommend."""
_KERNELS = (
    "VLLM_ROCM_USE_AITER_",
    "VLLM_ROCM_USE_SKINNY_GEMM",
    "VLLM_ROCM_FP8_PADDING",
    "VLLM_ROCM_MOE_PADDING",
)
_OFF = ("0", "false")


@dataclass(frozen=True)
class StatementContext:
    """A deployment on one kind of GPU, as it will run."""

    deployment: Deployment
    machine: TargetGpu
    tuned: TunedSettings
    model: ModelFacts
    shape: ModelShape
    engine: EngineConfig
    fit: Fit

    def number(self, flag: str) -> float:
        """Return the value of a flag with a number, else 0."""
        value = self.tuned.args.get(flag)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def quote_statements(recipes: Sequence[Recipe], decided: StatementContext) -> tuple[Advice, ...]:
    """Return the statements that apply."""
    found = []
    for name, applies in _APPLIES.items():
        answer = applies(decided)
        if answer:
            said = statement(recipes, name)
            found.append(replace(said, text=f"{said.text} {answer}") if isinstance(answer, str) else said)
    return tuple(found)


def _dtype(decided: StatementContext) -> bool:
    speculative: Any = decided.tuned.known.get("speculative")
    return isinstance(speculative, Mapping) and "dtype" in speculative


def _kernels(decided: StatementContext) -> bool:
    return any(name.startswith(_KERNELS) and text.lower() in _OFF for name, text in decided.deployment.env)


def _formula(decided: StatementContext) -> str:
    """Return the result of AMD's formula for one request of full length, on a partition as in the guide."""
    if decided.machine.compute != "CPX":
        return ""
    found = simple_formula(decided.shape, decided.engine, 1, decided.fit.max_model_len)
    if found.fits is None:
        return ""
    return (
        f"By this formula, one request of {decided.fit.max_model_len:,} tokens takes {size(found.weights_bytes)} and "
        f"{size(found.kv_cache_bytes)}, {size(found.total_bytes)} of {size(found.memory_bytes)}."
    )


_APPLIES: Mapping[str, Callable[[StatementContext], bool | str]] = {
    "context-length": lambda decided: "--max-model-len" not in decided.tuned.args,
    "sequences-and-preemption": lambda decided: decided.number("--max-num-seqs") > MANY_SEQUENCES,
    "graphs-memory": lambda decided: (
        decided.number("--gpu-memory-utilization") > MUCH_MEMORY and not decided.engine.enforce_eager
    ),
    "shared-memory": lambda decided: (
        decided.deployment.runtime.ipc != "host" and decided.tuned.context.devices > 1
    ),
    "remote-code": lambda decided: decided.tuned.args.get("--trust-remote-code") is True,
    "speculative-dtype-key": _dtype,
    "kernel-switches": _kernels,
    "fit-simple-formula": _formula,
}
