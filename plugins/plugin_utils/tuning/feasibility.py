# SPDX-License-Identifier: Apache-2.0
"""Whether a tuned deployment fits its GPUs and its model, and what would serve it better. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...module_utils.common.errors import Problem
from ..catalog.attention_backends import Claim
from ..catalog.flag_values import Value, size
from ..catalog.images import ImageFacts, check_driver, check_image
from ..catalog.load import Knowledge
from ..catalog.recipes import Advice, Recipe, statement
from ..desired.actions import size as size_text
from ..desired.deployment import Deployment
from ..sizing.decode import DecodeStep, decode_step
from ..sizing.facts import ModelFacts
from ..sizing.fit import EngineConfig, Fit, fit, refusals, remedies
from ..sizing.kv_cache import CacheRules
from ..sizing.shape import ModelShape, model_shape
from . import attention
from .engine_refusals import engine_refusals
from .statements import StatementContext, quote_statements
from .tune import OTHER_PLATFORMS, TargetGpu, TunedSettings

GIB = 1 << 30
FEW_REQUESTS = 4.0
"""Fewer requests of the full length at once than this is a KV cache that starves the GPU; a judgement."""
AUTO = ("auto", -1)
CPU_BLOCK = 128
"""The block size of vLLM's CPU build; vllm/platforms/cpu.py."""


@dataclass(frozen=True)
class Feasibility:
    """What is to be said before anything is pulled. fit None: the model's config.json is not known.

    quotes: statements of the documents that apply, for whoever reads the plan explained. attention: the attention
    backend that the server's log is to prove; None: nothing is claimed. step: what a decode step takes; None: unknown.
    """

    fit: Fit | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()
    notes: tuple[str, ...] = ()
    quotes: tuple[Advice, ...] = ()
    attention: Claim | None = None
    step: DecodeStep | None = None


@dataclass(frozen=True)
class Draft:
    """What drafts for the model. bytes: of its weights, None where they are not known. tp: None is the model's."""

    repo: str
    bytes: int | None
    tp: int | None = None


@dataclass(frozen=True)
class KnownModel:
    """A deployment's model, as far as it is known before anything is pulled.

    facts: as recipes see it. config: its config.json, None where it is not known. origin: where that is from. files:
    its files with their sizes in bytes, None where they are not known. draft: what drafts for it.
    """

    facts: ModelFacts
    config: Mapping[str, Any] | None
    origin: str
    files: Sequence[tuple[str, int]] | None = None
    draft: Draft | None = None


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
    if tuned.problems:
        return Feasibility(None, problems, warnings)  # arithmetic with refused values tells nothing
    shape = None if model.config is None else model_shape(model.config, model.files)
    stops, doubts = engine_refusals(
        deployment, software, tuned, model.facts, _length(tuned, shape), knowledge
    )
    problems, warnings = (*problems, *stops), (*warnings, *doubts)
    if stops:
        return Feasibility(None, problems, warnings)
    if shape is None:
        what = f"could not check whether {deployment.model} fits: its config.json is unknown"
        fix = "point model_config at a copy of it on the control node"
        return Feasibility(None, problems, (*warnings, f"{what}; {fix}"), tuned.recommended)
    engine = engine_of(deployment, machine, software, tuned, knowledge)
    if model.draft:
        engine = replace(engine, draft_bytes=model.draft.bytes or 0, draft_tp=model.draft.tp)
    long = "--hf-overrides" in tuned.args or tuned.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") in ("1", "true")
    refused = [item for item in refusals(shape, engine) if not (long and item[0] == "context-beyond-model")]
    for rule, text in refused[:1]:  # the others tend to be the same thing, seen from elsewhere
        why = statement(knowledge.recipes, rule)
        problems += (Problem(deployment.path, f"{text}.", f"{why.text} Source: {why.source}."),)
    problems += attention.refused(deployment, tuned, model.facts, engine, knowledge)
    if problems:
        return Feasibility(None, problems, warnings)
    claim = attention.claim(software, tuned, model.facts, engine, knowledge)
    found = fit(shape, engine, model.origin)
    step = _step(deployment, shape, engine, machine)
    if not found.fits:
        more, doubts = _too_large(deployment, shape, engine, found)
        return Feasibility(found, more, (*warnings, *doubts), attention=claim, step=step)
    advice = (*tuned.recommended, *_advice(deployment, machine, shape, engine, found, knowledge.recipes))
    notes = (*found.notes, *_drafting(model.draft))
    said = quote_statements(
        knowledge.recipes, StatementContext(deployment, machine, tuned, model.facts, shape, engine, found)
    )
    return Feasibility(
        found,
        (),
        (*warnings, *_partition_too_small(machine, shape, engine, found)),
        advice,
        notes,
        said,
        claim,
        step,
    )


def _step(
    deployment: Deployment, shape: ModelShape, engine: EngineConfig, machine: TargetGpu
) -> DecodeStep | None:
    """Return what a decode step takes; None where several servers share an engine, each with a part of its requests."""
    if engine.dp > 1 and deployment.data_parallel_balancing != "internal":
        return None
    return decode_step(shape, engine, machine.peak)


def _drafting(draft: Draft | None) -> tuple[str, ...]:
    if draft is None:
        return ()
    if draft.bytes is None:
        return (f"The memory that the draft {draft.repo} needs is unknown, and is not counted",)
    return (
        f"The weights include {size_text(draft.bytes)} of the draft {draft.repo} in all; its KV cache is not counted",
    )


def engine_of(
    deployment: Deployment,
    machine: TargetGpu,
    software: ImageFacts,
    tuned: TunedSettings,
    knowledge: Knowledge,
) -> EngineConfig:
    """How vLLM is told to run it: the decided flags, and for the rest what the release does by itself."""

    def value(name: str) -> Value:
        flag = "--" + name.replace("_", "-")
        given = tuned.args.get(flag)
        if given is not None:
            return given
        found = knowledge.default(name, tuned.release)
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


def _too_large(
    deployment: Deployment, shape: ModelShape, engine: EngineConfig, found: Fit
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """A problem where it is certain, a warning where the reserve or the shape is a guess."""
    what = (
        f"{deployment.model} does not fit: weights {size_text(found.weights_bytes_per_gpu)} per GPU, one request of "
        f"{found.max_model_len} tokens {size_text(found.max_model_len * found.kv_bytes_per_token)}, and "
        f"{size_text(found.reserve_bytes)} for activations and graphs, of the {size_text(budget(engine))} that "
        f"gpu_memory_utilization {engine.gpu_memory_utilization:g} gives of {size_text(engine.memory_bytes)}"
    )
    fixes = remedies(shape, engine, found)
    fix = f"To make it fit: {'; '.join(fixes)}." if fixes else "Use larger GPUs or partitions."
    certain = found.basis == "exact" and found.headroom_bytes + found.reserve_bytes < 0
    if certain:
        return (Problem(deployment.path, f"{what}.", fix),), ()
    return (), (f"{what.replace(' does not fit:', ' may not fit:')}. {fix}",)


def budget(engine: EngineConfig) -> int:
    """What vLLM may take of a GPU, in bytes."""
    return int(engine.memory_bytes * engine.gpu_memory_utilization)


def _partition_too_small(
    machine: TargetGpu, shape: ModelShape, engine: EngineConfig, found: Fit
) -> tuple[str, ...]:
    """A partition whose KV cache is too small to keep it busy, with what the whole GPU would have."""
    if machine.gpu_bytes <= machine.memory_bytes or found.max_concurrency >= FEW_REQUESTS:
        return ()
    whole = fit(shape, replace(engine, memory_bytes=machine.gpu_bytes, tp=1))
    return (
        f"{machine.compute} leaves too little memory for this model's KV cache: it holds {found.max_concurrency:.1f} "
        "requests of "
        f"{found.max_model_len} tokens per instance; the whole GPU (SPX) would hold {whole.max_concurrency:.0f}",
    )


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
