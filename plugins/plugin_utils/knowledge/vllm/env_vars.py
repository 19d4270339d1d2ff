# SPDX-License-Identifier: Apache-2.0
"""List the environment variables that a vLLM release reads, and check their values.

The data is catalog/vllm/{env.json, runtime_env.yml, replacements.yml}; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ....module_utils.common.errors import nearest
from ....module_utils.engines.versions import Release, Timeline
from .findings import BAD_CHOICE, BAD_VALUE, GONE, NO_EFFECT, NOT_YET, OK, UNKNOWN, Finding
from .forks import Changes, Fork, apply_changes
from .replacements import Replacements

PREFIX = "VLLM_"


@dataclass(frozen=True)
class EnvVariable:
    """A variable of one release.

    type: flag ("1" and "true" are true, anything else is silently false), int_bool (an integer; anything else stops
    vLLM), one (only "1" is true), word (only "true" is), int, float, json, text, choice, choice_list. unused: declared,
    but not read.
    """

    name: str
    type: str
    default: Any
    choices: tuple[str, ...] | None
    unused: bool


@dataclass(frozen=True)
class EnvTable:
    """The variables of one release, and those of HIP, RCCL, PyTorch and others in the catalogue.

    flags: names of the release's flags, as flags replaced some variables. renamed: variables of other releases, with
    their names in this fork.
    """

    release: Release
    variables: Mapping[str, EnvVariable]
    runtime: Mapping[str, Mapping[str, Any]]
    replacements: Replacements
    flags: frozenset[str]
    renamed: Mapping[str, str]
    ever: Mapping[str, Mapping[str, Any]] = field(repr=False)
    line: Timeline = field(repr=False)

    @property
    def names(self) -> dict[str, None]:
        """Return the names to suggest in place of a wrong one."""
        return dict.fromkeys((*self.variables, *self.flags))

    def knows(self, name: str) -> bool:
        """Return whether vLLM of this release, or a library below it, reads the variable."""
        return name in self.runtime or (name in self.variables and not self.variables[name].unused)


def env_table(
    data: Mapping[str, Any],
    line: Timeline,
    release: Release,
    runtime: Mapping[str, Any],
    replacements: Replacements,
    flags: frozenset[str],
    fork: Fork | None = None,
) -> EnvTable:
    """Build the variables of one release, or of a fork of it, from the packed histories."""
    index, defaults = release.index, data["defaults"]

    def value(entry: Mapping[str, Any], key: str) -> Any:
        return line.value(entry[key], index, defaults[key]) if key in entry else defaults[key]

    variables = {}
    for name, entry in data["variables"].items():
        if line.within(entry["present"], index):
            choices = value(entry, "choices")
            variables[name] = EnvVariable(
                name,
                value(entry, "type"),
                value(entry, "default"),
                None if choices is None else tuple(choices),
                value(entry, "unused"),
            )

    def forked(name: str, variable: EnvVariable | None, attributes: Changes) -> EnvVariable:
        given: dict[str, Any] = dict(attributes)
        if given.get("choices") is not None:
            given["choices"] = tuple(given["choices"])
        return replace(variable, **given) if variable else EnvVariable(**{"name": name, **defaults, **given})

    if fork:
        variables = apply_changes(variables, fork.changes("env"), forked)
    renamed = fork.renamed if fork else {}
    return EnvTable(
        release, variables, runtime["variables"], replacements, flags, renamed, data["variables"], line
    )


def check_env(table: EnvTable, name: str, value: str) -> Finding:
    """Check whether a variable with this value works as expected.

    vLLM starts with unknown variables, so everything except a refused value is a warning. Names that belong neither to
    vLLM nor to the catalogue are not checked.
    """
    variable = table.variables.get(name)
    if variable is None:
        if name in table.runtime:
            return _runtime(table, name, value)
        return _absent(table, name)
    entry = table.replacements.variable(name)
    refused = refusal(variable, value)
    if refused:
        status = BAD_CHOICE if variable.choices else BAD_VALUE
        return Finding(name, status, refused, _text_help(variable), "", table.release.exact)
    if variable.unused or (entry and table.line.within(entry.no_effect, table.release.index)):
        what = f"is not read by vLLM {table.release.requested}"
        fix = entry.advice(table.names, table.release) if entry else "Remove it."
        return Finding(name, NO_EFFECT, what, fix, entry.source if entry else "", harmless=True)
    doubt = _likely_mistake(variable, value)
    return (
        Finding(name, NO_EFFECT, doubt, _text_help(variable), harmless=True) if doubt else Finding(name, OK)
    )


def refusal(variable: EnvVariable, value: str) -> str:
    """Return why vLLM would not start with this value; empty if it would."""
    if variable.type in ("int", "int_bool", "float"):
        convert = float if variable.type == "float" else int
        try:
            convert(value)
        except ValueError:
            return f"{value!r} is not a {'number' if variable.type == 'float' else 'whole number'}"
    if variable.choices is not None and variable.type in ("choice", "choice_list"):
        items = [value] if variable.type == "choice" else [item.strip() for item in value.split(",")]
        valid = {choice.lower() for choice in variable.choices}
        wrong = [item for item in items if item.lower() not in valid]
        if wrong:
            return f"{wrong[0]!r} is not valid"
    return ""


def _likely_mistake(variable: EnvVariable, value: str) -> str:
    """Return why an accepted value is probably a mistake; empty if it is plausible."""
    text = value.lower()
    true = {"flag": ("1", "true"), "one": ("1",), "word": ("true",)}.get(variable.type)
    false = ("0", "false", "no", "off", "")
    if true is None or text in true or text in false:
        return ""
    return f"{value!r} is read as false"


def _text_help(variable: EnvVariable) -> str:
    if variable.choices:
        return f"Valid: {', '.join(variable.choices)}."
    return {
        "flag": 'Write "1" or "0".',
        "int_bool": 'Write "1" or "0"; vLLM stops at "true".',
        "one": 'Write "1" or "0".',
        "word": 'Write "true" or "false".',
        "int": "Write a whole number.",
        "float": "Write a number.",
    }.get(variable.type, "")


def _runtime(table: EnvTable, name: str, value: str) -> Finding:
    entry = table.runtime[name]
    instead = entry.get("instead")
    if instead:
        note = entry["note"].rstrip(".")  # the message ends the sentence
        return Finding(name, NO_EFFECT, note, f"Use {instead}.", entry["source"], harmless=True)
    values = entry.get("values")
    if values and value not in values:
        fix = f"Known: {', '.join(values)}."
        return Finding(name, BAD_CHOICE, f"{value!r} is not known", fix, entry["source"], harmless=True)
    return Finding(name, OK)


def _absent(table: EnvTable, name: str) -> Finding:
    history = table.ever.get(name)
    version, index = table.release.requested, table.release.index
    entry = table.replacements.variable(name)
    if name in table.renamed:
        what, fix = f"is not read by vLLM {version}", f"In this fork it is {table.renamed[name]}."
        return Finding(name, GONE, what, fix, "", table.release.exact, harmless=True)
    if history is not None:
        spans = history["present"]
        ended = [until for _unused, until in spans if until is not None and table.line.order[until] <= index]
        coming = [since for since, _unused in spans if table.line.order[since] > index]
        if ended:
            what = f"has not been read since vLLM {ended[-1]}, and this is {version}"
            if coming:
                what += f"; it is back from {coming[0]}"
            fix = entry.advice(table.names, table.release) if entry else "Remove it."
            source = entry.source if entry else ""
            return Finding(name, GONE, what, fix, source, table.release.exact, harmless=True)
        if not coming:
            what = f"is read by vLLM {table.release.name}, but not by its fork {version}"
            return Finding(name, GONE, what, "Remove it.", "", table.release.exact, harmless=True)
        before = table.replacements.before(name, table.variables)
        fix = f"In this release it is {before}." if before else "Remove it, or use a newer image."
        what = f"is read from vLLM {coming[0]} on, and this is {version}"
        return Finding(name, NOT_YET, what, fix, "", table.release.exact, harmless=True)
    near = nearest(name, [*table.variables, *table.runtime])
    if name.startswith(PREFIX):
        what = f"is not a variable of vLLM {version}, nor of any other release in the catalogue"
        fix = f"Did you mean {near}?" if near else "Remove it."
        return Finding(name, UNKNOWN, what, fix, "", table.release.exact, harmless=True)
    return Finding(name, OK)


def meaning(table: EnvTable, name: str, text: str) -> bool | int | float | str:
    """Return what vLLM reads in a variable's text; the text of one that it does not read, or refuses, is kept."""
    variable = table.variables.get(name)
    kind = variable.type if variable else ""
    words = {"flag": ("1", "true"), "one": ("1",), "word": ("true",)}.get(kind)
    if words:
        return text.strip().lower() in words
    try:
        if kind == "int_bool":
            return bool(int(text))
        return int(text) if kind == "int" else float(text) if kind == "float" else text
    except ValueError:
        return text
