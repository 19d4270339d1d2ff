# SPDX-License-Identifier: Apache-2.0
"""Whole command lines: what a release's parser would make of every token.

vLLM's parser is argparse with additions: underscores for dashes, unambiguous abbreviations, -O3, and dotted
keys that are collected into JSON. The verdicts of 61 releases' own parsers are the test (tests/data/vllm).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.findings import (
    AMBIGUOUS,
    BAD_VALUE,
    MISSING,
    NO_EFFECT,
    OK,
    UNKNOWN,
    Finding,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.flag_values import size
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.flags import (
    Flag,
    FlagTable,
    absence_finding,
    acceptance_finding,
    check_tokens,
)

_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
_HELP = ("--help", "-h")

ABBREVIATED = "abbreviated"  # an abbreviation that a later release may make ambiguous


@dataclass
class _State:
    """One pass over a command line."""

    table: FlagTable
    findings: list[Finding] = field(default_factory=list)
    values: dict[str, list[str]] = field(default_factory=dict)
    positionals: list[str] = field(default_factory=list)
    free: int = 0  # positional arguments that the parser still waits for


@dataclass(frozen=True)
class ParsedArgv:
    """A command line as the parser understands it: tokens per flag (in order of appearance) and verdicts."""

    values: dict[str, list[str]]
    positionals: tuple[str, ...]
    findings: tuple[Finding, ...]


def check_argv(table: FlagTable, argv: Sequence[str]) -> tuple[Finding, ...]:
    """Everything worth saying about the arguments behind `vllm serve`; empty when all is well."""
    return parse_argv(table, argv).findings


def parse_argv(table: FlagTable, argv: Sequence[str]) -> ParsedArgv:
    """Read a command line as the release's parser does; errors and warnings are findings."""
    waiting = [flag for flag in table.flags.values() if flag.kind == "positional"]
    state = _State(table, free=len(waiting))
    tokens = _collect_dotted(state, _normalize(table, argv))
    position = 0
    while position < len(tokens):
        text = tokens[position]
        following = _arguments(state, tokens, position + 1)
        if not _is_option(state, text):
            _positional(state, text)
            position += 1
            continue
        position += 1 + _take(state, text, following)
    for flag in waiting[len(state.positionals) :]:
        if flag.required:
            what = f"is required in vLLM {table.release.requested}, and was not given"
            state.findings.append(Finding(flag.name, MISSING, what, "", "", table.release.exact))
    for flag in table.flags.values():
        if flag.required and flag.kind != "positional" and flag.name not in state.values:
            what = f"is required in vLLM {table.release.requested}, and was not given"
            state.findings.append(
                Finding(flag.name, MISSING, what, f"Add {flag.name}.", "", table.release.exact)
            )
    return ParsedArgv(state.values, tuple(state.positionals), tuple(state.findings))


def _normalize(table: FlagTable, argv: Sequence[str]) -> list[str]:
    """Underscores in names become dashes, up to the first dot where dotted keys exist; -O3 is spelled out."""
    dotted = table.since("dotted_long_since")
    level = table.line.value(
        [(entry["since"], entry["meaning"]) for entry in table.parser["short_o"]], table.release.index, ""
    )
    result: list[str] = []
    for position, text in enumerate(argv):
        if text.startswith("--"):
            name, sign, value = text.partition("=")
            head, dot, keys = name.partition(".") if dotted else (name, "", "")
            result.append(head.replace("_", "-") + dot + keys + sign + value)
        elif level and text.startswith("-O") and len(text) > 2 and not (text[2] == "." and "." in level):
            result += [_option_for(level), text[3:] if text[2] == "=" else text[2:]]
        elif level and text == "-O" and argv[position + 1 : position + 2] in (["0"], ["1"], ["2"], ["3"]):
            result.append(_option_for(level))
        else:
            result.append(text)
    return result


def _option_for(level: str) -> str:
    """What -O followed by a level stands for: --optimization-level, or -O.mode, which is a dotted key."""
    return f"-O.{level.partition('.')[2]}" if "." in level else f"--{level}"


def _collect_dotted(state: _State, tokens: Sequence[str]) -> list[str]:
    """Put --flag.key value pairs together as one JSON value per flag, behind the other tokens."""
    table = state.table
    if not table.since("dotted_long_since"):
        return list(tokens)
    short = table.since("dotted_short_since")
    rest: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    position = 0
    while position < len(tokens):
        text = tokens[position]
        position += 1
        name, sign, value = text.partition("=")
        if not text.startswith("--" if not short else "-") or "." not in name or _NEGATIVE.fullmatch(name):
            rest.append(text)
            continue
        if not sign:
            if position >= len(tokens):
                state.findings.append(Finding(name, BAD_VALUE, "needs a value", "Give it a value."))
                continue
            value = tokens[position]
            position += 1
        if name.endswith("+"):
            name, value = name[:-1], json.dumps(value.split(","))
        flag, *keys = name.split(".")
        _put(objects.setdefault(flag, {}), keys, _plain(table, value))
    for flag, content in objects.items():
        rest += [flag, json.dumps(content)]
    return rest


def _plain(table: FlagTable, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    if table.since("json_sizes_since"):
        try:
            return size(text)
        except ValueError:
            pass
    return text


def _put(target: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = target.get(key)
        target = target.setdefault(key, {}) if not isinstance(inner, dict) else inner
        if not isinstance(target, dict):
            return
    old = target.get(keys[-1])
    target[keys[-1]] = old + value if isinstance(old, list) and isinstance(value, list) else value


def _matches(state: _State, text: str) -> list[tuple[str, str | None]]:
    """Option strings that a token may mean, each with the value glued to it (None: no value)."""
    options = state.table.options
    if text in options or text in _HELP:
        return [(text, None)]
    name, sign, value = text.partition("=")
    glued = value if sign else None
    if sign and (name in options or name in _HELP):
        return [(name, glued)]
    if text.startswith("--"):
        known = [*options, "--help"]
        return [(option, glued) for option in known if option.startswith(name)]
    found: list[tuple[str, str | None]] = []
    for option in (*options, "-h"):
        if option == text[:2] and len(text) > 2:
            found.append((option, text[2:]))
        elif option.startswith(name):
            found.append((option, glued))
    return found


def _is_option(state: _State, text: str) -> bool:
    """argparse's rule of what is an option, what a value."""
    if not text.startswith("-") or len(text) == 1:
        return False
    if _matches(state, text):
        return True
    return not _NEGATIVE.fullmatch(text) and " " not in text


def _arguments(state: _State, tokens: Sequence[str], start: int) -> list[str]:
    """The values that follow a token, up to the next option."""
    end = start
    while end < len(tokens) and not _is_option(state, tokens[end]):
        end += 1
    return list(tokens[start:end])


def _positional(state: _State, text: str) -> None:
    if state.free > len(state.positionals):
        state.positionals.append(text)
        return
    what = f"{text!r} belongs to no flag"
    fix = "Remove it; a switch takes no value (write --flag or --no-flag)."
    state.findings.append(Finding(text, UNKNOWN, what, fix, "", state.table.release.exact))


def _take(state: _State, text: str, following: Sequence[str]) -> int:
    """Consume an option; returns how many of the following values it takes."""
    found = _matches(state, text)
    name = text.partition("=")[0]
    table = state.table
    if not found:
        state.findings.append(absence_finding(table, name))
        return len(following) if state.free <= len(state.positionals) else 0
    if len(found) > 1:
        names = ", ".join(sorted(option for option, _ in found)[:6])
        finding = Finding(
            name, AMBIGUOUS, f"could be {names}", "Write the whole name.", "", table.release.exact
        )
        state.findings.append(finding)
        return len(following)
    option, glued = found[0]
    if option in _HELP:
        state.findings.append(Finding(option, NO_EFFECT, "prints a help text and ends", "Remove it."))
        return 0
    flag, positive = table.options[option]
    if option != name and glued != text[2:]:
        what = f"is read as an abbreviation of {option}, which a later release may understand differently"
        state.findings.append(Finding(name, ABBREVIATED, what, f"Write {option}."))
    tokens, taken = _values(state, flag, option, glued, following)
    if tokens is not None:
        finding = check_tokens(table, flag, tokens) if tokens else acceptance_finding(table, flag)
        if finding.status != OK:
            state.findings.append(finding)
        if flag.kind in ("append",):
            tokens = [*state.values.get(flag.name, []), *tokens]
        state.values[flag.name] = tokens if flag.takes_value or positive else ["False"]
    return taken


def _values(
    state: _State, flag: Flag, option: str, glued: str | None, following: Sequence[str]
) -> tuple[list[str] | None, int]:
    """The tokens of a flag (None after an error), and how many of the following ones they are."""
    exact = state.table.release.exact
    if not flag.takes_value:
        if glued is None:
            return [], 0
        what = f"takes no value, and {glued!r} was given"
        state.findings.append(Finding(option, BAD_VALUE, what, "Write --flag or --no-flag.", "", exact))
        return None, 0
    if glued is not None:
        return [glued], 0
    count = len(following) if flag.kind == "list" else min(1, len(following))
    if count == 0 and flag.kind not in ("optional", "bool"):
        state.findings.append(Finding(option, BAD_VALUE, "needs a value", "Give it a value.", "", exact))
        return None, 0
    return list(following[:count]), count
