# SPDX-License-Identifier: Apache-2.0
"""Lines for people: counts with their nouns, lists that stay short, paragraphs of a width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

MANY = 6


def plural(count: int, noun: str, ending: str = "s") -> str:
    """Return a count with its noun: "1 host", "1,024 hosts"."""
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def printable(text: str) -> str:
    """Replace control characters except line ends and tabs: a terminal would obey those of a host."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text
    )


def join_names(hosts: Sequence[str], limit: int = MANY) -> str:
    """Join names of hosts with commas; only the first ones and the last if there are more than `limit`."""
    if len(hosts) <= limit:
        return ", ".join(hosts)
    return f"{', '.join(hosts[: limit - 1])}, … {hosts[-1]} ({len(hosts)} hosts)"


def interfaces_text(interfaces: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Return network interfaces with their addresses: "eno1 10.0.0.1 fe80::1, lo 127.0.0.1"."""
    return ", ".join(f"{name} {' '.join(addresses)}" for name, addresses in interfaces)


def wrap(text: str, width: int, first: str = "", rest: str = "", whole: bool = False) -> list[str]:
    """Return the lines of a paragraph, indented with `first` and `rest`; names with hyphens are not split.

    `whole`: words that are longer than a line are not split either.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=not whole,
    )
