# SPDX-License-Identifier: Apache-2.0
"""Recognize what comes from ansible-vault, through templates too. Control node only.

ansible-core 2.19 tags a decrypted value, and drops the tag where a template makes another text of it. So the variables
that a template names are searched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from ....module_utils.common.redact import MIN_LENGTH

_HEAD = b"$ANSIBLE_VAULT;"
_NAME = re.compile(r"[A-Za-z_]\w*")


class VaultedText(str):
    """A text that comes from a vault, or contains such a text."""

    __slots__ = ()


def vaulted_texts(raw: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the texts from vaults in a variable, and in the variables that its templates name.

    raw: the host's variables, not templated. A text also counts as one if a template names a variable whose whole
    file is encrypted; the variable's own file does not count, as it may be encrypted for another reason.
    """
    found: set[str] = set()
    _collect(raw, raw[name], {name}, False, found)
    return frozenset(found)


def _collect(raw: Mapping[str, Any], value: Any, seen: set[str], encrypted: bool, found: set[str]) -> None:
    if isinstance(value, Mapping):
        for item in value.values():
            _collect(raw, item, seen, encrypted, found)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(raw, item, seen, encrypted, found)
    elif not isinstance(value, str):
        if type(value).__name__ == "EncryptedString":
            found.add(str(value))
    elif "{{" in value or "{%" in value:
        for name in sorted(set(_NAME.findall(value)) & set(raw) - seen):
            seen.add(name)
            _collect(raw, raw[name], seen, _file_encrypted(raw[name]), found)
    elif encrypted or _tagged(value):
        found.add(str(value))


def mark_vaulted(value: Any, secrets: frozenset[str]) -> Any:
    """Return plain data whose texts from vaults are Vaulted."""
    if isinstance(value, Mapping):
        return {key: mark_vaulted(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [mark_vaulted(item, secrets) for item in value]
    if isinstance(value, str) and any(
        value == item or (len(item) >= MIN_LENGTH and item in value) for item in secrets
    ):
        return VaultedText(value)
    return value


def _tagged(value: str) -> bool:
    try:
        from ansible._internal._datatag._tags import VaultedValue
    except ImportError:
        return False
    return bool(VaultedValue.is_tagged_on(value))


def _file_encrypted(value: Any) -> bool:
    try:
        from ansible._internal._datatag._tags import Origin
    except ImportError:
        return False
    path = getattr(Origin.get_tag(value), "path", None)
    return _encrypted(str(path)) if path else False


@cache
def _encrypted(path: str) -> bool:
    try:
        with open(path, "rb") as stream:
            return stream.read(len(_HEAD)) == _HEAD
    except OSError:
        return False
