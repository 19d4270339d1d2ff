# SPDX-License-Identifier: Apache-2.0
"""The main() of every module on a node: do the work, and report the outcome without secrets."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, Callable

from .redact import Redactor


class NodeError(Exception):
    """The node is not in the desired state. The message says what, where, why, and what to do next.

    `result` is returned with the message and shows how far the work got: changed, actions, …
    """

    def __init__(self, message: str, **result: Any) -> None:
        super().__init__(message)
        self.result = result


def require_program(program: object) -> None:
    """Raise NodeError if a module was called without the program that it runs."""
    if not program:
        raise NodeError(
            "This module was called without its action plugin, which gives it the program to run. Call it by its full "
            "name, instinct.fleet.…, or name plugins/action and action_plugins where library is named."
        )


def internal_error(error: BaseException) -> str:
    """Describe a bug of this toolkit in one line: the type, the text, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"Internal error, please report it: {type(error).__name__}: {error}{place}"


def finish(module: Any, secrets: Iterable[str | None], work: Callable[[], Mapping[str, Any]]) -> None:
    """Run `work`; leave through exit_json with its result, or through fail_json. Never raise.

    fail_json gets no exception=: ansible-core 2.19 prints an exception's text unmasked.
    """
    redact = Redactor(secrets)
    # Ansible would add the parameters unmasked, including secrets nested deeper than no_log reaches. `program` is left
    # out because it is long and not the user's.
    given = {name: value for name, value in module.params.items() if name != "program"}
    reported = {"invocation": {"module_args": redact.data(given)}}
    try:
        result = redact.data(dict(work()))
    except NodeError as error:
        module.fail_json(msg=redact(str(error)), **_warned(module, redact.data(error.result)), **reported)
        return
    except Exception as error:
        module.fail_json(msg=redact(internal_error(error)), **reported)
        return
    module.exit_json(**_warned(module, result), **reported)


def _warned(module: Any, result: dict[str, Any]) -> dict[str, Any]:
    """Emit the (redacted) warnings as ansible-core 2.23 will require, and return the result without them."""
    for warning in result.pop("warnings", []):
        module.warn(warning)
    return result
