# SPDX-License-Identifier: Apache-2.0
"""Convert an operator's flags and settings to one form, whichever of vLLM's forms they are written in.

`speculative_config` as a map, as JSON text, with dotted keys (`speculative_config.method`) and by its short name (`sc`)
becomes the same map under the same name, so that no decision depends on the form. What depends on the release, such as
the type of a number in quotes, is left to vllm/canonical.py.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Union

from ....module_utils.common.errors import Path
from ...base.checker import Checker, kind
from ..inventory.vaulted import VaultedText
from .reserved_flags import ENGINE_ALIASES, ENGINE_OWNED, holds_secret, secret_place

Flag = Union[
    str, int, float, bool, None, tuple[Union[str, int, float, Mapping[str, Any]], ...], Mapping[str, Any]
]

LEVEL = "O"
"""vLLM's -O: the level of compilation, or the configuration with a dotted key."""
_NAME = re.compile(rf"[a-z][a-z0-9_-]*|{LEVEL}")
_INNER = re.compile(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*\+?")


def engine_args(check: Checker, value: Any, path: Path) -> tuple[tuple[str, Flag], ...]:
    """Return the flags by name, each once; a value that is a JSON object is a map."""
    return _options(check, value, path, lambda key, item, where: _flag_name(check, key, item, where))


def settings(check: Checker, value: Any, path: Path) -> tuple[tuple[str, Flag], ...]:
    """Return the settings; names and values are checked later, when the plan knows the image's vLLM."""
    found = _options(check, value, path, lambda key, item, where: key)
    return tuple((key, item) for key, item in found if item is not None)


def _options(
    check: Checker, value: Any, path: Path, named: Callable[[str, Any, Path], str]
) -> tuple[tuple[str, Flag], ...]:
    found: dict[str, Flag] = {}
    for key, given in check.mapping(value, path).items():
        where: Path = (*path, key)
        head, dot, inner = key.partition(".")
        name = named(head if inner or not dot else key, given, where)
        if not name:
            continue
        if inner and not _INNER.fullmatch(inner):
            check.wrong(where, "is not a valid path of keys.", f"Write {head}: as a map, or {head}.key.")
            continue
        item = _nested(inner.rstrip("+").split("."), _dotted(given, inner.endswith("+"))) if inner else given
        option = flag_value(check, item, where)
        held = found.get(name)
        if name not in found:
            found[name] = option
        elif isinstance(held, Mapping) and isinstance(option, Mapping) and not _overlap(held, option):
            found[name] = _merged(held, option)
        else:
            check.wrong(where, f"{name} is given twice.", "Keep one spelling.")
    return tuple(sorted(found.items()))


def _flag_name(check: Checker, key: str, item: Any, where: Path) -> str:
    """Return the flag's only name in this toolkit; empty after a problem."""
    if not _NAME.fullmatch(key):
        near = key.lstrip("-").replace("-", "_").lower()
        check.wrong(where, "is not a flag's name.", f"Write it without dashes in front: {near}.")
        return ""
    name = key.replace("-", "_")
    name = ENGINE_ALIASES.get(name, name)
    if name == LEVEL and ("." in str(where[-1]) or isinstance(object_or_value(item), Mapping)):
        name = "compilation_config"
    if name in ENGINE_OWNED:
        check.wrong(where, "is set by the toolkit.", ENGINE_OWNED[name])
        return ""
    if name.startswith("no_") and isinstance(item, bool):
        fix = f"Write {name[3:]}: {'false' if item else 'true'}."
        check.wrong(where, "negates a flag in its name.", fix)
        return ""
    return name


def object_or_value(value: Any) -> Any:
    """Return the map that a text is the JSON of; anything else as it is."""
    if isinstance(value, str) and not isinstance(value, VaultedText) and value.lstrip().startswith("{"):
        try:
            found = json.loads(value)
        except (
            ValueError,
            RecursionError,
        ):  # a template, or something that this release's parser may be able to read
            return value
        return found if isinstance(found, dict) else value
    return value


def _dotted(value: Any, appended: bool) -> Any:
    """Return the value of a dotted key as vLLM's parser reads it: JSON if it is valid, else text; with + a list."""
    if appended:
        items = value.split(",") if isinstance(value, str) and not isinstance(value, VaultedText) else value
        return list(items) if isinstance(items, (list, tuple)) else [items]
    if not isinstance(value, str) or isinstance(value, VaultedText):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _nested(keys: list[str], value: Any) -> dict[str, Any]:
    for key in reversed(keys):
        value = {key: value}
    return dict(value)


def _overlap(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether two maps have a value for the same key."""
    for key in a.keys() & b.keys():
        one, other = a[key], b[key]
        if not (isinstance(one, Mapping) and isinstance(other, Mapping)) or _overlap(one, other):
            return True
    return False


def _merged(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _merged(a[key], b[key]) for key in a.keys() & b.keys()}
    return {**a, **b, **both}


def refuses_secret(check: Checker, value: object, path: Path) -> bool:
    """Return whether a value is refused as a secret, by its form or its name; the message does not repeat it."""
    named = isinstance(value, str) and value != "" and secret_place(str(path[-1])) != ""
    vaulted = isinstance(value, VaultedText)
    if not named and not vaulted and not holds_secret(value):
        return False
    what = "comes from a vault" if vaulted else "looks like a token or a key"
    fix = "Put the hub's token in hf_model_token or hf_model_token_file, others in the deployment's secrets."
    check.wrong(
        path, f"{what}, and would be readable in the plan, the instance's files and the process list.", fix
    )
    return True


def flag_value(check: Checker, value: Any, path: Path) -> Flag:
    """Return the value of a flag; the JSON text of an object becomes that object. None after a problem."""
    if refuses_secret(check, value, path):
        return None
    value = object_or_value(value)
    if isinstance(value, Mapping):
        return _plain_map(check, value, path)
    if isinstance(value, (list, tuple)):
        items = [_list_item(check, item, (*path, index)) for index, item in enumerate(value)]
        if not value:
            check.wrong(path, "must not be an empty list.", "Remove the key to use vLLM's default.")
        return tuple(item for item in items if item is not None)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    check.wrong(path, f"must be text, a number, true, false, a list or a map, not {kind(value)}.")
    return None


def _list_item(check: Checker, item: Any, path: Path) -> str | int | float | Mapping[str, Any] | None:
    """Return an item of a list: text, a number or a map; None after a problem."""
    if item is None or isinstance(item, (bool, list, tuple)):
        check.wrong(path, f"must be text, a number or a map, not {kind(item)}.")
        return None
    if refuses_secret(check, item, path):
        return None
    found = object_or_value(item)
    if isinstance(found, Mapping):
        return _plain_map(check, found, path)
    plain: str | int | float = found
    return plain


def _plain_map(check: Checker, value: Mapping[Any, Any], path: Path) -> dict[str, Any]:
    """Return a map that JSON can express; keys become text as JSON would convert them."""
    result: dict[str, Any] = {}
    for key, item in check.mapping(value, path).items():
        result[key] = _plain_item(check, item, (*path, key))
    return result


def _plain_item(check: Checker, value: Any, path: Path) -> Any:
    """Return a value of such a map, whose lists may hold maps again."""
    if isinstance(value, Mapping):
        return _plain_map(check, value, path)
    if isinstance(value, (list, tuple)):
        return [_plain_item(check, item, (*path, index)) for index, item in enumerate(value)]
    return None if refuses_secret(check, value, path) else value
