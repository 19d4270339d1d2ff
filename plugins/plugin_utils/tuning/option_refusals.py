# SPDX-License-Identifier: Apache-2.0
"""Refuse values and pairs of options that stop vLLM at its start, of which its sources give no condition. Pure.

Each names the releases whose code was read: from the first one on, up to the one that no longer has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from .tune import TunedSettings

Found = Iterator[tuple[str, str, str]]
"""The flag, what is wrong, and what to do."""

SPECULATIVE, COMPILATION = "--speculative-config", "--compilation-config"
EXECUTOR, SHM = "--distributed-executor-backend", "--mm-shm-cache-max-object-size-mb"
SUPERVISED = "--data-parallel-multi-port-external-lb"
AT_LEAST_ONE = ("--max-model-len", "--prefill-context-parallel-size")
"""Their parsers take 0, and the engine's configuration does not; since 0.13.0."""
TOKENS, SHORT = "--spec-tokens", {"--spec-model": "model", "--spec-method": "method"}
"""Flags that go into the configuration of speculation, since 0.22.0; vllm/engine/arg_utils.py."""
ASYNC_SINCE, ASYNC_UNTIL = "0.11.1", "0.33.0"
SYNCHRONOUS: Mapping[str, str | None] = {
    "ngram": None, "suffix": None, "medusa": None, "mlp_speculator": None, "draft_model": "0.16.0",
    "ngram_gpu": "0.18.0",
}  # fmt: skip
"""Methods of speculation without asynchronous scheduling, and the release that brings it; vllm/config/vllm.py."""
NAMELESS = ("0.15.0", "0.17.0")
"""Releases that do not take a draft without a method for a whole model; vllm/config/speculative.py."""
HEADS = ("eagle-", "eagle3", "dflash", "medusa", "mlp_speculator", "mlp-speculator", "mtp", "ngram")
"""Words in the name of a draft by which these releases tell its method, or which say what its config.json has."""
NO_PIPELINE = ("eagle", "eagle3", "dflash")
"""Methods whose draft models cannot be split into stages."""
REQUIRED: Mapping[str, tuple[str, ...]] = {"--watermark-config": ("key",)}
"""Keys of JSON without a default; vllm/config/watermarking.py, since 0.30.0."""
PROFILER, PROFILER_NEEDS = "--profiler-config", ("0.13.0", "0.16.0")
"""Releases whose check of the directory looks at variables too; vllm/config/profiler.py."""
EXECUTORS = ("ray", "mp", "uni", "external_launcher")
EXECUTOR_SINCE, GRAPHS_SINCE, SHM_SINCE, MAMBA_SINCE = "0.19.0", "0.11.1", "0.11.1", "0.20.0"
SHM_DEFAULT = 128
POOLER, POOLER_NEEDS = "--pooler-config", ("0.12.0", "0.14.0")
"""Releases that read the pooling_type of any pooler_config; vllm/config/model.py."""
_FIRST = ("llama", "qwen", "minicpm", "gpt_oss")
_SECOND = (*_FIRST, "hunyuan_vl", "hunyuan_v1_dense", "afmoe")
_THIRD = (*_SECOND, "nemotron_h", "deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25")
TARGETS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("0.10.1", _FIRST[:2]),
    ("0.11.0", _FIRST),
    ("0.16.0", _SECOND),
    ("0.17.0", _THIRD[:8]),
    ("0.18.0", _THIRD),
    ("0.19.1", (*_THIRD, "minimax_m2", "gemma4")),
    ("0.21.0", (*_THIRD, "minimax_m2", "gemma4", "laguna")),
    ("0.22.0", ()),
)
"""Parts of the types of models for which a release takes an EAGLE-3 draft; none: any; vllm/config/speculative.py."""
MAMBA = ("triton", "flashinfer")
BASES, BASES_SINCE = ("all", "none"), "0.27.0"
"""Items of custom_ops of which there may be one; vllm/config/compilation.py."""
SHARDED, SHARDED_SINCE = "--enable-batch-sharded-sampling", "0.29.0"
ROUTED, ROUTED_NEEDS = "--enable-return-routed-experts", ("0.21.0", "0.22.0")
"""Releases that return the experts of tokens only where nothing is scheduled ahead; vllm/config/vllm.py."""


def option_refusals(tuned: TunedSettings, config: Mapping[str, Any] | None, multimodal: bool) -> Found:
    """Yield what stops the release.

    config None: the model's config.json is not known. multimodal: whether it is known to read images, video or audio.
    """
    yield from _executor(tuned)
    yield from _pooling(tuned)
    yield from _graphs(tuned)
    yield from _numbers(tuned)
    yield from _operations(tuned)
    yield from _routed(tuned)
    yield from _sharded(tuned)
    given = as_map(tuned.args.get(SPECULATIVE))
    names = {*(given or ()), *(key for flag, key in SHORT.items() if tuned.args.get(flag) is not None)}
    if TOKENS in tuned.args and not names & set(SHORT.values()):
        yield TOKENS, "no method and no model is named", "Add spec_method or spec_model, or leave it out."
    if given is not None:
        yield from _asynchronous(tuned, given)
        yield from _drafting(tuned, given)
        yield from _target(tuned, given, config or {})
    size = tuned.args.get(SHM)
    shared = tuned.args.get("--mm-processor-cache-type") == "shm"
    if multimodal and size not in (None, SHM_DEFAULT) and not shared and _inside(tuned, SHM_SINCE):
        yield SHM, "only the cache of type shm has it", "Set mm_processor_cache_type: shm, or leave it out."


def as_map(value: Any) -> Mapping[str, Any] | None:
    """Return what a flag with JSON holds; None for anything but a map."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) else None


def _inside(tuned: TunedSettings, since: str, until: str | None = None) -> bool:
    return tuned.table.line.inside(since, until, tuned.release.index)


def _executor(tuned: TunedSettings) -> Found:
    backend, size = tuned.args.get(EXECUTOR), tuned.context.pp
    known = not isinstance(backend, str) or backend in EXECUTORS or "." in backend
    if backend == "" and size == 1:  # as without one
        known = True
    if not known and (size > 1 or _inside(tuned, EXECUTOR_SINCE)):
        yield EXECUTOR, f"{backend!r} is no executor", f"Use {' or '.join(EXECUTORS[:2])}, or leave it out."
    if tuned.args.get(SUPERVISED) is True and tuned.context.dp == 1:
        yield SUPERVISED, "data_parallel_size is 1", "Set data_parallel_size, or leave it out."
    backend = tuned.args.get("--mamba-backend")
    if isinstance(backend, str) and backend.lower() not in MAMBA and _inside(tuned, MAMBA_SINCE):
        yield "--mamba-backend", f"{backend!r} is no backend", f"Use {' or '.join(MAMBA)}, or leave it out."


def _numbers(tuned: TunedSettings) -> Found:
    traced = as_map(tuned.args.get(PROFILER)) or {}
    placed = traced.get("torch_profiler_dir") or tuned.env.get("VLLM_TORCH_PROFILER_DIR")
    if traced.get("profiler") == "torch" and not placed and _inside(tuned, *PROFILER_NEEDS):
        yield (
            PROFILER,
            "it has no torch_profiler_dir",
            "Add torch_profiler_dir, a directory of the container.",
        )
    for flag, keys in REQUIRED.items():
        given = as_map(tuned.args.get(flag))
        for key in [name for name in keys if given is not None and name not in given]:
            yield flag, f"it has no {key}", f"Add {key}, or leave {flag} out."
    for flag in AT_LEAST_ONE if _inside(tuned, "0.13.0") else ():
        value = tuned.args.get(flag)
        if isinstance(value, int) and not isinstance(value, bool) and value == 0:
            yield flag, "it is 0", "Set it to 1 at least, or leave it out."


def _graphs(tuned: TunedSettings) -> Found:
    inner = as_map(tuned.args.get(COMPILATION)) or {}
    key = "max_cudagraph_capture_size"
    largest = tuned.args.get(f"--{key.replace('_', '-')}", inner.get(key))
    off = (
        tuned.args.get("--enforce-eager")
        or str(inner.get("cudagraph_mode", "")).upper() == "NONE"
        or str(tuned.args.get("--optimization-level")) in ("0", "O0")
    )
    if not isinstance(largest, int) or isinstance(largest, bool) or largest > 0 or off:
        return
    if _inside(tuned, GRAPHS_SINCE):
        fix = "Set it to 1 at least, or enforce_eager: true for none at all."
        yield f"--{key.replace('_', '-')}", f"{largest} is below 1, the size of the smallest graph", fix


def _operations(tuned: TunedSettings) -> Found:
    listed = (as_map(tuned.args.get(COMPILATION)) or {}).get("custom_ops")
    bases = [item for item in listed if item in BASES] if isinstance(listed, list) else []
    if len(bases) > 1 and _inside(tuned, BASES_SINCE):
        yield COMPILATION, f"custom_ops has {' and '.join(bases)}", "Leave one of them."


def _routed(tuned: TunedSettings) -> Found:
    ahead = tuned.args.get("--async-scheduling")
    if ahead is None:  # vLLM's own choice; with a draft it depends on the method
        ahead = as_map(tuned.args.get(SPECULATIVE)) is None and tuned.args.get(EXECUTOR) in (
            None,
            "mp",
            "uni",
        )
    if tuned.args.get(ROUTED) is True and ahead and _inside(tuned, *ROUTED_NEEDS):
        yield (
            ROUTED,
            "it does not work with asynchronous scheduling",
            "Set async_scheduling: false, or leave it out.",
        )


def _sharded(tuned: TunedSettings) -> Found:
    if tuned.args.get(SHARDED) is not True or not _inside(tuned, SHARDED_SINCE):
        return
    seqs, size = tuned.args.get("--max-num-seqs"), tuned.context.tp
    if size == 1:
        yield SHARDED, "tensor_parallel_size is 1, so there is nothing to shard", f"Leave {SHARDED} out."
    elif isinstance(seqs, int) and seqs < size:
        yield SHARDED, f"max_num_seqs {seqs} is below tensor_parallel_size {size}", f"Leave {SHARDED} out."
    if tuned.args.get("--max-logprobs") == -1:
        yield SHARDED, "max_logprobs is -1", "Set max_logprobs to a number, or leave it out."


def _asynchronous(tuned: TunedSettings, given: Mapping[str, Any]) -> Found:
    if tuned.args.get("--async-scheduling") is not True or not _inside(tuned, ASYNC_SINCE, ASYNC_UNTIL):
        return
    named = given.get("method") or ("ngram" if given.get("model") in ("ngram", "[ngram]") else "")
    method = str(named).strip("[]")
    until = SYNCHRONOUS.get(method)
    if method in SYNCHRONOUS and (until is None or not _inside(tuned, until)):
        what = f"asynchronous scheduling does not work with speculative method {method}"
        yield "--async-scheduling", what, "Leave one of async_scheduling and speculative_config out."


def _drafting(tuned: TunedSettings, given: Mapping[str, Any]) -> Found:
    method, model = given.get("method"), str(given.get("model") or "").lower()
    if method is None and model and not any(word in model for word in HEADS) and _inside(tuned, *NAMELESS):
        yield SPECULATIVE, "it names a draft and no method", "Add method, such as draft_model or eagle3."
    if method in NO_PIPELINE and model and tuned.context.pp > 1:
        what = f"a draft of method {method} cannot be split into the {tuned.context.pp} stages of the model"
        yield SPECULATIVE, what, "Set pipeline_parallel_size to 1, or leave speculative_config out."


def _target(tuned: TunedSettings, given: Mapping[str, Any], config: Mapping[str, Any]) -> Found:
    inner = config.get("text_config")
    kind = (inner if isinstance(inner, Mapping) else {}).get("model_type") or config.get("model_type")
    known = tuned.table.line.value(TARGETS, tuned.release.index, ())
    fits = not known or not isinstance(kind, str) or any(part in kind for part in known)
    if given.get("method") == "eagle3" and not fits:
        what = f"this release takes no EAGLE-3 draft for models of type {kind}"
        yield SPECULATIVE, what, "Use method ngram, or a later release."


def _pooling(tuned: TunedSettings) -> Found:
    given = as_map(tuned.args.get(POOLER))
    if given is None or given.get("pooling_type") or not _inside(tuned, *POOLER_NEEDS):
        return
    others = (tuned.args.get("--runner"), tuned.args.get("--convert"), tuned.args.get("--task"))
    if all(value in (None, "auto", "none", "generate") for value in others):
        yield POOLER, "it has no pooling_type", "Add pooling_type, such as LAST, or leave it out."
