# SPDX-License-Identifier: Apache-2.0
"""Refuse what vLLM would refuse about a model when it configures its engine: quantization and data types. Pure.

Sources: ModelConfig._verify_quantization, _get_and_verify_dtype, VllmConfig._get_quantization_config and
get_quant_config of vLLM's releases; what differs between them is in catalog/vllm.

This is code rather than rules, as each answer searches the table of methods: which of them runs a checkpoint, what it
needs, and which other would run it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....module_utils.common.errors import Path, Problem, suggest
from ...knowledge.catalog.images import ImageFacts
from ...knowledge.catalog.load import Knowledge
from ...knowledge.catalog.quantization import UNKNOWN, QuantizationTable, method_of, quantization_config
from ..desired.deployment import Deployment
from ..tuning.companion_models import map_or_empty
from ..tuning.tune import OTHER_PLATFORMS, TunedSettings
from .places import any_of, operators_key

Found = Iterator[tuple[str, str, str]]
"""The argument, what is wrong with it, and what to do."""
DTYPES: Mapping[str, str] = {"half": "float16", "float": "float32"}
WITHOUT_DRAFT = ("ngram", "[ngram]", "ngram_gpu", "suffix", "mtp")
"""Methods of speculation that do not read the configuration of a draft model."""


def checkpoint_refusals(
    deployment: Deployment,
    software: ImageFacts,
    tuned: TunedSettings,
    config: Mapping[str, Any] | None,
    files: Sequence[tuple[str, int]] | None,
    knowledge: Knowledge,
    own: bool = True,
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Return problems, or warnings if the release is not known exactly or is a fork, whose checks were not read.

    config None: the model's config.json is not known. files None: the checkpoint's files are not known. own: config is
    the checkpoint's own, not that of the model that its name suggests, whose data type may differ.
    """
    facts = knowledge.quantization(tuned.release)
    rocm = software.platform not in OTHER_PLATFORMS
    found: list[tuple[str, str, str]] = []
    doubts: list[str] = []
    if facts.methods:
        found += _method(tuned, facts, config, rocm)
        if not found and config is not None and rocm and not _overridden(tuned):
            found += _checkpoint(tuned, facts, config)
            if not found:
                lacking = list(_unquantized(tuned, facts, config, files))
                if files is None:
                    doubts += [f"{what} {fix}" for _argument, what, fix in lacking]
                else:
                    found += lacking
        found += _draft(tuned, facts, rocm)
    if config is not None and not _overridden(tuned):
        found += _dtype(tuned, facts, config, knowledge, rocm, own)
    version = tuned.release.requested
    texts = [(argument, f"vLLM {version} stops at startup: {what}", fix) for argument, what, fix in found]
    if tuned.release.exact and not tuned.release.fork:
        return tuple(Problem(_place(deployment, name), what, fix) for name, what, fix in texts), tuple(doubts)
    return (), (*(f"{what} {fix}" for _name, what, fix in texts), *doubts)


def _wanted(tuned: TunedSettings) -> str:
    return str(tuned.args.get("--quantization") or "").lower()


def _overridden(tuned: TunedSettings) -> bool:
    """Return whether the operator changes the config.json that would be judged here."""
    return bool(tuned.args.get("--hf-overrides"))


def _method(
    tuned: TunedSettings, facts: QuantizationTable, config: Mapping[str, Any] | None, rocm: bool
) -> Found:
    """Yield why the method of --quantization is refused: unknown, not on ROCm, or deprecated."""
    name = _wanted(tuned)
    if not name:
        return
    running = name
    held = quantization_config(config) if config is not None and not _overridden(tuned) else None
    if held is not None and method_of(held) != UNKNOWN:
        running = facts.running(held, str((config or {}).get("model_type")), name) or name
    yield from _usable(tuned, facts, name, running, rocm)


def _usable(tuned: TunedSettings, facts: QuantizationTable, name: str, running: str, rocm: bool) -> Found:
    """Yield why a method is not usable in this release; running: the one that does its work."""
    note = tuned.table.replacements.choice("--quantization", name)
    usable = [item for item, method in facts.methods.items() if method.rocm and not method.deprecated]
    fix = note or suggest(name, usable)
    known = facts.methods.get(running)
    if name not in facts.methods or known is None:
        yield "quantization", f"it has no quantization method {name}.", fix
    elif not known.rocm and rocm:
        yield "quantization", f"it does not run the quantization method {running} on ROCm.", fix
    elif known.deprecated and not tuned.args.get("--allow-deprecated-quantization"):
        more = f"Set allow_deprecated_quantization: true as well. {note or ''}".rstrip()
        yield "quantization", f"the quantization method {running} is deprecated.", more


def _checkpoint(tuned: TunedSettings, facts: QuantizationTable, config: Mapping[str, Any]) -> Found:
    """Yield why no method runs a quantized checkpoint, or not in the way that the operator wants."""
    held = quantization_config(config)
    if held is None or method_of(held) in ("", UNKNOWN):
        return
    own, wanted, model = method_of(held), _wanted(tuned), str(config.get("model_type"))
    running = facts.running(held, model, wanted)
    accepted = facts.accepted(held, model)
    allowed = tuned.args.get("--allow-deprecated-quantization")
    if running is None and wanted:
        fix = f"Leave quantization out{f', or use {any_of(accepted)}' if accepted else ''}."
        yield "quantization", f"the checkpoint is quantized with {own}, but quantization is {wanted}.", fix
    elif running is None or running not in facts.methods:
        what = f"it cannot run the checkpoint, which is quantized with {own}."
        yield "model", what, "Use another checkpoint of the model, or an image with a newer vLLM."
    elif not wanted and not facts.methods[running].rocm:
        other = f"Set quantization: {any_of(accepted)}" if accepted else "Use another checkpoint of the model"
        what = f"it would run the checkpoint with the quantization method {running}, which is not for ROCm."
        yield "model", what, f"{other}, or use another image."
    elif not wanted and facts.methods[running].deprecated and not allowed:
        what = f"the checkpoint's quantization method {running} is deprecated."
        yield "model", what, "Set allow_deprecated_quantization: true, or use another checkpoint."


def _unquantized(
    tuned: TunedSettings,
    facts: QuantizationTable,
    config: Mapping[str, Any],
    files: Sequence[tuple[str, int]] | None,
) -> Found:
    """Yield that a method needs a quantized checkpoint, if this one is not quantized."""
    name = _wanted(tuned)
    method = facts.methods.get(name)
    if method is None or method.unquantized or quantization_config(config) is not None:
        return
    if files is not None and any(file.endswith(method.files) for file, _size in files if method.files):
        return
    online = [item for item in ("fp8", "bitsandbytes") if item in facts.methods and facts.methods[item].rocm]
    what = f"the checkpoint's config.json has no quantization_config, which quantization {name} needs"
    what += f", and it has no {any_of(method.files)} either." if method.files else "."
    fix = f"Use a checkpoint that is quantized with {name}, or leave quantization out."
    yield "quantization", what, f"{fix} {any_of(online)} quantizes while loading." if online else fix


def _draft(tuned: TunedSettings, facts: QuantizationTable, rocm: bool) -> Found:
    """Yield why the quantization of a draft is refused."""
    given = map_or_empty(tuned.args.get("--speculative-config"))
    name, method = str(given.get("quantization") or "").lower(), given.get("method")
    if not name or (method in WITHOUT_DRAFT and name in facts.methods) or not given.get("model"):
        return
    for _argument, what, fix in _usable(tuned, facts, name, name, rocm):
        yield "speculative_config", f"in the draft's configuration: {what}", fix


def _dtype(
    tuned: TunedSettings,
    facts: QuantizationTable,
    config: Mapping[str, Any],
    knowledge: Knowledge,
    rocm: bool,
    own: bool,
) -> Found:
    """Yield that the model, or its quantization method, cannot compute in the wanted data type."""
    given = str(tuned.args.get("--dtype") or "auto").lower()
    given = DTYPES.get(given, given)
    types = knowledge.rules("engine", tuned.release)["no_float16"]
    kind = str(config.get("model_type"))
    if given == "float16" and kind in types:
        what = f"models of type {kind} are not stable in float16, so vLLM refuses it."
        yield "dtype", what, "Set dtype: bfloat16, or leave it out."
        return
    held, wanted = quantization_config(config), _wanted(tuned)
    running = wanted if held is None else facts.running(held, kind, wanted)
    method = facts.methods.get(running or "")
    dtype = given if given != "auto" else _own_dtype(config, types) if own else ""
    if method is None or not rocm or not dtype or dtype in method.dtypes:
        return
    what = f"the quantization method {running} does not compute in {dtype}."
    whose = "" if given != "auto" else f" The model's config.json says {dtype}."
    yield "dtype", what + whose, f"Set dtype: {any_of(method.dtypes[::-1])}."


def _own_dtype(config: Mapping[str, Any], types: Sequence[str]) -> str:
    """Return the data type that vLLM chooses by itself; empty if the config.json does not say it."""
    inner = config.get("text_config")
    places = (config, inner if isinstance(inner, Mapping) else {})
    found = next((place[key] for place in places for key in ("dtype", "torch_dtype") if place.get(key)), "")
    name = str(found).removeprefix("torch.")
    if name == "float32" or (name == "float16" and config.get("model_type") in types):
        return "bfloat16"
    return name


def _place(deployment: Deployment, name: str) -> Path:
    if name == "model":
        return (*deployment.path, name)
    return operators_key(deployment, (name, "speculative") if name == "speculative_config" else (name,))
