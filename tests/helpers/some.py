# SPDX-License-Identifier: Apache-2.0
"""For tests whose assertions are all in a loop: without anything to look at, they fail."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Thing = TypeVar("Thing")


def some(things: Iterable[Thing], least: int = 1) -> list[Thing]:
    """The things; AssertionError when they are fewer."""
    found = list(things)
    assert len(found) >= least, f"only {len(found)} to look at"
    return found
