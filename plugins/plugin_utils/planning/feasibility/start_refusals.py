# SPDX-License-Identifier: Apache-2.0
"""Refuse what stops vLLM at its start and is no condition on single arguments: contradictions, shapes, drafting. Pure.

What the release's own sources say by themselves is in engine_refusals.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ....module_utils.common.errors import Problem
from ...knowledge.vllm.flag_values import Value
from ..desired.deployment import Deployment
from ..tuning.tune import TunedSettings
from .graph_refusals import graph_refusals
from .option_refusals import option_refusals
from .speculative_refusals import speaks_of, speculative_refusals

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
METRICS = "--show-hidden-metrics-for-version"
_VERSION = re.compile(r"v?\d+(\.\d+)*")


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
        *speculative_refusals(tuned, config),
        *graph_refusals(tuned),
        *option_refusals(tuned, config is not None and speaks_of(config, "vision", "audio")),
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
    if not tuned.inside("0.9.1"):
        return
    for flag in MAPS:
        value = tuned.args.get(flag)
        if value is not None and not isinstance(_plain(value), Mapping):
            yield flag, f"{value!r} is no map", "Write a map of keys and values."


def _values(tuned: TunedSettings, config: Mapping[str, Any] | None) -> Found:
    if not tuned.inside("0.11.0"):
        return
    sees = config is not None and speaks_of(config, "vision", "audio")  # else nothing reads them
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
    if tuned.args.get(flag) is True and config is not None and not speaks_of(config, "expert"):
        yield flag, "the model has no experts", "Leave it out."


def _plain(value: Value) -> Any:
    """The value as it is after its JSON is read."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
