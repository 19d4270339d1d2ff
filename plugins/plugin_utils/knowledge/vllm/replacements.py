# SPDX-License-Identifier: Apache-2.0
"""Suggest replacements for flags and variables that are removed, deprecated or without effect.

Data: catalog/vllm/replacements.yml, hand-written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from ....module_utils.engines.versions import Release

Spans = tuple[tuple[Optional[str], Optional[str]], ...]


@dataclass(frozen=True)
class Replacement:
    """`use`: the replacements, the best first. `note`: what the old name did, and what to do now."""

    name: str
    use: tuple[str, ...]
    note: str
    source: str
    no_effect: Spans = ()

    def advice(self, available: Mapping[str, Any], release: Release) -> str:
        """Return what to do in this release, in one or two sentences."""
        usable = [name for name in self.use if name in available]
        if usable:
            return f"Use {usable[0]}. {self.note}".strip()
        return self.note or f"Remove it; vLLM {release.requested} has no replacement for it."


@dataclass(frozen=True)
class Replacements:
    """All replacements, by name; `choices` by flag and value."""

    flags: Mapping[str, Replacement]
    env: Mapping[str, Replacement]
    choices: Mapping[tuple[str, str], tuple[str, str]]

    def flag(self, name: str) -> Replacement | None:
        """Return the replacement of a flag, or None."""
        return self.flags.get(name)

    def variable(self, name: str) -> Replacement | None:
        """Return the replacement of a variable, or None."""
        return self.env.get(name)

    def choice(self, flag: str, value: str) -> str:
        """Return what to use instead of a flag's value; empty if unknown."""
        return self.choices.get((flag, value), ("", ""))[0]

    def choice_source(self, flag: str, value: str) -> str:
        """Return the source of that replacement."""
        return self.choices.get((flag, value), ("", ""))[1]

    def before(self, name: str, available: Mapping[str, Any]) -> str:
        """Return the older name in this release that a later flag or variable replaced; empty if there is none."""
        return next(
            (
                old
                for old, item in {**self.flags, **self.env}.items()
                if name in item.use and old in available
            ),
            "",
        )


def parse_replacements(data: Mapping[str, Any]) -> Replacements:
    """Build from replacements.yml; the tests check its schema."""

    def entries(items: Mapping[str, Any]) -> dict[str, Replacement]:
        return {
            name: Replacement(
                name,
                tuple(item.get("use", ())),
                item.get("note", ""),
                item["source"],
                tuple((span[0], span[1]) for span in item.get("no_effect", ())),
            )
            for name, item in items.items()
        }

    choices = {
        (flag, str(value)): (item["note"], item["source"])
        for flag, values in data["choices"].items()
        for value, item in values.items()
    }
    return Replacements(entries(data["flags"]), entries(data["env"]), choices)
