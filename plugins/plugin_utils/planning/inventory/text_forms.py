# SPDX-License-Identifier: Apache-2.0
"""Convert texts to the types of variables, as Ansible does for options of modules: -e x=true gives a text. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

BOOLEANS: Mapping[str, bool] = {
    **dict.fromkeys(("true", "yes", "on", "y", "t", "1"), True),
    **dict.fromkeys(("false", "no", "off", "n", "f", "0"), False),
}
"""What Ansible reads as a boolean, in lower case."""
LONGEST = 30
"""The power of ten up to which a text such as 1e3 is a number: 1e999999 would fill the memory."""


def convert_value(value: Any, kind: str, elements: str = "") -> Any:
    """Return a value as one of a type of options. A value without such a form is kept, for the caller to refuse.

    elements: the type of a list's items. A text becomes a list of the items between its commas.
    """
    if kind == "list" and elements != "dict":
        items = value.split(",") if isinstance(value, str) else value
        if isinstance(items, list):
            stripped = [item.strip() for item in items] if isinstance(value, str) else items
            return [convert_value(item, elements) for item in stripped]
    if kind == "bool" and isinstance(value, str):
        return BOOLEANS.get(value.strip().lower(), value)
    if kind == "bool" and value in (0, 1):
        return bool(value)
    if kind in ("int", "float") and isinstance(value, str):
        return _number(value, kind)
    return value


def _number(text: str, kind: str) -> int | float | str:
    try:
        return int(text) if kind == "int" else _finite(text)
    except ValueError:
        if kind == "float":
            return text
    try:
        number = Decimal(text)  # as Ansible does: the float 1e23 is another number
    except InvalidOperation:
        return text
    if not number.is_finite() or number.adjusted() > LONGEST or number != int(number):
        return text
    return int(number)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number
