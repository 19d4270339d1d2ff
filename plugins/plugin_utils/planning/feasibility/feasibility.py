# SPDX-License-Identifier: Apache-2.0
"""Whether a tuned deployment fits its GPUs and its model, and what would serve it better. Pure."""

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
from ...knowledge.sizing.kv_cache import CacheRules
from ...knowledge.vllm.attention_backends import Claim
from ...knowledge.vllm.flag_values import Value, size
from ..desired.actions import size as size_text
from ..desired.deployment import Deployment
from ..tuning.tune import OTHER_PLATFORMS, TargetGpu, TunedSettings
from . import attention
from .checkpoint_refusals import checkpoint_refusals
from .drafts import Draft, draft_notes, with_draft
from .engine_refusals import engine_refusals
from .memory_messages import FEW_REQUESTS, doubled_batch, partition_too_small, too_large, unsure
from .statements import StatementContext, quote_statements

GIB = 1 << 30
AUTO = ("auto", -1)
CPU_BLOCK = 128
"""The block size of vLLM's CPU build; vllm/platforms/cpu.py."""


@dataclass(frozen=True)
class Feasibility:
    """What is to be said before anything is pulled. fit None: the model's config.json is not known.

    quotes: statements of the documents that apply, for whoever reads the plan explained. attention: the attention
    backend that the server's log is to prove; None: nothing is claimed. step: what a decode step takes; None: unknown.
    start_key: under which the memory that vLLM measures at its start is recorded.
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

    facts: as recipes see it. config: its config.json, None where it is not known. origin: where that is from. files:
    its files with their sizes in bytes, None where they are not known. draft: what drafts for it. near: names that are
    known and like its own. measured: what a start of the same engine measured.
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
        return Feasibility(None, problems, warnings)  # arithmetic with refused values tells nothing
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
    except (ArithmeticError, LookupError, TypeError) as error:
        text = (
            f"{what}: no size follows from the values of its config.json, which is {model.origin or 'given'} "
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
        text = f"could not check whether {deployment.model} fits: its config.json lacks {lacking}"
        return Feasibility(None, (), (f"{text}; start one instance and read vLLM's log",), tuned.recommended)
    engine = engine_of(deployment, machine, software, tuned, knowledge)
    problems: tuple[Problem, ...] = ()
    engine = with_draft(engine, model.draft, shape, knowledge.families)
    long = "--hf-overrides" in tuned.args or tuned.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") in ("1", "true")
    refused = [item for item in refusals(shape, engine) if not (long and item[0] == "context-beyond-model")]
    for rule, text in refused[:1]:  # the others tend to be the same thing, seen from elsewhere
        why = statement(knowledge.recipes, rule)
        problems += (Problem(deployment.path, f"{text}.", f"{why.text} Source: {why.source}."),)
    problems += attention.refused(deployment, tuned, model.facts, engine, knowledge)
    if problems:
        return Feasibility(None, problems)
    claim = attention.claim(software, tuned, model.facts, engine, knowledge)
    found = fit(shape, engine, model.origin, model.measured)
    unlike = _unlike_prediction(found)
    step = _step(deployment, shape, engine, machine)
    smaller = None if "--max-num-batched-tokens" in tuned.args else _smaller_batch(tuned, knowledge)
    why = statement(knowledge.recipes, "doubled-batch")
    batch = doubled_batch(smaller, shape, engine, found, f"{why.text} Source: {why.source}.")
    if not found.fits:
        more, doubts = too_large(deployment, shape, engine, found)
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
            *unsure(deployment, engine, found),
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
    """Return that what was measured is outside the predicted range: the model's estimate or that engine is wrong."""
    if not found.measured or not found.ranges:
        return ()
    low, high = found.ranges.kv_cache_bytes
    if low <= found.kv_cache_bytes <= high:
        return ()
    return (
        f"the KV cache measured on {found.measured.host} is {size_text(found.kv_cache_bytes)} per GPU; predicted were "
        f"{size_text(low)} to {size_text(high)}. The plan uses the measured size; see what else uses that GPU",
    )


def _step(
    deployment: Deployment, shape: ModelShape, engine: EngineConfig, machine: TargetGpu
) -> DecodeStep | None:
    """Return what a decode step takes; None where several servers share an engine, each with a part of its requests."""
    if engine.dp > 1 and deployment.data_parallel_balancing != "internal":
        return None
    return decode_step(shape, engine, machine.peak)


def engine_of(
    deployment: Deployment,
    machine: TargetGpu,
    software: ImageFacts,
    tuned: TunedSettings,
    knowledge: Knowledge,
) -> EngineConfig:
    """How vLLM is told to run it: the decided flags, and for the rest what the release does by itself."""

    small: Mapping[str, Value] = next(
        (
            step
            for step in knowledge.rules("engine", tuned.release)["batch_by_memory"]
            if machine.memory_bytes < step["below_gib"] * GIB and software.platform not in OTHER_PLATFORMS
        ),
        {},
    )

    def value(name: str) -> Value:
        flag = "--" + name.replace("_", "-")
        given = tuned.args.get(flag)
        if given is not None:
            return given
        found = small.get(name, knowledge.default(name, tuned.release))
        known = tuned.table.flags.get(flag)
        return found if found is not None or known is None else known.default

    length = _length(tuned, None)
    v1 = tuned.context.engine == "V1"  # the defaults of releases that have both are V1's
    sequences = _number(value("max_num_seqs") if v1 else tuned.args.get("--max-num-seqs"), 256)
    tokens = value("max_num_batched_tokens") if v1 else tuned.args.get("--max-num-batched-tokens")
    scheduling = value("async_scheduling")
    platform = "cpu" if software.platform in OTHER_PLATFORMS else "rocm"
    usual = CPU_BLOCK if platform == "cpu" else value("block_size")
    reserved = tuned.args.get("--kv-cache-memory-bytes")
    kv_bytes = None if reserved is None else size(str(reserved))
    if platform == "cpu" and kv_bytes is None:
        kv_bytes = int(float(tuned.env.get("VLLM_CPU_KVCACHE_SPACE") or 4) * GIB)
    quantization = tuned.args.get("--quantization")
    chunked = tuned.args.get("--enable-chunked-prefill")
    blocks = tuned.args.get("--num-gpu-blocks-override")
    return EngineConfig(
        rules=CacheRules.of(knowledge.rules("kv_cache", tuned.release)),
        memory_bytes=machine.memory_bytes,
        gpu_memory_utilization=float(value("gpu_memory_utilization") or 0.9),
        tp=deployment.tensor_parallel_size,
        pp=deployment.pipeline_parallel_size,
        dp=deployment.data_parallel_size,
        expert_parallel=bool(tuned.args.get("--enable-expert-parallel")),
        dcp=_number(tuned.args.get("--decode-context-parallel-size"), 1),
        max_model_len=length,
        max_num_seqs=sequences,
        max_num_batched_tokens=_number(tokens, max(2048, sequences)),
        v1=v1,
        chunked_prefill=None if chunked is None else bool(chunked),
        block_size=_number(tuned.args.get("--block-size", usual), 16),
        dtype=str(tuned.args.get("--dtype", "auto")),
        kv_cache_dtype=str(tuned.args.get("--kv-cache-dtype", "auto")),
        quantization=None if quantization is None else str(quantization),
        async_scheduling=scheduling is True
        or (scheduling == "auto" and deployment.pipeline_parallel_size == 1),
        hybrid_kv_cache=not tuned.args.get("--disable-hybrid-kv-cache-manager", False),
        prefix_caching=value("enable_prefix_caching") is not False,
        quick_reduce_bytes=_quick_reduce(tuned) if platform == "rocm" else 0,
        enforce_eager=bool(tuned.args.get("--enforce-eager")),
        kv_cache_memory_bytes=kv_bytes,
        num_gpu_blocks_override=None if blocks in (None, "", "None") else int(blocks),
        platform=platform,
    )


def _length(tuned: TunedSettings, shape: ModelShape | None) -> int | None:
    """The longest sequence: the given one, or the model's; None where neither is known."""
    given = tuned.args.get("--max-model-len")
    if isinstance(given, str):
        given = None if given in AUTO else size(given)
    if given is None or given in AUTO:
        return (shape.context or None) if shape else None
    return int(given)


def _longest(tuned: TunedSettings, model: KnownModel, knowledge: Knowledge) -> int | None:
    """The longest sequence as far as it is known, whatever the config.json holds."""
    try:
        config = model.config
        shape = model_shape(config, knowledge.families, model.files) if config else None
        return _length(tuned, shape)
    except (ArithmeticError, LookupError, TypeError):
        return _length(tuned, None)


def _quick_reduce(tuned: TunedSettings) -> int:
    """Return the largest message that Quick Reduce has buffers for; 0 if it is off."""
    if tuned.env.get("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "NONE") == "NONE":
        return 0
    given = tuned.env.get("VLLM_ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB", "")
    return int(given) << 20 if given.isdigit() else 2 * GIB


def _number(value: Value, default: int) -> int:
    if isinstance(value, str):
        return size(value)
    return value if isinstance(value, int) and value > 0 else default


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
    """What arithmetic shows to be better."""
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
