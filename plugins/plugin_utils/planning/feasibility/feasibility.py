# SPDX-License-Identifier: Apache-2.0
"""Judge whether a tuned deployment fits its GPUs and its model, and what would serve it better. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....module_utils.common.errors import Problem
from ...knowledge.catalog.facts import ModelFacts
from ...knowledge.catalog.images import ImageFacts, check_driver, check_image
from ...knowledge.catalog.load import Knowledge
from ...knowledge.catalog.recipes import Advice, Recipe, statement
from ...knowledge.shapes.shape import ModelShape, model_shape
from ...knowledge.sizing.decode import DecodeStep, decode_step
from ...knowledge.sizing.estimates import MeasuredStart
from ...knowledge.sizing.fit import CATALOGUE, EngineConfig, Fit, fit, refusals
from ...knowledge.vllm.attention_backends import Claim
from ..desired.actions import size as size_text
from ..desired.deployment import Deployment
from ..tuning.tune import OTHER_PLATFORMS, TargetGpu, TunedSettings
from . import attention
from .checkpoint_refusals import checkpoint_refusals
from .drafts import Draft, draft_notes, with_draft
from .engine_arguments import UnreadableArgument, engine_of, longest_sequence
from .engine_refusals import engine_refusals
from .memory_messages import (
    FEW_REQUESTS,
    doubled_batch,
    misfit_messages,
    partition_too_small,
    unsure_warnings,
)
from .statements import StatementContext, quote_statements


@dataclass(frozen=True)
class Feasibility:
    """What can be said before anything is pulled. fit None: the model's config.json is not known.

    quotes: statements of the documents that apply, for the explained plan. attention: the attention backend that the
    server's log must confirm; None: nothing is claimed. step: how long a decode step takes; None: unknown. start_key:
    the key under which the memory that vLLM measures at startup is recorded.
    """

    fit: Fit | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()
    notes: tuple[str, ...] = ()
    quotes: tuple[Advice, ...] = ()
    attention: Claim | None = None
    step: DecodeStep | None = None
    start_key: str = ""


@dataclass(frozen=True)
class KnownModel:
    """A deployment's model, as far as it is known before anything is pulled.

    facts: as recipes see it. config: its config.json, None if it is not known. origin: where that comes from. files:
    its files with their sizes in bytes, None if they are not known. draft: what drafts tokens for it. near: known names
    that are similar to its own. measured: what a start of the same engine measured.
    """

    facts: ModelFacts
    config: Mapping[str, Any] | None
    origin: str
    files: Sequence[tuple[str, int]] | None = None
    draft: Draft | None = None
    near: tuple[str, ...] = ()
    measured: MeasuredStart | None = None


def check_feasibility(
    deployment: Deployment,
    machine: TargetGpu,
    software: ImageFacts,
    tuned: TunedSettings,
    model: KnownModel,
    knowledge: Knowledge,
) -> Feasibility:
    """Judge the image, the memory and the model's shape."""
    problems, warnings = _image(deployment, machine, software, knowledge)
    if model.near:
        what = f"model: the catalogue has no {deployment.model}"
        warnings = (*warnings, f"{what}. If it is misspelt: did you mean {' or '.join(model.near)}?")
    if tuned.problems:
        return Feasibility(None, problems, warnings)  # arithmetic with refused values is meaningless
    stops, doubts = engine_refusals(
        deployment, software, tuned, model.facts, _longest(tuned, model, knowledge), knowledge
    )
    own = model.origin != CATALOGUE
    more, unsure_of = checkpoint_refusals(
        deployment, software, tuned, model.config, model.files, knowledge, own
    )
    stops, doubts = (*stops, *more), (*doubts, *unsure_of)
    problems, warnings = (*problems, *stops), (*warnings, *doubts)
    if stops:
        return Feasibility(None, problems, warnings)
    what = f"could not check whether {deployment.model} fits"
    if model.config is None:
        text = f"{what}: its config.json is unknown; point model_config at a copy of it on the control node"
        return Feasibility(None, problems, (*warnings, text), tuned.recommended)
    try:
        judged = _judged(deployment, machine, software, tuned, model, knowledge)
    except UnreadableArgument as error:
        return Feasibility(None, problems, (*warnings, f"{what}: {error}"), tuned.recommended)
    except (ArithmeticError, LookupError, TypeError) as error:
        text = (
            f"{what}: its size cannot be computed from its config.json, which is {model.origin or 'given'} "
            f"(deployment {deployment.name}: {error}). Compare it with the model's repository, or start one instance "
            "and read vLLM's log"
        )
        return Feasibility(None, problems, (*warnings, text), tuned.recommended)
    if problems:
        return Feasibility(None, (*problems, *judged.problems), warnings)
    return replace(judged, warnings=(*warnings, *judged.warnings))


def _judged(
    deployment: Deployment,
    machine: TargetGpu,
    software: ImageFacts,
    tuned: TunedSettings,
    model: KnownModel,
    knowledge: Knowledge,
) -> Feasibility:
    """Judge what follows from the model's config.json."""
    shape = model_shape(model.config or {}, knowledge.families, model.files)
    if shape.missing and shape.checkpoint is None:
        lacking = ", ".join(shape.missing)
        text = f"could not check whether {deployment.model} fits: its config.json does not have {lacking}"
        return Feasibility(None, (), (f"{text}; start one instance and read vLLM's log",), tuned.recommended)
    engine = engine_of(deployment, machine, software, tuned, knowledge)
    problems: tuple[Problem, ...] = ()
    engine = with_draft(engine, model.draft, shape, knowledge.families)
    long = "--hf-overrides" in tuned.args or tuned.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") in ("1", "true")
    refused = [item for item in refusals(shape, engine) if not (long and item[0] == "context-beyond-model")]
    for rule, text in refused[:1]:  # the others tend to be the same thing, seen from elsewhere
        why = statement(knowledge.recipes, rule)
        problems += (Problem(deployment.path, f"{text}.", f"{why.text} Source: {why.source}."),)
    problems += attention.backend_problems(deployment, tuned, model.facts, engine, knowledge)
    if problems:
        return Feasibility(None, problems)
    claim = attention.claimed_backend(software, tuned, model.facts, engine, knowledge)
    found = fit(shape, engine, model.origin, model.measured)
    unlike = _unlike_prediction(found)
    step = _step(deployment, shape, engine, machine)
    smaller = None if "--max-num-batched-tokens" in tuned.args else _smaller_batch(tuned, knowledge)
    why = statement(knowledge.recipes, "doubled-batch")
    batch = doubled_batch(smaller, shape, engine, found, f"{why.text} Source: {why.source}.")
    if not found.fits:
        more, doubts = misfit_messages(deployment, shape, engine, found)
        return Feasibility(found, more, (*unlike, *doubts, *batch), attention=claim, step=step)
    advice = (*tuned.recommended, *_advice(deployment, machine, shape, engine, found, knowledge.recipes))
    notes = (*found.notes, *draft_notes(model.draft, shape, knowledge.families))
    said = quote_statements(
        knowledge.recipes, StatementContext(deployment, machine, tuned, model.facts, shape, engine, found)
    )
    return Feasibility(
        found,
        (),
        (
            *unlike,
            *unsure_warnings(deployment, engine, found),
            *batch,
            *partition_too_small(machine, shape, engine, found),
        ),
        advice,
        notes,
        said,
        claim,
        step,
    )


def _smaller_batch(tuned: TunedSettings, knowledge: Knowledge) -> Any:
    """Return the default of max_num_batched_tokens before this release made it larger, or None."""
    return knowledge.rules("engine", tuned.release)["smaller_batch"] if tuned.context.engine == "V1" else None


def _unlike_prediction(found: Fit) -> tuple[str, ...]:
    """Return a warning if the measured size is outside the predicted range: the estimate or that engine is wrong."""
    if not found.measured or not found.predicted:
        return ()
    low, high = found.predicted.kv_cache_bytes
    if low <= found.kv_cache_bytes <= high:
        return ()
    return (
        f"the KV cache measured on {found.measured.host} is {size_text(found.kv_cache_bytes)} per GPU; the prediction "
        f"was {size_text(low)} to {size_text(high)}. The plan uses the measured size; see what else uses that GPU",
    )


def _step(
    deployment: Deployment, shape: ModelShape, engine: EngineConfig, machine: TargetGpu
) -> DecodeStep | None:
    """Return how long a decode step takes; None if several servers share an engine, each with part of its requests."""
    if engine.dp > 1 and deployment.data_parallel_balancing != "internal":
        return None
    return decode_step(shape, engine, machine.peak)


def _longest(tuned: TunedSettings, model: KnownModel, knowledge: Knowledge) -> int | None:
    """Return the longest sequence as far as it is known, whatever the config.json contains."""
    try:
        config = model.config
        shape = model_shape(config, knowledge.families, model.files) if config else None
        return longest_sequence(tuned, shape)
    except UnreadableArgument:
        return None
    except (ArithmeticError, LookupError, TypeError):
        return longest_sequence(tuned, None)


def _image(
    deployment: Deployment, machine: TargetGpu, software: ImageFacts, knowledge: Knowledge
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    path = (*deployment.path, "build" if deployment.build else "image")
    if software.platform in OTHER_PLATFORMS:
        note = f"the image's vLLM is built for {software.platform.upper()}, so the GPUs are not used"
        return (), (note, *software.notes)
    problems, warnings = [], []
    for finding in check_image(knowledge.images, software, machine.gfx, machine.name):
        if finding.is_error:
            problems.append(Problem(path, f"{finding.subject} {finding.what}.", finding.fix))
        else:
            warnings.append(f"{finding.subject}: {finding.what}")
    driver = check_driver(knowledge.images, software.rocm, machine.driver) if software.rocm else None
    if driver:
        warnings.append(f"{driver.subject} {driver.what}. {driver.fix}")
    warnings += [note for note in software.notes if not any(note in text for text in warnings)]
    return tuple(problems), tuple(warnings)


def _advice(
    deployment: Deployment,
    machine: TargetGpu,
    shape: ModelShape,
    engine: EngineConfig,
    found: Fit,
    recipes: Sequence[Recipe],
) -> tuple[Advice, ...]:
    """Return what arithmetic shows to be better."""
    advice = []
    throughput = deployment.objective not in ("latency", "interactive")
    if engine.platform == "rocm" and engine.tp > 1 and engine.pp == engine.dp == 1 and throughput:
        alone = fit(shape, replace(engine, tp=1))
        if alone.fits and alone.max_concurrency >= FEW_REQUESTS:
            rule = statement(recipes, "copies-before-tensor-parallel")
            text = (
                f"{rule.text} It fits: {alone.kv_cache_tokens:,} tokens of KV cache per GPU, "
                f"{alone.kv_cache_tokens * engine.tp:,} on {engine.tp}; with tensor parallelism "
                f"{found.kv_cache_tokens:,}."
            )
            advice.append(replace(rule, text=text))
    return tuple(advice)
