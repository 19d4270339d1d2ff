# SPDX-License-Identifier: Apache-2.0
"""Refuse what stops vLLM at its start and is no condition on single arguments: contradictions, shapes, drafting. Pure.

What the release's own sources say by themselves is in engine_refusals.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...module_utils.common.errors import Problem
from ..catalog.flag_values import Value
from ..desired.deployment import Deployment
from .companion_models import mapping
from .option_refusals import option_refusals
from .tune import TunedSettings

NEEDS = (
    ("--enable-auto-tool-choice", "--tool-call-parser"),
    ("--enable-log-outputs", "--enable-log-requests"),
)
"""Switches that stop the server without another flag; validate_parsed_serve_args of the releases."""
MAPS = (
    "--additional-config",
    "--hf-overrides",
    "--limit-mm-per-prompt",
    "--media-io-kwargs",
    "--mm-processor-kwargs",
    "--override-generation-config",
)
"""Flags whose parser takes any JSON, and the configuration classes only a map; typed since 0.9.1."""
LIMITS: Mapping[str, tuple[float, float | None, str]] = {
    "--mm-processor-cache-gb": (0, None, "at least 0"),
    "--mm-shm-cache-max-object-size-mb": (0, None, "at least 0"),
    "--video-pruning-rate": (0, 1, "at least 0, and below 1"),
}
"""Lowest values, and those below which they must be; vllm/config/multimodal.py, since 0.11.1."""
ONLY: Mapping[str, tuple[str, ...]] = {
    "--data-parallel-backend": ("mp", "ray"),
    "--max-num-partial-prefills": ("1",),
    "--max-long-partial-prefills": ("1",),
    "--optimization-level": ("0", "1", "2", "3", "O0", "O1", "O2", "O3"),
}
"""Flags whose parser takes more than the engine does; EngineArgs.create_engine_config, since 0.11.0."""
OWN_DRAFT = ("eagle", "eagle3", "medusa", "mlp_speculator", "draft_model", "ngram", "[ngram]", "ngram_gpu")
"""Methods of --speculative-config for which the number of tokens is in no checkpoint."""
NEEDS_DRAFT = ("eagle", "eagle3", "medusa", "mlp_speculator", "draft_model")
METRICS = "--show-hidden-metrics-for-version"
_VERSION = re.compile(r"v?\d+(\.\d+)*")
SPECULATIVE, COMPILATION = "--speculative-config", "--compilation-config"
SIZES, LARGEST = "cudagraph_capture_sizes", "max_cudagraph_capture_size"


def start_refusals(
    deployment: Deployment, tuned: TunedSettings, config: Mapping[str, Any] | None
) -> tuple[Problem, ...]:
    """Return the problems; config None: the model's config.json is not known."""
    if tuned.problems:
        return ()
    found = [
        *_missing(tuned),
        *_shapes(tuned),
        *_values(tuned, config),
        *_experts(tuned, config),
        *_speculative(tuned, config),
        *_capture_sizes(tuned),
        *option_refusals(tuned, config, config is not None and _speaks_of(config, "vision", "audio")),
    ]
    version = tuned.release.requested
    return tuple(
        Problem(deployment.path, f"{flag}: vLLM {version} stops at its start: {what}.", fix)
        for flag, what, fix in found
    )


Found = Iterator[tuple[str, str, str]]


def _missing(tuned: TunedSettings) -> Found:
    for flag, other in NEEDS:
        absent = tuned.args.get(other) in (None, False, "") and tuned.table.get(other) is not None
        if tuned.args.get(flag) is True and absent:
            yield flag, f"it needs {other}", f"Set {other}, or leave {flag} out."


def _shapes(tuned: TunedSettings) -> Found:
    if not tuned.table.line.inside("0.9.1", None, tuned.release.index):
        return
    for flag in MAPS:
        value = tuned.args.get(flag)
        if value is not None and not isinstance(_plain(value), Mapping):
            yield flag, f"{value!r} is no map", "Write a map of keys and values."


def _values(tuned: TunedSettings, config: Mapping[str, Any] | None) -> Found:
    if not tuned.table.line.inside("0.11.0", None, tuned.release.index):
        return
    sees = config is not None and _speaks_of(config, "vision", "audio")  # else nothing reads them
    for flag, (low, high, meaning) in LIMITS.items() if sees else ():
        value = tuned.args.get(flag)
        if isinstance(value, (int, float)) and not (low <= value and (high is None or value < high)):
            yield flag, f"{value} is out of range", f"It must be {meaning}."
    for flag, known in ONLY.items():
        value = tuned.args.get(flag)
        if value is not None and str(value) not in known:
            yield flag, f"{value!r} is not supported", f"Use {' or '.join(known)}, or leave it out."
    version = tuned.args.get(METRICS)
    if version is not None and not _VERSION.match(str(version)):
        yield METRICS, f"{version!r} is no version", "Write one such as 0.11."


def _experts(tuned: TunedSettings, config: Mapping[str, Any] | None) -> Found:
    flag = "--enable-expert-parallel"
    if tuned.args.get(flag) is True and config is not None and not _speaks_of(config, "expert"):
        yield flag, "the model has no experts", "Leave it out."


def _speculative(tuned: TunedSettings, config: Mapping[str, Any] | None) -> Found:
    given = tuned.args.get(SPECULATIVE)
    if given is None or not isinstance(_plain(given), Mapping):
        return
    wanted = mapping(given)
    method, draft = wanted.get("method"), wanted.get("model")
    mtp = isinstance(method, str) and (method == "mtp" or method.endswith("_mtp"))
    if wanted.get("num_speculative_tokens") is None and (
        method in OWN_DRAFT or (draft is None and (method is None or mtp))
    ):
        yield SPECULATIVE, "it has no num_speculative_tokens", "Add num_speculative_tokens, such as 3."
    elif draft is None and method in NEEDS_DRAFT:
        yield SPECULATIVE, f"method {method} drafts with a model, and none is named", "Name it as model."
    elif mtp and draft is None and config is not None and not _speaks_of(config, "mtp", "nextn"):
        what = f"method {method} needs a model with layers that draft, and this one has none"
        yield SPECULATIVE, what, "Use method ngram, or a draft model."
    low, high = wanted.get("prompt_lookup_min"), wanted.get("prompt_lookup_max")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        what = f"prompt_lookup_min is {low}, and prompt_lookup_max {high}"
        yield SPECULATIVE, what, "Make it at least as large as prompt_lookup_min."
    size, target = wanted.get("draft_tensor_parallel_size"), tuned.context.tp
    if draft is not None and isinstance(size, int) and size not in (1, target):
        what = f"draft_tensor_parallel_size is {size}, and tensor_parallel_size {target}"
        yield SPECULATIVE, what, "Make them equal, or the draft's 1."


def _speaks_of(config: Mapping[str, Any], *words: str) -> bool:
    """Whether a key or the type of a config.json has one of these words."""
    inner = config.get("text_config")
    names = [*config, *(inner if isinstance(inner, Mapping) else ()), str(config.get("model_type"))]
    return any(word in name for name in names for word in words)


def _capture_sizes(tuned: TunedSettings) -> Found:
    inner = mapping(tuned.args.get(COMPILATION))
    sizes = tuned.args.get(f"--{SIZES.replace('_', '-')}", inner.get(SIZES))
    largest = tuned.args.get(f"--{LARGEST.replace('_', '-')}", inner.get(LARGEST))
    off = tuned.args.get("--enforce-eager") or inner.get("cudagraph_mode") == "NONE"
    if (
        off
        or not isinstance(sizes, (list, tuple))
        or not isinstance(largest, int)
        or isinstance(largest, bool)
    ):
        return
    if sizes and all(isinstance(size, int) for size in sizes) and max(sizes) < largest:
        what = f"{LARGEST} is {largest}, and the largest of {SIZES} {max(sizes)}"
        yield f"--{LARGEST.replace('_', '-')}", what, "Make them equal, or leave one out."


def _plain(value: Value) -> Any:
    """The value as it is after its JSON is read."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
