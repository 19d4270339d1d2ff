# SPDX-License-Identifier: Apache-2.0
"""Refuse what vLLM would refuse when it configures its engine, after its parser and before it loads a model. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....module_utils.common.errors import Path, Problem
from ...knowledge.catalog.facts import ModelFacts
from ...knowledge.catalog.images import ImageFacts
from ...knowledge.catalog.load import Knowledge
from ...knowledge.vllm.engine_checks import EngineFacts, refusals
from ..desired.deployment import Deployment
from ..desired.reserved_flags import ENGINE_OWNED
from ..tuning.tune import OTHER_PLATFORMS, SIZES, TunedSettings
from .registry_refusals import registry_refusals

_HEADS = ("eagle", "medusa", "mlp_speculator", "mlp-speculator", "speculator", "mtp", "ngram", "suffix")
"""Words in the name of a draft by which vLLM, or whoever named it, tells that it is not a whole model."""
_LATER = (
    "--distributed-executor-backend",
    "--data-parallel-backend",
    "--master-port",
    "--data-parallel-external-lb",
)
"""Decided where an instance is composed, by the layout of its ranks."""


def engine_refusals(
    deployment: Deployment,
    software: ImageFacts,
    tuned: TunedSettings,
    model: ModelFacts | None,
    max_model_len: int | None,
    knowledge: Knowledge,
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Return problems, and warnings where the release is not known exactly or is a fork, whose checks were not read.

    model None: its config.json is not known. max_model_len None: so is its longest sequence.
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
    for path, what, fix in (
        *_draft(deployment, tuned, knowledge),
        *(
            (_path(deployment, arguments), what, fix)
            for arguments, what, fix in registry_refusals(software, tuned, knowledge, max_model_len)
        ),
    ):
        if tuned.release.exact and not tuned.release.fork:
            problems.append(Problem(path, what, fix))
        else:
            warnings.append(f"{what} {fix}")
    for refusal in sorted({item.what: item for item in found}.values(), key=lambda item: len(item.arguments)):
        what = f"vLLM {version} stops at its start: {refusal.what}."
        fix = f"Change {_or(refusal.arguments)}. Source: {refusal.at} of that release."
        if tuned.release.exact and not tuned.release.fork:
            problems.append(Problem(_path(deployment, refusal.arguments), what, fix))
        else:
            warnings.append(f"{what} {fix}")
    return tuple(problems), tuple(warnings)


def _draft(
    deployment: Deployment, tuned: TunedSettings, knowledge: Knowledge
) -> Iterator[tuple[Path, str, str]]:
    """Yield that a model of its own drafts for a release whose V1 engine cannot do that."""
    given = tuned.args.get("--speculative-config")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return
    if not isinstance(given, Mapping) or knowledge.rules("engine", tuned.release)["drafts"] is not False:
        return
    method, model = given.get("method"), str(given.get("model") or "").lower()
    named = any(word in model for word in _HEADS) or model == deployment.model.lower()
    if method == "draft_model" or (method is None and model and not named):
        what = f"vLLM {tuned.release.requested} cannot draft with a model of its own ({given.get('model')}); it stops."
        fix = (
            "Use EAGLE, MTP or ngram, or an image with vLLM 0.15.0. If it is one of these, name the method in "
            "speculative_config. Source: vllm/config/speculative.py of that release."
        )
        yield _path(deployment, ("speculative_config", "speculative")), what, fix


def _open(args: dict[str, Any]) -> set[str]:
    """Flags that the plan adds later."""
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


def _path(deployment: Deployment, arguments: Sequence[str]) -> Path:
    """The operator's first key that takes part; the deployment where a recipe chose it."""
    for name in arguments:
        for part in ("engine_args", "env", "settings"):
            for key, _value in getattr(deployment, part):
                if key.lstrip("-").replace("-", "_") == name or key == name:
                    return (*deployment.path, part, key)
    return deployment.path


def _or(names: tuple[str, ...]) -> str:
    listed = list(dict.fromkeys(names))
    return " or ".join((", ".join(listed[:-1]), listed[-1])) if len(listed) > 1 else "".join(listed)
