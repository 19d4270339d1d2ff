# SPDX-License-Identifier: Apache-2.0
"""Refuse what stops vLLM at its start and is no condition on single arguments: contradictions, shapes, drafting. Pure.

What the release's own sources say by themselves is in engine_refusals.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ...module_utils.common.errors import Problem
from ..catalog.flag_values import Value
from ..desired.deployment import Deployment
from .companion_models import mapping
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
OWN_DRAFT = ("eagle", "eagle3", "medusa", "mlp_speculator", "draft_model", "ngram", "[ngram]", "ngram_gpu")
"""Methods of --speculative-config for which the number of tokens is in no checkpoint."""
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
        *_speculative(tuned, config),
        *_capture_sizes(tuned),
    ]
    version = tuned.release.requested
    return tuple(
        Problem(deployment.path, f"{flag}: vLLM {version} stops at its start: {what}.", fix)
        for flag, what, fix in found
    )


Found = Iterator[tuple[str, str, str]]


def _missing(tuned: TunedSettings) -> Found:
    for flag, other in NEEDS:
        if tuned.args.get(flag) is True and tuned.args.get(other) in (None, False, ""):
            if tuned.table.get(other) is not None:
                yield flag, f"it needs {other}", f"Set {other}, or leave {flag} out."


def _shapes(tuned: TunedSettings) -> Found:
    if not tuned.table.line.inside("0.9.1", None, tuned.release.index):
        return
    for flag in MAPS:
        value = tuned.args.get(flag)
        if value is not None and not isinstance(_plain(value), Mapping):
            yield flag, f"{value!r} is no map", "Write a map of keys and values."


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
    elif mtp and draft is None and config is not None and not _drafts(config):
        what = f"method {method} needs a model with layers that draft, and this one has none"
        yield SPECULATIVE, what, "Use method ngram, or a draft model."


def _drafts(config: Mapping[str, Any]) -> bool:
    """Whether a config.json speaks of layers for multi-token prediction."""
    names = [*config, *(config.get("text_config") or {}), str(config.get("model_type"))]
    return any("mtp" in name or "nextn" in name or "draft" in name for name in names)


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
