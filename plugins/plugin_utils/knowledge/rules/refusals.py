# SPDX-License-Identifier: Apache-2.0
"""Apply the rules of catalog/vllm/refusals to what is known of a server's start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .conditions import Condition, Facts, evaluate, holds, read_map


@dataclass(frozen=True)
class RefusalRule:
    """A case in which a release does not start, and the message for it.

    Attributes:
        flags: that it is about; the rule is tried with each, as the fact `flag`, and with its value, as `value`.
        keys: of the deployment, instead of flags.
        each: a map or a list; the rule is tried with each entry, as `name` and `value`. None: it is tried once.
        fields: conditions by the names that `when`, `what` and `fix` use for their values.
        what, fix: templates with the names of facts and fields.
    """

    name: str
    flags: tuple[str, ...]
    keys: tuple[str, ...]
    each: Condition
    when: Condition
    fields: Mapping[str, Condition]
    what: str
    fix: str


@dataclass(frozen=True)
class RuleMessage:
    """What a rule says: the flag or the keys of the deployment that it is about, what is wrong, and what to do."""

    flag: str
    keys: tuple[str, ...]
    what: str
    fix: str


def parse_refusals(data: Mapping[str, Any]) -> tuple[RefusalRule, ...]:
    """Return the rules of a file; the tests check its schema."""
    return tuple(
        RefusalRule(
            item["id"],
            tuple(item.get("flags", ())),
            tuple(item.get("keys", ())),
            item.get("each"),
            item["when"],
            item.get("fields", {}),
            item["what"],
            item["fix"],
        )
        for item in data["refusals"]
    )


def broken_rules(rules: Iterable[RefusalRule], facts: Facts) -> Iterator[RuleMessage]:
    """Yield the message of each rule that certainly holds."""
    for rule in rules:
        for flag in rule.flags or ("",):
            for own in _entries(rule, flag, facts):
                known = _RuleFacts(rule.fields, own, facts)
                if holds(rule.when, known):
                    what, fix = rule.what.format_map(known), rule.fix.format_map(known)
                    yield RuleMessage(flag, rule.keys, what, fix)


def _entries(rule: RefusalRule, flag: str, facts: Facts) -> Iterator[dict[str, Any]]:
    if rule.each is None:
        yield {"flag": flag, "value": facts(flag)} if flag else {}
        return
    found = evaluate(rule.each, facts)
    entries = enumerate(found) if isinstance(found, (list, tuple)) else (read_map(found) or {}).items()
    for name, value in entries:
        yield {"flag": flag, "name": name, "value": value}


class _RuleFacts(dict[str, Any]):
    """The facts of one rule: its own, its fields, and those of the start."""

    def __init__(self, fields: Mapping[str, Condition], own: Mapping[str, Any], facts: Facts) -> None:
        super().__init__(own)
        self.fields, self.facts = fields, facts

    def __missing__(self, name: str) -> Any:
        return evaluate(self.fields[name], self) if name in self.fields else self.facts(name)

    def __call__(self, name: str) -> Any:
        return self[name]
