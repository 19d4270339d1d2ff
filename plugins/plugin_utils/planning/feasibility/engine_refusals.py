# SPDX-License-Identifier: Apache-2.0
"""Refuse what vLLM would refuse when it configures its engine, after its parser and before it loads a model. Pure."""

from __future__ import annotations

from typing import Any

from ....module_utils.common.errors import Problem
from ...knowledge.catalog.facts import ModelFacts
from ...knowledge.catalog.images import ImageFacts
from ...knowledge.catalog.load import Knowledge
from ...knowledge.rules.conditions import UNKNOWN
from ...knowledge.rules.refusals import broken_rules
from ...knowledge.vllm.engine_checks import EngineFacts, refusals
from ..desired.deployment import Deployment
from ..desired.reserved_flags import ENGINE_OWNED
from ..tuning.tune import OTHER_PLATFORMS, SIZES, TunedSettings
from .places import any_of, operators_key
from .start_facts import StartFacts

NAMES = "names"
"""The file with the rules about names that a release does not register."""
_LATER = (
    "--distributed-executor-backend",
    "--data-parallel-backend",
    "--master-port",
    "--data-parallel-external-lb",
)
"""Flags that are decided when an instance is composed, by the layout of its ranks."""


def engine_refusals(
    deployment: Deployment,
    software: ImageFacts,
    tuned: TunedSettings,
    model: ModelFacts | None,
    max_model_len: int | None,
    knowledge: Knowledge,
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Return problems, or warnings if the release is not known exactly or is a fork, whose checks were not read.

    model None: its config.json is not known. max_model_len None: its longest sequence is not known.
    """
    args = {**tuned.args, **{f"--{name.replace('_', '-')}": getattr(deployment, name) for name in SIZES}}
    facts = EngineFacts(
        tuned.table,
        knowledge.env(tuned.release.requested),
        args,
        tuned.env,
        "cpu" if software.platform in OTHER_PLATFORMS else "rocm",
        _model(model, max_model_len),
        frozenset(_open(args)),
        tuned.context.engine == "V1",
    )
    found = list(refusals(knowledge.engine_checks(tuned.release.requested), facts))
    version = tuned.release.requested
    problems, warnings = [], []
    more = {"image_basis": software.basis, "max_model_len": max_model_len or UNKNOWN}
    start = StartFacts(deployment, tuned, None, knowledge, more)
    for rule in broken_rules(knowledge.refusals(NAMES), start):
        if tuned.release.exact and not tuned.release.fork:
            problems.append(Problem(operators_key(deployment, rule.keys), rule.what, rule.fix))
        else:
            warnings.append(f"{rule.what} {rule.fix}")
    for refusal in sorted({item.what: item for item in found}.values(), key=lambda item: len(item.arguments)):
        what = f"vLLM {version} stops at startup: {refusal.what}."
        fix = f"Change {any_of(refusal.arguments)}. Source: {refusal.at} of that release."
        if tuned.release.exact and not tuned.release.fork:
            problems.append(Problem(operators_key(deployment, refusal.arguments), what, fix))
        else:
            warnings.append(f"{what} {fix}")
    return tuple(problems), tuple(warnings)


def _open(args: dict[str, Any]) -> set[str]:
    """Return the flags that the plan adds later."""
    owned = {f"--{name.replace('_', '-')}" for name in ENGINE_OWNED}
    return {name for name in (*owned, *_LATER) if name not in args}


def _model(model: ModelFacts | None, max_model_len: int | None) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if max_model_len:
        facts["max_model_len"] = max_model_len
    if model is not None and model.architectures:
        facts["use_mla"] = model.mla
        if all(name.endswith("ForCausalLM") for name in model.architectures):
            facts["is_encoder_decoder"] = False
    return facts
