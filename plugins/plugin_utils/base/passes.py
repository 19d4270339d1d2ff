# SPDX-License-Identifier: Apache-2.0
"""Run passes one after the other: pure functions, each from one frozen dataclass to the next."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeVar

State = TypeVar("State")
Pass = Callable[[Any], Any]
"""Takes a state, and returns one that knows more. The first line of its docstring says what it adds."""


@contextmanager
def _without_cycle_search() -> Iterator[None]:
    """Suspend the garbage collector's search for cycles.

    Passes keep nearly all that they make, and make hardly any cycles; the search would read all of it again and again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def run_passes(passes: Iterable[Pass], state: Any) -> Any:
    """Return the state after the last of the passes."""
    with _without_cycle_search():
        for step in passes:
            state = step(state)
    return state


def extend(kind: type[State], state: Any, **added: Any) -> State:
    """Return a state of this kind, with all that `state` knows and what is added."""
    return kind(**{**{item.name: getattr(state, item.name) for item in fields(state)}, **added})
