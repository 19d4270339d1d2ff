# SPDX-License-Identifier: Apache-2.0
"""Refuse values and pairs of options that stop vLLM at its start, of which its sources give no condition. Pure.

Each names the releases whose code was read: from the first one on, up to the one that no longer has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..tuning.tune import TunedSettings

Found = Iterator[tuple[str, str, str]]
"""The flag, what is wrong, and what to do."""

COMPILATION = "--compilation-config"
SPECULATION = {"--spec-model": "model", "--spec-method": "method", "--spec-tokens": "num_speculative_tokens"}
"""Flags that go into the configuration of speculation, since 0.22.0; vllm/engine/arg_utils.py."""
EXECUTOR, SHM = "--distributed-executor-backend", "--mm-shm-cache-max-object-size-mb"
SUPERVISED = "--data-parallel-multi-port-external-lb"
AT_LEAST_ONE = ("--max-model-len", "--prefill-context-parallel-size")
"""Their parsers take 0, and the engine's configuration does not; since 0.13.0."""
REQUIRED: Mapping[str, tuple[str, ...]] = {"--watermark-config": ("key",)}
"""Keys of JSON without a default; vllm/config/watermarking.py, since 0.30.0."""
PROFILER, PROFILER_NEEDS = "--profiler-config", ("0.13.0", "0.16.0")
"""Releases whose check of the directory looks at variables too; vllm/config/profiler.py."""
EXECUTORS = ("ray", "mp", "uni", "external_launcher")
EXECUTOR_SINCE, SHM_SINCE, MAMBA_SINCE = "0.19.0", "0.11.1", "0.20.0"
SHM_DEFAULT = 128
POOLER, POOLER_NEEDS = "--pooler-config", ("0.12.0", "0.14.0")
"""Releases that read the pooling_type of any pooler_config; vllm/config/model.py."""
MAMBA = ("triton", "flashinfer")
BASES, BASES_SINCE = ("all", "none"), "0.27.0"
"""Items of custom_ops of which there may be one; vllm/config/compilation.py."""
SHARDED, SHARDED_SINCE = "--enable-batch-sharded-sampling", "0.29.0"
ROUTED, ROUTED_NEEDS = "--enable-return-routed-experts", ("0.21.0", "0.22.0")
"""Releases that return the experts of tokens only where nothing is scheduled ahead; vllm/config/vllm.py."""


def option_refusals(tuned: TunedSettings, multimodal: bool) -> Found:
    """Yield what stops the release. multimodal: whether the model is known to read images, video or audio."""
    yield from _executor(tuned)
    yield from _pooling(tuned)
    yield from _numbers(tuned)
    yield from _operations(tuned)
    yield from _routed(tuned)
    yield from _sharded(tuned)
    size = tuned.args.get(SHM)
    shared = tuned.args.get("--mm-processor-cache-type") == "shm"
    if multimodal and size not in (None, SHM_DEFAULT) and not shared and tuned.inside(SHM_SINCE):
        yield SHM, "only the cache of type shm has it", "Set mm_processor_cache_type: shm, or leave it out."


def as_map(value: Any) -> Mapping[str, Any] | None:
    """Return what a flag with JSON holds; None for anything but a map."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) else None


def speculation(tuned: TunedSettings) -> Mapping[str, Any]:
    """Return the configuration of speculation with the flags that stand for its keys; empty where there is none."""
    short = {key: tuned.args[flag] for flag, key in SPECULATION.items() if tuned.args.get(flag) is not None}
    return {**(as_map(tuned.args.get("--speculative-config")) or {}), **short}


def _executor(tuned: TunedSettings) -> Found:
    backend, size = tuned.args.get(EXECUTOR), tuned.context.pp
    known = not isinstance(backend, str) or backend in EXECUTORS or "." in backend
    if backend == "" and size == 1:  # as without one
        known = True
    if not known and (size > 1 or tuned.inside(EXECUTOR_SINCE)):
        yield EXECUTOR, f"{backend!r} is no executor", f"Use {' or '.join(EXECUTORS[:2])}, or leave it out."
    if tuned.args.get(SUPERVISED) is True and tuned.context.dp == 1:
        yield SUPERVISED, "data_parallel_size is 1", "Set data_parallel_size, or leave it out."
    backend = tuned.args.get("--mamba-backend")
    if isinstance(backend, str) and backend.lower() not in MAMBA and tuned.inside(MAMBA_SINCE):
        yield "--mamba-backend", f"{backend!r} is no backend", f"Use {' or '.join(MAMBA)}, or leave it out."


def _numbers(tuned: TunedSettings) -> Found:
    traced = as_map(tuned.args.get(PROFILER)) or {}
    placed = traced.get("torch_profiler_dir") or tuned.env.get("VLLM_TORCH_PROFILER_DIR")
    if traced.get("profiler") == "torch" and not placed and tuned.inside(*PROFILER_NEEDS):
        yield (
            PROFILER,
            "it has no torch_profiler_dir",
            "Add torch_profiler_dir, a directory of the container.",
        )
    for flag, keys in REQUIRED.items():
        given = as_map(tuned.args.get(flag))
        for key in [name for name in keys if given is not None and name not in given]:
            yield flag, f"it has no {key}", f"Add {key}, or leave {flag} out."
    for flag in AT_LEAST_ONE if tuned.inside("0.13.0") else ():
        value = tuned.args.get(flag)
        if isinstance(value, int) and not isinstance(value, bool) and value == 0:
            yield flag, "it is 0", "Set it to 1 at least, or leave it out."


def _operations(tuned: TunedSettings) -> Found:
    listed = (as_map(tuned.args.get(COMPILATION)) or {}).get("custom_ops")
    bases = [item for item in listed if item in BASES] if isinstance(listed, list) else []
    if len(bases) > 1 and tuned.inside(BASES_SINCE):
        yield COMPILATION, f"custom_ops has {' and '.join(bases)}", "Leave one of them."


def _routed(tuned: TunedSettings) -> Found:
    ahead = tuned.args.get("--async-scheduling")
    if ahead is None:  # vLLM's own choice; with a draft it depends on the method
        ahead = not speculation(tuned) and tuned.args.get(EXECUTOR) in (
            None,
            "mp",
            "uni",
        )
    if tuned.args.get(ROUTED) is True and ahead and tuned.inside(*ROUTED_NEEDS):
        yield (
            ROUTED,
            "it does not work with asynchronous scheduling",
            "Set async_scheduling: false, or leave it out.",
        )


def _sharded(tuned: TunedSettings) -> Found:
    if tuned.args.get(SHARDED) is not True or not tuned.inside(SHARDED_SINCE):
        return
    seqs, size = tuned.args.get("--max-num-seqs"), tuned.context.tp
    if size == 1:
        yield SHARDED, "tensor_parallel_size is 1, so there is nothing to shard", f"Leave {SHARDED} out."
    elif isinstance(seqs, int) and seqs < size:
        yield SHARDED, f"max_num_seqs {seqs} is below tensor_parallel_size {size}", f"Leave {SHARDED} out."
    if tuned.args.get("--max-logprobs") == -1:
        yield SHARDED, "max_logprobs is -1", "Set max_logprobs to a number, or leave it out."


def _pooling(tuned: TunedSettings) -> Found:
    given = as_map(tuned.args.get(POOLER))
    if given is None or given.get("pooling_type") or not tuned.inside(*POOLER_NEEDS):
        return
    others = (tuned.args.get("--runner"), tuned.args.get("--convert"), tuned.args.get("--task"))
    if all(value in (None, "auto", "none", "generate") for value in others):
        yield POOLER, "it has no pooling_type", "Add pooling_type, such as LAST, or leave it out."
