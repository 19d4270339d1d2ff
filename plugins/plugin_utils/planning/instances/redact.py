# SPDX-License-Identifier: Apache-2.0
"""Redact secrets by their names in command lines, environments and plans, before these are written down.

Secrets without such a name are recognized by value or form: redact.Redactor.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from ....module_utils.common.redact import MASK, is_secret_name
from ....module_utils.credentials.env_files import mask_env


def redact_argv(argv: Iterable[object]) -> list[str]:
    """Return a command line with the values of secret options redacted: both values of --api-key a b --port 1."""
    masked: list[str] = []
    secret = False
    for word in map(str, argv):
        option, equals, _unused = word.partition("=")
        if word.startswith("--"):
            secret = is_secret_name(option.lstrip("-"))
            masked.append(f"{option}={MASK}" if secret and equals else word)
            secret = secret and not equals
        else:
            masked.append(MASK if secret else word)
    return masked


def redact_command(command: object) -> str | None:
    """Return a command line, a list or one shell line, with secrets redacted; None for None."""
    if isinstance(command, (list, tuple)):
        return shlex.join(redact_argv(command)) if command else None
    if not isinstance(command, str) or not command:
        return None
    try:
        words = shlex.split(command)
    except ValueError:  # not a shell line: only the Redactor's patterns apply
        return command
    masked = redact_argv(words)
    return shlex.join(masked) if masked != words else command


def redact_variables(env: Mapping[Any, Any]) -> dict[str, Any]:
    """Return environment variables with the values of secret ones redacted."""
    return {str(name): MASK if is_secret_name(str(name)) else value for name, value in env.items()}


def redact_data(value: Any) -> Any:
    """Return JSON data (a plan) with secret variables redacted in its env maps, env files and command lines."""
    if isinstance(value, Mapping):
        return {str(key): _mask_item(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_data(item) for item in value]
    return value


def _mask_item(key: str, item: Any) -> Any:
    if key == "env" and isinstance(item, Mapping) and "text" in item:
        return {**item, "text": mask_env(str(item["text"]))}
    if key == "env" and isinstance(item, Mapping):
        return redact_variables(item)
    if key == "argv" and isinstance(item, (list, tuple)):
        return redact_argv(item)
    return redact_data(item)
