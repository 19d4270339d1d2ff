# SPDX-License-Identifier: Apache-2.0
"""Mistakes in a suite: each is an error with its place and the nearest valid name, in the code and in the schema."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.requests import LoadPoint
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.slo_search import (
    SearchRules,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.parse import (
    parse_suite,
    read_suite,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.suite import PromptRule
from jsonschema import Draft202012Validator

from tests.worlds.catalogue import CATALOG, knowledge

SCHEMA = Draft202012Validator(json.loads((CATALOG / "schemas/suite.schema.json").read_text()))
SUITE: dict[str, Any] = {
    "schema": 1,
    "suite": "own",
    "title": "Our load",
    "percentiles": [50, 90],
    "slos": [{"name": "chat", "ttft_ms": 500}],
    "variants": [{"name": "big", "settings": {"max_num_batched_tokens": 65536}}],
    "groups": [
        {
            "title": "Chat",
            "kind": "serve",
            "shapes": [{"input": 1024, "output": 128}],
            "load": {"concurrency": [8]},
            "num_prompts": {"per_concurrency": 10},
            "args": {"ignore_eos": True},
        }
    ],
}
GROUP = ("groups", 0)


def changed(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """The suite with another value at a place; None removes it."""
    document = copy.deepcopy(SUITE)
    target: Any = document
    for key in path[:-1]:
        target = target[key]
    if value is None:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return document


def test_a_right_one() -> None:
    suite = parse_suite(knowledge(), "own.yml", SUITE)
    assert list(SCHEMA.iter_errors(SUITE)) == []
    assert (suite.repeats.warmups, suite.repeats.blocks, suite.repeats.most) == (1, 3, 10)
    assert suite.groups[0].loads == (LoadPoint("concurrency", 8),)
    assert not suite.offline


@pytest.mark.parametrize(
    ("path", "value", "said", "by_schema"),
    [
        (("percentile",), [50], "percentile: unknown key. Did you mean percentiles?", True),
        (("repeats",), {"block": 3}, "repeats.block: unknown key. Did you mean blocks?", True),
        (("repeats",), {"blocks": 0}, "repeats.blocks: 0 is out of range", True),
        (("repeats",), {"blocks": 5, "most": 3}, "repeats.most: 3 is out of range", False),
        (("groups",), None, "a suite needs at least one group", True),
        ((*GROUP, "shape"), [], "shape: unknown key. Did you mean shapes?", True),
        ((*GROUP, "shapes"), [{"inputs": 1, "output": 1}], "inputs: unknown key. Did you mean input?", True),
        ((*GROUP, "shapes"), None, "shapes: is missing", False),
        ((*GROUP, "dataset"), "sharegbt", "Did you mean sharegpt?", False),
        ((*GROUP, "kind"), "serving", "'serving' is not valid. Valid: serve, latency, throughput.", True),
        ((*GROUP, "load"), {"concurency": [8]}, "concurency: unknown key. Did you mean concurrency?", True),
        ((*GROUP, "load"), {"concurrency": [8], "rate": [1]}, "needs exactly one of concurrency, rate, all", True),
        ((*GROUP, "load"), {"batch": [8]}, "batch: unknown key", False),
        ((*GROUP, "load"), {"concurrency": [0.5]}, "must be whole numbers", True),
        ((*GROUP, "load"), {"concurrency": [-1]}, "-1 is not a number above 0", True),
        ((*GROUP, "load"), {"serch": {"rate": 1}}, "serch: unknown key. Did you mean search?", True),
        ((*GROUP, "load"), {"search": {"rate": 1}, "rate": [1]}, "needs exactly one of concurrency, rate, all", True),
        ((*GROUP, "load"), {"search": {"ratte": 1}}, "ratte: unknown key. Did you mean rate?", True),
        ((*GROUP, "load"), {"search": {"rate": 1, "concurrency": 1}}, "search: needs exactly one of rate", True),
        ((*GROUP, "load"), {"search": {"concurrency": 1.5}}, "must have whole numbers", True),
        ((*GROUP, "load"), {"search": {"rate": 1, "share": 99}}, "share: 99 is not a share. 0.99 is 99 %.", True),
        ((*GROUP, "load"), {"search": {"rate": 1, "probes": 1}}, "probes: 1 is out of range", True),
        ((*GROUP, "load"), {"search": {"rate": 4, "most": 2}}, "rate: 4 is not from 0 to 2", False),
        ((*GROUP, "num_prompts"), None, "needs exactly one of count, per_concurrency", False),
        ((*GROUP, "num_prompts"), {"seconds": 60}, "belongs to a load of rate", False),
        ((*GROUP, "num_prompts"), {"cuont": 60}, "cuont: unknown key. Did you mean count?", True),
        ((*GROUP, "args"), {"ignore_eoss": True}, "Did you mean ignore_eos?", False),
        ((*GROUP, "args"), {"num_prompts": 5}, "is determined by the suite's own keys", False),
        ((*GROUP, "args"), {"base_url": "http://x"}, "is set by the toolkit", False),
        (("slos",), [{"name": "chat"}], "needs at least one of ttft_ms, tpot_ms, e2el_ms", True),
        (("slos",), [{"name": "chat", "ttft": 5}], "ttft: unknown key. Did you mean ttft_ms?", True),
        (("slos",), [{"name": "a", "ttft_ms": 5}] * 2, "a is there twice", False),
        (("variants",), [{"name": "x", "settings": {"graph_mod": "FULL"}}], "Did you mean graph_mode?", False),
        (("variants",), [{"name": "x", "engine_args": {"enforce_eagr": True}}], "Did you mean enforce_eager?", False),
        (("percentiles",), [100], "must be below 100", True),
    ],
)  # fmt: skip
def test_mistakes(path: tuple[str | int, ...], value: Any, said: str, by_schema: bool) -> None:
    document = changed(path, value)
    with pytest.raises(FleetError) as error:
        parse_suite(knowledge(), "own.yml", document)
    assert said in str(error.value)
    assert str(error.value).startswith("suite own.yml")
    assert bool(list(SCHEMA.iter_errors(document))) == by_schema


def searching(**rules: Any) -> dict[str, Any]:
    group = {"title": "S", "kind": "serve", "shapes": [{"input": 1, "output": 1}], "load": {"search": rules}}
    group["num_prompts"] = {"count": 60}
    return changed(("groups",), [group])


def test_a_search() -> None:
    document = {**searching(rate=0.5, share=0.9, most=8), "slos": [{"name": "chat", "ttft_ms": 5}]}
    assert not list(SCHEMA.iter_errors(document))
    suite = parse_suite(knowledge(), "own.yml", document)
    (group,) = suite.groups
    assert (suite.searches, group.loads) == (True, ())
    assert group.search == SearchRules("rate", 0.5, share=0.9, most=8)
    assert group.number_of_prompts(LoadPoint("rate", 1.0), 256) == 60  # p90 needs 44
    document["groups"][0]["load"]["search"]["share"] = 0.99
    (group,) = parse_suite(knowledge(), "own.yml", document).groups
    assert group.number_of_prompts(LoadPoint("rate", 1.0), 256) == 459


def test_a_search_needs_limits_and_a_suite_of_its_own() -> None:
    document = searching(rate=1)
    document.pop("slos", None)
    with pytest.raises(FleetError, match="slos: is missing: it says which limits the load must keep"):
        parse_suite(knowledge(), "own.yml", document)
    both = {**document, "groups": [*SUITE["groups"], *document["groups"]]}
    with pytest.raises(FleetError, match="both searches for loads and measures given ones"):
        parse_suite(knowledge(), "own.yml", {**both, "slos": [{"name": "chat", "ttft_ms": 5}]})


def test_running_and_stopped_instances_are_two_suites() -> None:
    latency = {"title": "L", "kind": "latency", "shapes": [{"input": 1, "output": 1}], "load": {"batch": [1]}}
    document = changed(("groups",), [*SUITE["groups"], latency])
    with pytest.raises(FleetError, match="Write two suites"):
        parse_suite(knowledge(), "own.yml", document)
    assert parse_suite(knowledge(), "own.yml", changed(("groups",), [latency])).offline


def test_names_and_paths(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"suite quik: unknown suite\. Did you mean quick\?"):
        read_suite(knowledge(), "quik")
    missing = tmp_path / "own.yml"
    with pytest.raises(FleetError, match=rf"{missing}: cannot be read: No such file or directory\..*quick"):
        read_suite(knowledge(), str(missing))
    missing.write_text("a: [", encoding="utf-8")
    with pytest.raises(FleetError, match="is not YAML"):
        read_suite(knowledge(), str(missing))
    missing.write_text(json.dumps(SUITE), encoding="utf-8")
    assert read_suite(knowledge(), str(missing)).title == "Our load"


@pytest.mark.parametrize(
    ("rule", "load", "number"),
    [
        (PromptRule(count=500), LoadPoint("rate", 1), 500),
        (PromptRule(per_concurrency=10), LoadPoint("concurrency", 64), 640),
        (PromptRule(per_concurrency=10, least=44), LoadPoint("concurrency", 1), 44),
        (PromptRule(per_max_num_seqs=2), LoadPoint("all"), 512),
        (PromptRule(seconds=600), LoadPoint("rate", 0.5), 300),
    ],
)
def test_number_of_prompts(rule: PromptRule, load: LoadPoint, number: int) -> None:
    assert rule.number(load, max_num_seqs=256) == number
