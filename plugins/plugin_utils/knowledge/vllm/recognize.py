# SPDX-License-Identifier: Apache-2.0
"""Recognize neutral settings in an operator's own flags and variables.

An operator who sets `VLLM_ROCM_USE_AITER: "0"` has decided the setting aiter, so recipes must not decide it again. This
is the inverse of the rendering in settings.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .env_vars import meaning
from .flag_values import Value
from .settings import PLACE, SettingsBook, env_text, fill_template, wrong_value

_FALSE = ("0", "false", "no", "off", "")


def recognize_settings(
    book: SettingsBook, args: Mapping[str, Value], env: Mapping[str, str]
) -> dict[str, Value]:
    """Return the settings that these flags ("--name" → value) and variables decide.

    A setting with several flags counts only if all of them are given, with the values that the setting would produce.
    """
    found: dict[str, Value] = {}
    for name, setting in book.settings.items():
        for value in _values(book, setting, args, env):
            if not wrong_value(
                {**setting, "keys": None}, value
            ):  # vLLM's other keys do not belong to the setting
                found[name] = value
                break
    return found


def _values(
    book: SettingsBook, setting: Mapping[str, Any], args: Mapping[str, Value], env: Mapping[str, str]
) -> Iterator[Value]:
    if "flag" in setting:
        if setting["flag"] in args:
            yield args[setting["flag"]]
        return
    if "env" in setting:
        if setting["env"] in env:
            yield _typed(book, setting["type"], setting["env"], env[setting["env"]])
        return
    for form in setting["forms"]:
        if not book.line.inside(form.get("since"), form.get("until"), book.release.index):
            continue
        templates = {**form.get("args", {}), **form.get("env", {})}
        if not templates:
            continue
        if "when" in form:
            candidates = form["when"] if isinstance(form["when"], list) else [form["when"]]
        else:
            candidates = list(_bound(book, setting["type"], form, args, env))
        for value in candidates:
            if _given(book, form, value, args, env):
                yield value


def _given(
    book: SettingsBook,
    form: Mapping[str, Any],
    value: Value,
    args: Mapping[str, Value],
    env: Mapping[str, str],
) -> bool:
    """Return whether the flags and variables contain everything that the form produces for this value."""
    flags = {flag: fill_template(item, value) for flag, item in form.get("args", {}).items()}
    return all(
        item is None or (flag in args and holds(args[flag], item)) for flag, item in flags.items()
    ) and all(
        name in env
        and meaning(book.env, name, env[name])
        == meaning(book.env, name, env_text(fill_template(item, value)))
        for name, item in form.get("env", {}).items()
    )


def holds(given: Value, part: Value) -> bool:
    """Return whether a flag's value contains a part: it is equal, or a map with at least these keys."""
    if isinstance(part, Mapping):
        return isinstance(given, Mapping) and all(
            key in given and holds(given[key], item) for key, item in part.items()
        )
    return bool(given == part and isinstance(given, bool) == isinstance(part, bool))


def _bound(
    book: SettingsBook,
    kind: str,
    form: Mapping[str, Any],
    args: Mapping[str, Value],
    env: Mapping[str, str],
) -> Iterator[Value]:
    """Yield the values that the operator's flags and variables have in place of $."""
    parts = {
        template[len(PLACE) + 1 :]: args[flag]
        for flag, template in form.get("args", {}).items()
        if flag in args and isinstance(template, str) and template.startswith(f"{PLACE}.")
    }
    if parts:
        yield parts
    for flag, template in form.get("args", {}).items():
        path = _place(template)
        if path is not None:
            value = args.get(flag)
            for key in path:
                value = value.get(key) if isinstance(value, Mapping) else None
            if value is not None:
                yield value
    for name, template in form.get("env", {}).items():
        if template == PLACE and name in env:
            yield _typed(book, kind, name, env[name])


def _place(template: Value) -> Sequence[str] | None:
    """Return the keys that lead to $ in a template, or None if it has no $."""
    if template == PLACE:
        return ()
    if isinstance(template, Mapping):
        for key, item in template.items():
            rest = _place(item)
            if rest is not None:
                return (key, *rest)
    return None


def _typed(book: SettingsBook, kind: str, name: str, text: str) -> Value:
    """Return a variable's text as the setting's type; invalid text is returned as text, which the type then refuses."""
    read = meaning(book.env, name, text)
    if kind == "bool" and isinstance(read, bool):
        return read
    if kind == "bool":
        return text.lower() not in _FALSE
    try:
        return int(text) if kind == "int" else float(text) if kind == "float" else text
    except ValueError:
        return text
