# SPDX-License-Identifier: Apache-2.0
"""Rules of refusals: how one is applied, and that those of the catalogue name what there is."""

from __future__ import annotations

from string import Formatter
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.facts import model_facts
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.images import ImageFacts
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.rules.conditions import UNKNOWN, names
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.rules.refusals import (
    RefusalRule,
    broken_rules,
    parse_refusals,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.feasibility.engine_refusals import NAMES
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.feasibility.start_facts import (
    StartFacts,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.feasibility.start_refusals import FILES
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.tune import tune

from tests.helpers.some import some
from tests.worlds.catalogue import CATALOG, knowledge
from tests.worlds.tune_world import MI300X, deployment

RULES = [(file, rule) for file in (*FILES, NAMES) for rule in knowledge().refusals(file)]
OWN = {"flag", "name", "value"}
GIVEN: dict[str, Any] = {"--a": 3, "--b": None, "--map": '{"x": 1, "y": 2}', "tp": 2}


def said(**changes: Any) -> list[tuple[str, str, str]]:
    entry = {
        "id": "a",
        "flags": ["--a"],
        "when": {},
        "what": "{value} and {tp}",
        "fix": "Leave it out.",
        **changes,
    }
    found = broken_rules(parse_refusals({"refusals": [entry]}), GIVEN.__getitem__)
    return [(item.flag, item.what, item.fix) for item in found]


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, ["3 and 2"]),
    ({"when": {"value": {"below": 3}}}, []),
    ({"flags": ["--a", "--b"], "when": {"value": {"given": True}}}, ["3 and 2"]),
    ({"flags": ["--a", "--b"], "what": "{flag} {value!r}"}, ["--a 3", "--b None"]),
    ({"fields": {"twice": ["*", "value", "tp"]}, "when": {"twice": 6}, "what": "{twice}"}, ["6"]),
    ({"each": "--map", "when": {"value": {"min": 2}}, "what": "{name} is {value}"}, ["y is 2"]),
    ({"each": ["=", ["u", "v"]], "what": "{name} {value}"}, ["0 u", "1 v"]),
    ({"each": "--b"}, []),
])  # fmt: skip
def test_how_a_rule_is_applied(changes: dict[str, Any], expected: list[str]) -> None:
    assert [what for _flag, what, _fix in said(**changes)] == expected


def test_a_rule_about_keys() -> None:
    rule = parse_refusals(
        {"refusals": [{"id": "a", "keys": ["x"], "when": {"tp": 2}, "what": "{tp}", "fix": "{tp}"}]}
    )
    (found,) = broken_rules(rule, GIVEN.__getitem__)
    assert (found.flag, found.keys, found.what, found.fix) == ("", ("x",), "2", "2")


def test_every_file_is_read() -> None:
    assert {path.stem for path in (CATALOG / "vllm/refusals").glob("*.yml")} == {*FILES, NAMES}


def test_each_id_stands_once() -> None:
    ids = [rule.name for _file, rule in some(RULES)]
    assert sorted(ids) == sorted(set(ids))


@pytest.mark.parametrize(("file", "rule"), RULES, ids=[f"{file}-{rule.name}" for file, rule in RULES])
def test_rules_name_facts_that_there_are(file: str, rule: RefusalRule) -> None:
    """Names in conditions and templates are those of facts, of fields, or the rule's own; each field is used."""
    more = {"image_basis": "tag", "max_model_len": UNKNOWN} if file == NAMES else {}
    wanted, image = deployment(), ImageFacts("r/i:t", "tag", vllm="0.24.0", platform="rocm")
    tuned = tune(wanted, MI300X, image, model_facts(wanted.model, {}), knowledge())
    facts = StartFacts(wanted, tuned, {}, knowledge(), more)
    conditions = [rule.when, rule.each, *rule.fields.values()]
    used = {name for part in conditions if part is not None for name in names(part)}
    used |= {
        name
        for text in (rule.what, rule.fix)
        for _text, name, _form, _kind in Formatter().parse(text)
        if name
    }
    for name in used - OWN - set(rule.fields):
        facts(name)
    assert set(rule.fields) <= used
