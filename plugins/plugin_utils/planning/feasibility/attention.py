# SPDX-License-Identifier: Apache-2.0
"""Check that a model's attention backend can run it, and name the one that the server's log must confirm. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ....module_utils.common.errors import Problem
from ...knowledge.catalog.facts import ModelFacts
from ...knowledge.catalog.images import ImageFacts
from ...knowledge.catalog.load import Knowledge
from ...knowledge.sizing.fit import EngineConfig
from ...knowledge.vllm.attention_backends import DENSE, MLA, Backends, Claim, check_named
from ..desired.deployment import Deployment
from ..tuning.tune import TunedSettings

ROCM = "rocm"
"""The platform of images for Instinct GPUs, where it is known."""
AUTO, SHORT_TYPES = "auto", {"float": "float32", "half": "float16"}
"""Short names of data types, with vLLM's full names; vllm/config/model.py."""
LAST, OWN_BACKEND = "triton", ("turboquant", "ultraquant")
"""The backend that vLLM uses if no other fits, and caches that have a backend of their own; vllm/platforms/rocm.py."""


def backend_problems(
    deployment: Deployment,
    tuned: TunedSettings,
    model: ModelFacts,
    engine: EngineConfig,
    knowledge: Knowledge,
) -> tuple[Problem, ...]:
    """Return a problem if the backend that the operator named, or that of latent attention, cannot run the model."""
    name = tuned.known.get("attention_backend")
    backends = Backends(tuned.release, tuned.table.line, knowledge.backends)
    rules = knowledge.rules("engine", tuned.release)
    wrong = _wrong_kind(deployment, tuned, model, backends, rules) if engine.platform == ROCM else ()
    if wrong:
        return wrong
    if _latent(tuned, model) and engine.platform == ROCM:  # even vLLM's own choice may stop it
        name = backends.in_effect(MLA, tuned.args, tuned.env, {"sparse": bool(model.sparse)})
    elif engine.platform == ROCM and not isinstance(name, str):
        return _no_backend(deployment, tuned, model, engine, backends) if rules["compares_backends"] else ()
    if not isinstance(name, str) or name not in knowledge.backends["backends"]:
        return ()
    return tuple(
        Problem(deployment.path, f"attention backend {name}: {misfit}.", "Choose another, or leave it out.")
        for misfit in backends.misfits(name, _shape_facts(tuned, model, engine))
    )


def _wrong_kind(
    deployment: Deployment,
    tuned: TunedSettings,
    model: ModelFacts,
    backends: Backends,
    rules: Mapping[str, Any],
) -> tuple[Problem, ...]:
    """Return a problem if the named backend is for the other kind of attention, or attention_config names a bad one."""
    inner = tuned.args.get("--attention-config")
    by = backends.named_by() or ""
    given = tuned.args.get(by) if by.startswith("-") else tuned.env.get(by)
    if given is None and isinstance(inner, Mapping) and by.startswith("-"):
        given = inner.get("backend")
        if not isinstance(given, (str, type(None))):
            what = f"attention_config: backend is {given!r}, which is not a name."
            return (Problem(deployment.path, what, "Name an attention backend, or leave it out."),)
        finding = check_named(backends, given) if isinstance(given, str) else None
        if finding is not None and finding.certain:
            return (Problem(deployment.path, f"attention_config: {finding.what}.", finding.fix),)
    named = backends.called(str(given or "").upper())
    kind = MLA if _latent(tuned, model) else DENSE
    ignored = kind == DENSE and not rules["kind_of_backend"]
    if named is None or named[1] == kind or ignored or not model.architectures or not tuned.release.exact:
        return ()
    what = (
        f"attention backend {str(given).upper()}: it is for {named[1]} attention, but the model's is {kind}."
    )
    return (Problem(deployment.path, what, "Choose another, or leave it out."),)


def _no_backend(
    deployment: Deployment, tuned: TunedSettings, model: ModelFacts, engine: EngineConfig, backends: Backends
) -> tuple[Problem, ...]:
    """Return a problem if no attention backend from which vLLM chooses accepts the given arguments."""
    asked = {"block_size": engine.block_size, "kv_cache_dtype": engine.kv_cache_dtype}
    given = {key: value for key, value in asked.items() if f"--{key.replace('_', '-')}" in tuned.args}
    if not given:
        return ()
    dtype = str(given.get("kv_cache_dtype"))
    if dtype.startswith(OWN_BACKEND):
        what = f"no attention backend of vLLM {tuned.release.requested} has attention sinks and {dtype}."
        return (Problem(deployment.path, what, "Choose another kv_cache_dtype."),) if model.sinks else ()
    names = (*(str(candidate["backend"]) for candidate in backends.era[DENSE]), LAST)
    misfits = [backends.misfits(name, given) for name in names]
    if not all(misfits):
        return ()
    what = f"no attention backend of vLLM {tuned.release.requested} can run: {misfits[-1][0]}."
    return (Problem(deployment.path, what, f"Leave {' and '.join(given)} out, or choose another value."),)


def _latent(tuned: TunedSettings, model: ModelFacts) -> bool:
    """Return whether vLLM runs the model's attention as latent attention."""
    return bool(model.mla) and tuned.env.get("VLLM_MLA_DISABLE") not in ("1", "true")


def _shape_facts(tuned: TunedSettings, model: ModelFacts, engine: EngineConfig) -> dict[str, Any]:
    """Return the facts for which an attention backend may refuse to run, as far as they are known."""
    facts: dict[str, Any] = {"sinks": model.sinks, "kv_cache_dtype": engine.kv_cache_dtype}
    facts |= {"heads": model.heads, "tp": engine.tp}
    facts["full_graphs"] = not engine.enforce_eager and _graphs(tuned) == "FULL"
    facts["block_one"] = engine.block_size == 1 and "--block-size" in tuned.args
    if "--block-size" in tuned.args:
        facts["block_size"] = engine.block_size
    dtype = str(tuned.args.get("--dtype", AUTO)).lower()
    if dtype != AUTO:
        facts["dtype"] = SHORT_TYPES.get(dtype, dtype)
    if model.head_size:
        facts["head_size"] = model.head_size
    return facts


def _graphs(tuned: TunedSettings) -> str:
    """Return the mode of CUDA graphs that was chosen; empty if vLLM chooses it."""
    given = tuned.args.get("--compilation-config")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return ""
    return str(given.get("cudagraph_mode", "")).upper() if isinstance(given, Mapping) else ""


def claimed_backend(
    software: ImageFacts, tuned: TunedSettings, model: ModelFacts, engine: EngineConfig, knowledge: Knowledge
) -> Claim | None:
    """Return the attention backend that the server's log must confirm.

    None if the platform, the release or the shape is not known: what is only assumed is not claimed.
    """
    latent = _latent(tuned, model)
    undescribed = model.mla and not latent  # config.json has the shape of latent attention only
    if software.platform != ROCM or not tuned.release.exact or not model.heads or undescribed:
        return None
    facts = {
        **_shape_facts(tuned, model, engine),
        "sparse": model.sparse,
        "kv_connector": "--kv-transfer-config" in tuned.args,
        "v1": engine.v1,
    }
    backends = Backends(tuned.release, tuned.table.line, knowledge.backends)
    return backends.claim(MLA if latent else DENSE, tuned.args, tuned.env, facts)
