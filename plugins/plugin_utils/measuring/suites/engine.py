# SPDX-License-Identifier: Apache-2.0
"""What the engine of an instance runs with, and whether that is a variant of a suite. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...knowledge.catalog.load import Knowledge
from ...knowledge.vllm.canonical import canonical_flag
from ...knowledge.vllm.flag_values import Value, convert, token
from ...knowledge.vllm.flags import Flag, FlagTable, absence_finding
from ...knowledge.vllm.settings import render_setting
from .suite import Variant

MAX_NUM_SEQS = 256
"""vLLM's own limit where the catalogue knows none for a release."""


@dataclass(frozen=True)
class InstanceEngine:
    """An instance's engine. flags: by their names, with the last value; a negated switch is False.

    max_model_len: None if its command line does not say, so that the model's own context holds.
    """

    table: FlagTable
    flags: Mapping[str, Value]
    env: Mapping[str, str]
    max_model_len: int | None
    max_num_seqs: int


def read_engine(knowledge: Knowledge, instance: Mapping[str, Any]) -> InstanceEngine:
    """Return the engine of an instance as in the plan. Raise ValueError for a vLLM older than the catalogue."""
    table = knowledge.flags(instance["vllm"])
    flags = _flags(table, instance["argv"])
    default = knowledge.default("max_num_seqs", table.release) or MAX_NUM_SEQS
    context = flags.get("--max-model-len")
    return InstanceEngine(
        table=table,
        flags=flags,
        env={name: str(value) for name, value in (instance.get("env") or {}).items()},
        max_model_len=context if isinstance(context, int) and context > 0 else None,
        max_num_seqs=int(flags.get("--max-num-seqs") or default),
    )


def _flags(table: FlagTable, argv: Sequence[str]) -> dict[str, Value]:
    """Return the flags of a command line with their parsed values."""
    found: dict[str, Value] = {}
    words = list(argv)
    for index, word in enumerate(words):
        name, sign, glued = word.partition("=")
        hit = table.options.get(name) if word.startswith("-") else None
        if hit is None:
            continue
        flag, positive = hit
        after = words[index + 1 : index + 2]
        following = glued if sign else (after[0] if after and not _is_option(table, after[0]) else None)
        found[flag.name] = _parsed(flag, following) if flag.takes_value and positive else positive
    return found


def _is_option(table: FlagTable, word: str) -> bool:
    return word.startswith("--") or word.partition("=")[0] in table.options


def _parsed(flag: Flag, text: str | None) -> Value:
    if text is None:
        return True
    try:
        return convert(flag.type, text)
    except ValueError:
        return text


@dataclass(frozen=True)
class EngineVariant:
    """A variant in terms of one release: flags by name and variables; or why the release cannot have it."""

    args: Mapping[str, Value]
    env: Mapping[str, str]
    why_not: str = ""


def wanted_engine(knowledge: Knowledge, variant: Variant, table: FlagTable) -> EngineVariant:
    """Return a variant in terms of the release of a table."""
    book = knowledge.book(table.release.requested)
    args: dict[str, Value] = {}
    env = dict(variant.env)
    for name, value in variant.settings.items():
        made = render_setting(book, name, value)
        if made.findings:
            return EngineVariant({}, {}, made.findings[0].text())
        args.update(made.args)
        env.update(made.env)
    for name, value in variant.engine_args.items():
        hit = table.get(name)
        if hit is None and value:
            return EngineVariant({}, {}, absence_finding(table, f"--{name.replace('_', '-')}").text())
        if hit is not None:
            flag, given = canonical_flag(table, name, value)
            args[flag] = given
    return EngineVariant(args, env)


def runs_variant(engine: InstanceEngine, wanted: EngineVariant) -> bool:
    """Return whether an engine already runs a variant."""
    flags = all(_agrees(engine, name, value) for name, value in wanted.args.items())
    return flags and all(engine.env.get(name) == value for name, value in wanted.env.items())


def _agrees(engine: InstanceEngine, name: str, value: Value) -> bool:
    have = engine.flags.get(name, False)
    if value is None or value is False:
        return have is False
    if value is True:
        return have is not False
    if isinstance(value, Mapping):
        return isinstance(have, Mapping) and all(have.get(key) == item for key, item in value.items())
    return bool(have == _parsed(engine.table.flags[name], token(value)))


def can_run_offline(engine: InstanceEngine, wanted: EngineVariant) -> bool:
    """Return whether an offline benchmark can run a variant, with flags in addition to the instance's own.

    It cannot remove a flag, choose a value, or change a variable.
    """
    fixed = {name: value for name, value in wanted.args.items() if name not in _settable(engine, wanted)}
    return runs_variant(engine, EngineVariant(fixed, wanted.env))


def offline_flags(engine: InstanceEngine, wanted: EngineVariant) -> dict[str, Value]:
    """Return a variant's flags for an offline benchmark: of a map, the instance's other keys are kept."""
    found = _settable(engine, wanted)
    for name, value in found.items():
        have = engine.flags.get(name)
        if isinstance(value, Mapping) and isinstance(have, Mapping):
            found[name] = {**have, **value}
    return found


def _settable(engine: InstanceEngine, wanted: EngineVariant) -> dict[str, Value]:
    def definite(name: str, value: Value) -> bool:
        anything = value is True and engine.table.flags[name].takes_value
        return value is not None and value is not False and not anything

    return {name: value for name, value in wanted.args.items() if definite(name, value)}


def variant_text(variant: Variant) -> str:
    """Return a variant as an operator writes it in a deployment."""
    parts = {"settings": variant.settings, "engine_args": variant.engine_args, "env": variant.env}
    return "; ".join(f"{key}: {json.dumps(dict(value))}" for key, value in parts.items() if value)
