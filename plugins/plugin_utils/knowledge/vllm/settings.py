# SPDX-License-Identifier: Apache-2.0
"""Render neutral settings into flags and variables of one vLLM release.

`async_scheduling: true` is a flag in one release, another flag in an older one, and nothing at all in a release that
does it by default. The rules are catalog/vllm/settings.yml; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....module_utils.common.errors import suggest
from ....module_utils.engines.versions import Release, Timeline
from ...base.checker import kind
from .env_vars import EnvTable
from .findings import BAD_CHOICE, BAD_VALUE, GONE, NOT_YET, UNKNOWN, Finding
from .flag_values import Value, spell, token
from .flags import Flag, FlagTable, absence_finding, check

PLACE = "$"
_TYPES: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "text": (str,),
    "choice": (str,),
    "list": (list, tuple),
    "map": (Mapping,),
}


@dataclass(frozen=True)
class RenderedSetting:
    """Flags (as in a map of engine arguments), variables, and findings."""

    args: Mapping[str, Value]
    env: Mapping[str, str]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class SettingsBook:
    """The settings and the tables of one release: `flags` and `env`."""

    settings: Mapping[str, Mapping[str, Any]]
    flags: FlagTable
    env: EnvTable

    @property
    def release(self) -> Release:
        """Return the release for which settings are rendered."""
        return self.flags.release

    @property
    def line(self) -> Timeline:
        """Return the timeline of all releases."""
        return self.flags.line


def render_setting(book: SettingsBook, name: str, value: Value) -> RenderedSetting:
    """Return the flags and variables of one setting.

    The findings report an unknown setting, a value that it does not accept, or a release that cannot express it. The
    last is a warning for settings that only tune, otherwise an error, and names the release where the setting was added
    or removed.
    """
    setting = book.settings.get(name)
    if setting is None:
        fix = suggest(name, book.settings)
        return _failed(Finding(name, UNKNOWN, "is not a setting", fix))
    wrong = wrong_value(setting, value)
    if wrong:
        choices = setting.get("choices")
        fix = f"Valid: {', '.join(choices)}." if choices else ""
        return _failed(Finding(name, BAD_CHOICE if choices else BAD_VALUE, wrong, fix))
    if "flag" in setting:
        return _flag(book, name, setting, value)
    if "env" in setting:
        return _env(book, name, setting, value)
    for form in setting["forms"]:
        if applies_to_release(book.line, book.release.index, form, value):
            return _form(name, form, value)
    return _failed(_inexpressible(book, name, setting, value))


def _failed(finding: Finding) -> RenderedSetting:
    return RenderedSetting({}, {}, (finding,))


def wrong_value(setting: Mapping[str, Any], value: Value) -> str:
    """Return why a setting does not accept a value; empty if it does."""
    types = _TYPES[setting["type"]]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        wanted = "true or false, without quotes" if bool in types else setting["type"]
        return f"must be {wanted}, not {kind(value)}"
    choices = setting.get("choices")
    if choices and value not in choices:
        return f"{value!r} is not valid"
    keys = setting.get("keys")
    if keys and isinstance(value, Mapping):
        unknown = [key for key in value if key not in keys]
        if unknown:
            return f"has no key {unknown[0]}; known: {', '.join(keys)}"
    return ""


def _flag(book: SettingsBook, name: str, setting: Mapping[str, Any], value: Value) -> RenderedSetting:
    flag = setting["flag"]
    if flag in book.flags.flags:
        found = check(book.flags, flag, value)
        if found.is_error:  # a value that was added later or removed earlier than the flag
            return _failed(_softened(name, setting, found))
        return RenderedSetting({flag: value}, {})
    if value is False:
        return RenderedSetting({}, {})  # a missing feature is off
    found = absence_finding(book.flags, flag)
    return _failed(_softened(name, setting, found))


def _env(book: SettingsBook, name: str, setting: Mapping[str, Any], value: Value) -> RenderedSetting:
    variable = setting["env"]
    if book.env.knows(variable):
        return RenderedSetting({}, {variable: env_text(value)})
    if value is False:
        return RenderedSetting({}, {})
    spans = book.env.ever.get(variable, {}).get("present", [])
    status, what = _when(book, spans, f"{variable} is")
    return _failed(_softened(name, setting, Finding(name, status, what, "Remove it, or use another image.")))


def _softened(name: str, setting: Mapping[str, Any], found: Finding) -> Finding:
    what = found.what if found.subject == name else f"{found.subject} {found.what}"
    return Finding(
        name,
        found.status,
        what,
        found.fix,
        found.source,
        found.certain,
        harmless=bool(setting.get("optional")),
    )


def applies_to_release(line: Timeline, index: int, form: Mapping[str, Any], value: Value) -> bool:
    """Return whether a form applies to this release and this value."""
    return line.inside(form.get("since"), form.get("until"), index) and applies_to_value(form, value)


def applies_to_value(form: Mapping[str, Any], value: Value) -> bool:
    """Return whether a form applies to this value, in any release."""
    if "when" not in form:
        return True
    when = form["when"]
    if isinstance(when, list):
        return value in when
    return bool(value == when and isinstance(value, bool) == isinstance(when, bool))


def _form(name: str, form: Mapping[str, Any], value: Value) -> RenderedSetting:
    given = form.get("map", {}).get(value, value) if isinstance(value, str) else value
    args = {flag: fill_template(item, given) for flag, item in form.get("args", {}).items()}
    env = {variable: env_text(fill_template(item, given)) for variable, item in form.get("env", {}).items()}
    said = (Finding(name, GONE, form["note"], harmless=True),) if "note" in form else ()
    return RenderedSetting({flag: item for flag, item in args.items() if item is not None}, env, said)


def fill_template(template: Value, value: Value) -> Value:
    """Return a form's template with the setting's value in place of $, or None if a map does not have the key."""
    if template == PLACE:
        return value
    if isinstance(template, str) and template.startswith(PLACE + "."):
        return value.get(template[2:])
    if isinstance(template, Mapping):
        return {key: fill_template(item, value) for key, item in template.items()}
    return template


def env_text(value: Value) -> str:
    """Return a variable's text: booleans are 1 and 0."""
    return ("1" if value else "0") if isinstance(value, bool) else str(value)


def _inexpressible(book: SettingsBook, name: str, setting: Mapping[str, Any], value: Value) -> Finding:
    spans = [
        (form.get("since"), form.get("until")) for form in setting["forms"] if applies_to_value(form, value)
    ]
    status, what = _when(book, spans, f"{token(value)} is")
    if not spans:
        status, what = BAD_VALUE, f"{token(value)} cannot be expressed in any release of the catalogue"
    fix, source = "Remove it, or use another image.", setting.get("source", "")
    return Finding(name, status, what, fix, source, book.release.exact, bool(setting.get("optional")))


def _when(book: SettingsBook, spans: Sequence[Sequence[Any]], what: str) -> tuple[str, str]:
    order, index, version = book.line.order, book.release.index, book.release.requested
    coming = sorted((order[since], since) for since, _unused in spans if since and order[since] > index)
    ended = sorted((order[end], end) for _unused, end in spans if end and order[end] <= index)
    if coming:
        return NOT_YET, f"{what} possible from vLLM {coming[0][1]} on, and this is {version}"
    if ended:
        return GONE, f"{what} possible before vLLM {ended[-1][1]}, and this is {version}"
    return UNKNOWN, f"{what} not possible in vLLM {version}"


def flag_argv(table: FlagTable, name: str, value: Value) -> list[str]:
    """Return the tokens of one flag of a map, in this release's spelling.

    true: --flag; false: --no-flag, or nothing if the flag is only a switch; null: nothing; a list: its items after one
    flag; a map: JSON. Flags that the release does not have are rendered too: `check` reports them.
    """
    if value is None:
        return []
    hit = table.get(name)
    if hit is None:
        return _unknown_argv("--" + name.lstrip("-").replace("_", "-"), value)
    flag, positive = hit
    if not flag.takes_value:
        return _switch_argv(flag, bool(value) == positive)
    if isinstance(value, bool) and flag.kind != "bool":
        return _unknown_argv(flag.name, value)
    if isinstance(value, (list, tuple)) and flag.kind == "list":
        return [flag.name, *(token(item) for item in value)]
    if isinstance(value, (list, tuple)) and flag.kind == "append":
        return [part for item in value for part in (flag.name, token(item))]
    return [flag.name, spell(flag.type, value)]


def _switch_argv(flag: Flag, on: bool) -> list[str]:
    if on:
        return [flag.name]
    negative = f"--no-{flag.name[2:]}"
    return [negative] if negative in flag.negatives else list(flag.negatives[:1])


def _unknown_argv(option: str, value: Value) -> list[str]:
    if value is True:
        return [option]
    if value is False:
        return [f"--no-{option[2:]}"]
    if isinstance(value, (list, tuple)):
        return [option, *(token(item) for item in value)]
    return [option, token(value)]
