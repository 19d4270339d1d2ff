# SPDX-License-Identifier: Apache-2.0
"""List the flags of one vLLM release, and check whether it accepts a flag with a value.

The data is catalog/vllm/{flags.json, parser.yml, configs.json, replacements.yml}; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from ....module_utils.common.errors import nearest
from ....module_utils.engines.versions import Release, Timeline
from .config_keys import ConfigKeys
from .findings import BAD_CHOICE, BAD_VALUE, DEPRECATED, GONE, NO_EFFECT, NOT_YET, OK, UNKNOWN, Finding
from .flag_values import Value, convert, is_valid_choice, spell, token
from .forks import Changes, Fork, apply_changes
from .replacements import Replacements

NO_VALUE = ("switch", "toggle")
"""Kinds that take no value: --x (switch), --x and --no-x (toggle)."""


@dataclass(frozen=True)
class Flag:
    """A flag in a release's parser.

    kind: switch, toggle, bool (an optional true or false), value, optional (a value or none), list, append or
    positional. default: of the parser; None often means "decided later". engine: the flag configures the engine, so
    offline benchmarks accept it too.
    """

    name: str
    kind: str
    type: str
    default: Value
    choices: tuple[Any, ...] | None
    aliases: tuple[str, ...]
    negatives: tuple[str, ...]
    engine: bool
    required: bool
    deprecated: bool

    @property
    def key(self) -> str:
        """Return the flag's name in a map: max_model_len for --max-model-len."""
        return self.name.lstrip("-").replace("-", "_")

    @property
    def takes_value(self) -> bool:
        """Return whether a value may follow."""
        return self.kind not in NO_VALUE


@dataclass(frozen=True)
class FlagTable:
    """Everything that one release's parser accepts.

    `options` maps each spelling to its flag and whether it sets (True) or negates it. `bench` holds what differs in
    a fork's benchmark commands, and `ever` the flags of all releases, to tell what was added later or removed earlier.
    """

    release: Release
    flags: Mapping[str, Flag]
    options: Mapping[str, tuple[Flag, bool]]
    configs: ConfigKeys
    parser: Mapping[str, Any]
    replacements: Replacements
    bench: Mapping[str, Changes]
    ever: Mapping[str, Mapping[str, Any]] = field(repr=False)
    line: Timeline = field(repr=False)

    def get(self, name: str) -> tuple[Flag, bool] | None:
        """Return the flag of a name in any spelling: max_model_len, max-model-len, --max-model-len, tp, -tp."""
        return next((self.options[item] for item in spellings(name) if item in self.options), None)

    def since(self, rule: str) -> bool:
        """Return whether a rule of parser.yml holds for this release."""
        return self.line.order[self.parser[rule]] <= self.release.index


def spellings(name: str) -> tuple[str, ...]:
    """Return the option strings that a name in a map may stand for, the most likely first."""
    bare = name.lstrip("-").replace("_", "-")
    if name.startswith("--"):
        return (f"--{bare}",)
    return (f"-{bare}",) if name.startswith("-") else (f"--{bare}", f"-{bare}")


def flags_at(data: Mapping[str, Any], line: Timeline, index: int, key: str = "flags") -> dict[str, Flag]:
    """Build the flags of one release from the packed histories."""
    defaults = data["defaults"]
    found = {}
    for name, entry in data[key].items():
        if line.within(entry["present"], index):
            found[name] = _flag(name, entry, defaults, line, index)
    return found


def flags_of(
    packed: Mapping[str, Any], defaults: Mapping[str, Any], line: Timeline, index: int, changes: Changes
) -> dict[str, Flag]:
    """Build the flags of one release for one command of bench.json, as flags_at does, with a fork's changes."""
    flags = flags_at({"defaults": defaults, "flags": packed}, line, index)

    def forked(name: str, flag: Flag | None, attributes: Changes) -> Flag:
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in attributes.items()
        }
        if flag is not None:
            return replace(flag, **given)
        lists = {key: () for key, value in defaults.items() if isinstance(value, list)}
        return Flag(**{"name": name, **defaults, **lists, **given})

    return apply_changes(flags, changes, forked)


def _flag(
    name: str, entry: Mapping[str, Any], defaults: Mapping[str, Any], line: Timeline, index: int
) -> Flag:
    def value(key: str) -> Any:
        return line.value(entry[key], index, defaults[key]) if key in entry else defaults[key]

    choices = value("choices")
    return Flag(
        name=name,
        kind=value("kind"),
        type=value("type"),
        default=value("default"),
        choices=None if choices is None else tuple(choices),
        aliases=tuple(value("aliases")),
        negatives=tuple(value("negatives")),
        engine=value("engine"),
        required=value("required"),
        deprecated=value("deprecated"),
    )


def option_index(flags: Iterable[Flag]) -> dict[str, tuple[Flag, bool]]:
    """Return every spelling of every flag; negated ones map to False."""
    index: dict[str, tuple[Flag, bool]] = {}
    for flag in flags:
        if flag.kind != "positional":
            index[flag.name] = (flag, True)
            index.update((alias, (flag, True)) for alias in flag.aliases)
            index.update((negative, (flag, False)) for negative in flag.negatives)
    return index


def flag_table(
    data: Mapping[str, Any],
    line: Timeline,
    release: Release,
    parser: Mapping[str, Any],
    configs: ConfigKeys,
    replacements: Replacements,
    fork: Fork | None = None,
) -> FlagTable:
    """Build the flag table of `vllm serve` in one release, or in a fork of it."""
    changes, bench = (fork.changes("flags"), fork.changes("bench")) if fork else ({}, {})
    flags = flags_of(data["flags"], data["defaults"], line, release.index, changes)
    options = option_index(flags.values())
    return FlagTable(release, flags, options, configs, parser, replacements, bench, data["flags"], line)


def check(table: FlagTable, name: str, value: Value) -> Finding:
    """Check whether a flag with a value is accepted.

    `name` may have any spelling. `value` is as in a map of flags: true sets a switch, false negates it, null omits it,
    a list repeats values, a map is JSON.
    """
    if value is None:
        return Finding(name, OK)
    hit = table.get(name)
    if hit is None:
        return absence_finding(table, spellings(name)[0])
    flag, positive = hit
    if not positive and not isinstance(value, bool):
        return _finding(table, flag, BAD_VALUE, f"{name} takes no value", "Write true or false.")
    if not flag.takes_value:
        if not isinstance(value, bool):
            what = f"takes no value, and {token(value)!r} was given"
            return _finding(table, flag, BAD_VALUE, what, "Write true or false.")
        return acceptance_finding(table, flag)
    if isinstance(value, bool) and flag.kind == "value" and flag.type not in ("any", "json", "json|str"):
        if not value:  # false for a flag that takes a value means omitting it
            return _finding(table, flag, BAD_VALUE, "needs a value and cannot be false", "Remove it.")
        return _finding(table, flag, BAD_VALUE, "needs a value, and only true was given", "Give it a value.")
    return check_tokens(table, flag, value_tokens(flag, value))


def value_tokens(flag: Flag, value: Value) -> list[str]:
    """Return the tokens that follow a flag on the command line."""
    if value is True and flag.kind == "optional":
        return []
    if isinstance(value, (list, tuple)) and flag.kind in ("list", "append"):
        return [token(item) for item in value]
    return [spell(flag.type, value)]


def check_tokens(table: FlagTable, flag: Flag, tokens: Sequence[str]) -> Finding:
    """Check whether a flag accepts these tokens as its values."""
    if flag.kind == "bool":
        if all(text.lower() in ("true", "false") for text in tokens):
            return acceptance_finding(table, flag)
        return _finding(
            table, flag, BAD_VALUE, f"{tokens[0]!r} is neither true nor false", "Write true or false."
        )
    warning: Finding | None = None
    for text in tokens:
        try:
            value = convert(_kind(flag), text, table.since("json_sizes_since"))
        except ValueError as error:
            return _finding(table, flag, BAD_VALUE, f"{error}", _value_help(flag))
        if not is_valid_choice(value, flag.choices):
            return _bad_choice(table, flag, value)
        if isinstance(value, Mapping):
            found = table.configs.check(flag.name, value)
            if found is not None and (found.is_error or warning is None):
                warning = found
            if found is not None and found.is_error:
                return found
    return warning or acceptance_finding(table, flag)


def _kind(flag: Flag) -> str:
    """Return the type of a flag's value; --lora-modules, which vLLM reads by an action, has none in the catalogue."""
    return "adapter" if flag.name == "--lora-modules" else flag.type


def _value_help(flag: Flag) -> str:
    if flag.choices is not None:
        return f"Valid: {', '.join(str(item) for item in flag.choices if item is not None)}."
    kind = flag.type.rstrip("?")
    return {
        "int": "Write a whole number.",
        "size": "Write a whole number, or one with k, m, g (decimal) or K, M, G (binary).",
        "size|auto": "Write a whole number, one with k, m, g (decimal) or K, M, G (binary), or auto.",
        "float": "Write a number.",
    }.get(kind, "Write it as JSON.")


def _bad_choice(table: FlagTable, flag: Flag, value: Value) -> Finding:
    choices = [item for item in flag.choices or () if item is not None]
    what = f"{value!r} is not valid in vLLM {table.release.requested}"
    history = table.ever[flag.name].get("choices", ())
    when = [since for since, listed in history if listed is not None and value in listed]
    later = [since for since in when if table.line.order[since] > table.release.index]
    earlier = [since for since in when if table.line.order[since] <= table.release.index]
    if later:
        what += f"; {later[0]} is the first release that takes it"
    elif earlier:
        what += "; an earlier release took it"
    note = table.replacements.choice(flag.name, str(value))
    near = nearest(value, [str(item) for item in choices])
    fix = note or (f"Did you mean {near}?" if near else f"Valid: {', '.join(str(item) for item in choices)}.")
    return _finding(
        table, flag, BAD_CHOICE, what, fix, table.replacements.choice_source(flag.name, str(value))
    )


def acceptance_finding(table: FlagTable, flag: Flag) -> Finding:
    """Return a finding for a flag that the parser accepts: OK, or a remark such as its deprecation."""
    entry = table.replacements.flag(flag.name)
    if flag.deprecated:
        fix = entry.advice(table.flags, table.release) if entry else "A later release will not have it."
        return _finding(table, flag, DEPRECATED, "is deprecated", fix, entry.source if entry else "")
    if entry and table.line.within(entry.no_effect, table.release.index):
        return _finding(
            table, flag, NO_EFFECT, "is accepted and does nothing", entry.advice(table.flags, table.release),
            entry.source,
        )  # fmt: skip
    return Finding(flag.name, OK)


def absence_finding(table: FlagTable, option: str) -> Finding:
    """Return why a release does not have an option: not yet, no longer, or never."""
    known = known_option(table, option)
    if known is None:
        longer = {flag.key for name, (flag, _unused) in table.options.items() if name.startswith(option)}
        near = nearest(
            option.lstrip("-"), [name.lstrip("-") for name in table.options if name.startswith("--")]
        )
        near = longer.pop() if len(longer) == 1 else near  # what vLLM's parser takes it for
        fix = (
            f"Did you mean {near.replace('-', '_')}?" if near else "See `vllm serve --help=all` of the image."
        )
        what = f"is not a flag of vLLM {table.release.requested}, nor of any other release in the catalogue"
        return Finding(option, UNKNOWN, what, fix, "", table.release.exact)
    name, spans = known
    index = table.release.index
    entry = table.replacements.flag(name)
    version = table.release.requested
    coming = [since for since, _unused in spans if table.line.order[since] > index]
    ended = [until for _unused, until in spans if until is not None and table.line.order[until] <= index]
    if ended:
        what = f"was removed in vLLM {ended[-1]}, and this is {version}"
        if coming:
            what += f"; it is back from {coming[0]}"
        fix = entry.advice(table.flags, table.release) if entry else "Remove it."
        return Finding(option, GONE, what, fix, entry.source if entry else "", table.release.exact)
    if not coming:
        what = f"is a flag of vLLM {table.release.name}, but not of its fork {version}"
        return Finding(option, GONE, what, "Remove it.", "", table.release.exact)
    what = f"came with vLLM {coming[0]}, and this is {version}"
    before = table.replacements.before(name, table.flags)
    fix = (
        f"In this release the nearest is {before}."
        if before
        else f"Remove it, or use an image with {coming[0]}."
    )
    return Finding(option, NOT_YET, what, fix, "", table.release.exact)


Presence = tuple[str, Optional[str]]
"""A half-open span of releases; None if it has not ended."""


def known_option(table: FlagTable, option: str) -> tuple[str, list[Presence]] | None:
    """Return the flag with this spelling in any release, and the spans of releases that have the spelling."""
    own = [(span[0], span[1]) for span in table.ever.get(option, {}).get("present", ())]
    others = [(name, _spelling_spans(entry, option)) for name, entry in table.ever.items()]
    found = [(name, spans) for name, spans in ((option, own), *others) if spans]
    if not found:
        return None
    spans = sorted(
        (span for _unused, spans in found for span in spans), key=lambda span: table.line.order[span[0]]
    )
    return found[0][0], spans


def _spelling_spans(entry: Mapping[str, Any], option: str) -> list[Presence]:
    spans: list[Presence] = []
    for key in ("aliases", "negatives"):
        history = entry.get(key, ())
        for position, (since, names) in enumerate(history):
            if option in names and (not spans or spans[-1][1] is not None):
                after = [later for later, listed in history[position + 1 :] if option not in listed]
                spans.append((since, after[0] if after else entry["present"][-1][1]))
    return spans


def _finding(
    table: FlagTable, flag: Flag, status: str, what: str, fix: str = "", source: str = ""
) -> Finding:
    return Finding(flag.name, status, what, fix, source, table.release.exact)
