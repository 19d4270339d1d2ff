# SPDX-License-Identifier: Apache-2.0
"""Run passes one after the other: pure functions, each from one frozen dataclass to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, TypeVar

State = TypeVar("State")
Pass = Callable[[Any], Any]
"""Takes a state, and returns one that knows more. The first line of its docstring says what it adds."""


def run_passes(passes: Iterable[Pass], state: Any) -> Any:
    """Return the state after the last of the passes."""
    for step in passes:
        state = step(state)
    return state


def extend(kind: type[State], state: Any, **added: Any) -> State:
    """Return a state of this kind, with all that `state` knows and what is added."""
    return kind(**{**{item.name: getattr(state, item.name) for item in fields(state)}, **added})
