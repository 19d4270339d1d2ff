# SPDX-License-Identifier: Apache-2.0
"""Convert and check values of flags as vLLM's argument parsers do.

The types are those of catalog/vllm/flags.json. A question mark after a type allows "" and "None".
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Value = Any
"""A flag's value as YAML gives it: text, number, boolean, None, a list of these, or a map."""

_ADAPTER_KEYS = ("name", "path", "base_model_name", "is_3d_lora_weight")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_JSON_STRING = re.compile(r'("(?:[^"\\]|\\.)*")')
_BARE_SIZE = re.compile(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b")


def convert(kind: str, text: str, json_sizes: bool = False) -> Value:
    """Convert one token as the parser's type `kind` does. Raise ValueError with a readable reason if it is refused.

    `json_sizes`: this release reads 80m in JSON as 80000000.
    """
    if kind.endswith("?"):
        if text in ("", "None"):
            return None
        kind = kind[:-1]
    return _CONVERTERS[kind](_expand(text) if json_sizes and kind == "config" else text)


def size(text: str) -> int:
    """Return a size as vLLM's human_readable_int does: "1k" → 1000, "1K" → 1024, "25.6k" → 25600."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        return _integer(text)
    number, suffix = found.groups()
    if suffix in _DECIMAL:
        try:
            return int(float(number) * _DECIMAL[suffix])
        except OverflowError:
            raise ValueError(f"{text!r} is too large") from None
    if "." in number:
        raise ValueError(
            f"{text!r} has decimals before the binary suffix {suffix}; write {number}{suffix.lower()}"
        )
    return _integer(number) * _BINARY[suffix]


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def _size_or_auto(text: str) -> int:
    return -1 if text.strip().lower() in ("-1", "auto") else size(text)


def _json(text: str) -> Value:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{text!r} is not JSON") from None


def _json_or_text(text: str) -> Value:
    return _json(text) if re.match(r"(?s)^\s*{.*}\s*$", text) else text


def _object(text: str) -> Value:
    value = _json(text)
    if not isinstance(value, Mapping):
        raise ValueError(f"{text!r} is not a JSON object")
    return value


def _pairs(text: str) -> Value:
    pairs = {}
    for item in text.split(","):
        key, sign, value = item.partition("=")
        if not sign:
            raise ValueError(f"{item!r} is not of the form KEY=VALUE")
        pairs[key.strip()] = _integer(value)
    return pairs


def _adapter(text: str) -> Value:
    """One LoRA adapter: name=path, or JSON with these keys; vLLM's LoRAParserAction."""
    if not text or ("=" in text and "," not in text):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, Mapping) or not {"name", "path"} <= set(value):
        raise ValueError(f"{text!r} is neither name=path nor JSON with name and path")
    unknown = [key for key in value if key not in _ADAPTER_KEYS]
    if unknown:
        raise ValueError(
            f"{unknown[0]!r} is not a key of an adapter; the keys are {', '.join(_ADAPTER_KEYS)}"
        )
    return text


def _json_or_pairs(text: str) -> Value:
    return _json(text) if re.fullmatch(r"{.*}", text) else _pairs(text)


def _level_or(parse: Any) -> Any:
    def level_or_object(text: str) -> Value:
        return int(text) if text in ("0", "1", "2", "3") else parse(text)

    return level_or_object


def _literal(text: str) -> Value:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # it may raise any of these
        raise ValueError(
            f"{text!r} is not a Python literal; this release does not read JSON's true or null"
        ) from None
    if not isinstance(value, dict):
        raise ValueError(f"{text!r} is not a map")
    return value


def _expand(text: str) -> str:
    parts = _JSON_STRING.split(text)
    for index in range(0, len(parts), 2):
        parts[index] = _BARE_SIZE.sub(lambda found: str(size(found.group())), parts[index])
    return "".join(parts)


_CONVERTERS: Mapping[str, Any] = {
    "any": str,
    "adapter": _adapter,
    "str": str,
    "int": _integer,
    "float": _float,
    "size": size,
    "size|auto": _size_or_auto,
    "json": _json,
    "json|str": _json_or_text,
    "json|kvs": _json_or_pairs,
    "config": _object,
    "level|literal": _level_or(_literal),
    "level|config": _level_or(_object),
    "kvs": _pairs,
}


def is_valid_choice(value: Value, choices: Sequence[Any] | None) -> bool:
    """Return whether a converted value is among the parser's choices; True if it has none."""
    return choices is None or any(value == choice and type(value) is type(choice) for choice in choices)


def spell(kind: str, value: Value) -> str:
    """Return the token for a value of a flag of this type; older releases have their own notation for some maps."""
    if isinstance(value, Mapping) and kind.rstrip("?") == "kvs":
        return ",".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, Mapping) and kind == "level|literal":
        return repr(dict(value))  # a Python literal, not JSON
    return token(value)


def token(value: Value) -> str:
    """Return the token for a value in a map of flags; maps and lists become JSON."""
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return str(value)
