# SPDX-License-Identifier: Apache-2.0
"""Tell which switches select the attention backend of a release, and whether each has an effect next to the others.

The data is catalog/vllm/backends.yml; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from .attention_backends import BLOCK, MASTER, SWITCHES, Backends, switched_on
from .findings import NO_EFFECT, Finding
from .flag_values import Value

SOURCE = "vllm-rocm-platform"
Decided = tuple[Mapping[str, Value], Mapping[str, str]]
"""Flags ("--name" → value) and variables."""


@dataclass(frozen=True)
class AttentionSwitches:
    """The switches of one release for one kind of attention.

    facts: of the model, as in Backends.in_effect(). present: the variables that the release reads.
    """

    backends: Backends
    attention: str
    facts: Mapping[str, bool]
    present: Container[str]

    def selected(self, decided: Decided) -> str:
        """Return the backend that flags and variables select."""
        return self.backends.in_effect(self.attention, *decided, self.facts)

    def overruled(self, own: Decided, before: Decided, entry: Decided) -> str:
        """Return the switch of the operator's that an entry would take the effect from; empty if there is none.

        own: what the operator decided. before: all that is decided. entry: what a recipe adds to it.
        """
        after = ({**before[0], **entry[0]}, {**before[1], **entry[1]})
        old, new = self.selected(before), self.selected(after)
        by = self.backends.named_by()
        if by and old != new and (by in own[0] or by in own[1]):
            return by
        added = self._set(entry)
        for name, (fact, on) in self._named(own).items():
            ways = list(self._ways(fact))
            if not on:
                if old != new and any(new == backend for backend, _conditions, which in ways if which):
                    return name
            elif (
                ways
                and (added or (by and by in {**entry[0], **entry[1]}))
                and not any(
                    new == backend and self._holds(after, conditions) for backend, conditions, _which in ways
                )
            ):
                helpful = any(added.items() <= conditions.items() for _backend, conditions, _which in ways)
                if not helpful or (by and by in {**entry[0], **entry[1]}):
                    return name
        return ""

    def only_latent(self, name: str) -> bool:
        """Return whether a switch selects between backends of latent attention only."""
        fact = _FACTS.get(name)
        return not any(fact in item.get("if", {}) for item in self.backends.era["dense"])

    def idle(self, name: str, decided: Decided) -> Finding | None:
        """Return why a variable that could select a backend does not, and what to set for it to do so."""
        fact = _FACTS.get(name)
        text = decided[1].get(name)
        if fact is None or text is None or fact in _OTHERS:
            return None
        off = not switched_on(text)
        if self._matters(name, fact, decided) or (off and not self.backends.switched(*decided)[MASTER]):
            return None
        new = self.selected(decided)
        title = self.backends.vllm_name(new) or self.backends.data["backends"][new]["title"]
        what = f"has no effect: vLLM uses {title} with or without it"
        return Finding(
            name,
            NO_EFFECT,
            what,
            self._remedy(name, fact, decided),
            SOURCE,
            self.backends.release.exact,
            True,
        )

    def _matters(self, name: str, fact: str, decided: Decided) -> bool:
        """Return whether the opposite of a switch selects another backend, or changes how this one works."""
        on, new = switched_on(decided[1][name]), self.selected(decided)
        if new != self.selected(_with(decided, name, not on)):
            return True
        on_way = _with(decided, name, True)
        return any(
            new == backend and self._holds(on_way, conditions)
            for backend, conditions, selects in self._ways(fact)
            if on or not selects
        )

    def _remedy(self, name: str, fact: str, decided: Decided) -> str:
        if not any(self._ways(fact)):
            return "Remove it, or choose with the setting attention_backend."
        flipped = {
            other: not (switched_on(decided[1][other]) if other in decided[1] else _DEFAULTS[other])
            for other, item in sorted(_FACTS.items(), key=lambda entry: entry[1] == MASTER)
            if item not in (fact, "v1") and other in self.present
        }
        for count in (1, 2):
            for names in combinations(flipped, count):
                tried = decided
                for other in names:
                    tried = _with(tried, other, flipped[other])
                if self._matters(name, fact, tried):
                    also = " and ".join(f"{other} to {int(flipped[other])}" for other in names)
                    return f"Set {also} as well, or choose with the setting attention_backend."
        return "Choose with the setting attention_backend instead."

    def _ways(self, fact: str) -> Iterator[tuple[str, Mapping[str, bool], bool]]:
        """Yield the backends that a switch selects, on what conditions; False where it only changes how one works."""
        for item in self.backends.era[self.attention]:
            if item.get("if", {}).get(fact) is True:
                yield item["backend"], item["if"], True
        if self.attention == "dense":
            for item in self.backends.era.get("within", ()):
                if item["switch"] == fact:
                    yield item["backend"], {**item.get("if", {}), fact: True}, False

    def _named(self, decided: Decided) -> dict[str, tuple[str, bool]]:
        found = {
            name: (fact, switched_on(decided[1][name]))
            for name, fact in _FACTS.items()
            if name in decided[1] and fact not in _OTHERS
        }
        if decided[0].get(BLOCK) == 1:
            found[BLOCK] = ("block_1", True)
        return found

    def _set(self, decided: Decided) -> dict[str, bool]:
        """Return the facts that flags and variables decide."""
        found = {fact: switched_on(decided[1][name]) for name, fact in _FACTS.items() if name in decided[1]}
        return {**found, "block_1": decided[0][BLOCK] == 1} if BLOCK in decided[0] else found

    def _holds(self, decided: Decided, conditions: Mapping[str, bool]) -> bool:
        known: dict[str, Any] = {**self.backends.switched(*decided), **self.facts}
        return all(known.get(fact, False) == value for fact, value in conditions.items())


_FACTS = {name: fact for fact, name, _default in SWITCHES}
_DEFAULTS = {name: default for _fact, name, default in SWITCHES}
_OTHERS = (MASTER, "v1")
"""Switches that decide more than the attention."""


def _with(decided: Decided, name: str, on: bool) -> Decided:
    return decided[0], {**decided[1], name: str(int(on))}
