# SPDX-License-Identifier: Apache-2.0
"""Format pieces of a plan's text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...base.text import wrap
from ..placement.gpu_shares import ranges

WIDTH = 110
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
"""Numbers as words, up to the maximum of instances on a GPU."""


def noun_with_numbers(noun: str, numbers: Sequence[int]) -> str:
    """Return numbers with a noun: [0, 1, 2] → "ports 0-2"."""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"


def gpus_text(gpus: Sequence[int]) -> str:
    """Return the GPUs of instances, each counted as often as it is used: "GPUs 0-7, two on each"."""
    uses = Counter(gpus)
    most = max(uses.values(), default=0)
    text = noun_with_numbers("GPU", sorted(uses))
    if most < 2:
        return text
    share = f"{COUNTS[most]} on {'each' if len(uses) > 1 else 'it'}"
    return f"{text}, {share}" if set(uses.values()) == {most} else f"{text}, up to {share}"


def titled_paragraph(title: str, text: str) -> list[str]:
    """Return a titled paragraph of a block."""
    head = f"  {title:8} "
    return wrap(text, WIDTH, head, " " * len(head))
