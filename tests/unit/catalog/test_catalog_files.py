# SPDX-License-Identifier: Apache-2.0
"""Every file of the catalogue: its schema, its sources, its releases, and the names it refers to."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.rules import conditions
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired import reasons
from jsonschema import Draft202012Validator

from tests.helpers.some import some
from tests.worlds.catalogue import CATALOG, knowledge

VLLM = sorted(path for path in (CATALOG / "vllm").iterdir() if path.is_file())
REFUSALS = sorted((CATALOG / "vllm/refusals").glob("*.yml"))
RECIPES = sorted((CATALOG / "recipes").glob("*.yml"))
SUITES = sorted((CATALOG / "suites").glob("*.yml"))
BASELINES = sorted((CATALOG / "baselines").glob("*.json"))
ONE_SOURCE = ("parser", "bench_settings", "bench_results")  # the file's own source holds for all its entries
WITH_SOURCES = [
    *(path for path in VLLM if path.suffix == ".yml" and path.stem not in ONE_SOURCE),
    *REFUSALS,
    *RECIPES,
    *(path for path in SUITES if path.stem != "quick"),  # a load of our own
    CATALOG / "images.yml",
    CATALOG / "host_items.yml",
    CATALOG / "accuracy.yml",
    CATALOG / "quantization/schemes.yml",
]


def read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())


def problems(document: Any, schema: Any) -> list[str]:
    found = Draft202012Validator(schema).iter_errors(document)
    return [
        f"{'/'.join(str(part) for part in error.absolute_path)}: {error.message[:200]}" for error in found
    ]


def schema(name: str) -> Any:
    return read(CATALOG / "schemas" / f"{name}.schema.json")


@pytest.mark.parametrize("path", VLLM, ids=lambda path: path.name)
def test_vllm_files_match_their_schema(path: Path) -> None:
    definitions = schema("vllm")["$defs"]
    assert problems(read(path), {"$defs": definitions, "$ref": f"#/$defs/{path.stem}"}) == []


@pytest.mark.parametrize("path", REFUSALS, ids=lambda path: path.name)
def test_refusals_match_their_schema(path: Path) -> None:
    assert problems(read(path), schema("refusals")) == []


def test_the_schema_of_refusals_knows_the_tests_of_conditions() -> None:
    tests = schema("refusals")["$defs"]["tests"]["properties"]
    assert set(tests) == {"not", *conditions.TESTS}
    assert set(tests["is"]["enum"]) == set(conditions.KINDS)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_recipes_match_their_schema(path: Path) -> None:
    assert problems(read(path), schema("recipe")) == []
    assert read(path)["recipe"] == path.stem


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.name)
def test_suites_match_their_schema(path: Path) -> None:
    assert problems(read(path), schema("suite")) == []
    assert read(path)["suite"] == path.stem


def test_schemes_of_quantization_match_their_schema() -> None:
    assert problems(read(CATALOG / "quantization/schemes.yml"), schema("quantization")) == []


@pytest.mark.parametrize("path", BASELINES, ids=lambda path: path.name)
def test_baselines_match_their_schema(path: Path) -> None:
    assert problems(read(path), schema("baselines")) == []


OTHERS = [
    "images",
    "host_items",
    "models",
    "families",
    "licenses",
    "hubs",
    "sources",
    "accuracy",
    "gpu_acceptance",
]


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_match_their_schema(name: str) -> None:
    assert problems(read(CATALOG / f"{name}.yml"), schema(name)) == []


@pytest.mark.parametrize(
    "name",
    [
        "vllm",
        "refusals",
        "recipe",
        "images",
        "host_items",
        "models",
        "families",
        "baselines",
        "sources",
        "suite",
        "accuracy",
        "gpu_acceptance",
        "licenses",
        "hubs",
    ],
)
def test_schemas_are_schemas(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))


def sources_in(document: Any) -> Iterator[str]:
    """Every value of a key `source`, below the file's own."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key == "source" and isinstance(value, str):
                yield value
            else:
                yield from sources_in(value)
    elif isinstance(document, list):
        for item in document:
            yield from sources_in(item)


@pytest.mark.parametrize("path", WITH_SOURCES, ids=lambda path: path.name)
def test_sources_are_listed(path: Path) -> None:
    body = {key: value for key, value in read(path).items() if key != "source"}
    named = {source.partition("#")[0] for source in sources_in(body)}
    assert named, "no entry names a source"
    assert sorted(named - set(knowledge().sources)) == []


def test_no_source_is_unused() -> None:
    used = {source.partition("#")[0] for path in WITH_SOURCES for source in sources_in(read(path))}
    used.update(
        read(CATALOG / f"{name}.yml")["source"] for name in ("models", "families", "licenses", "hubs")
    )
    used.update((reasons.VLLM_CLI, reasons.VLLM_ENV, reasons.VLLM_ROCM, reasons.HUB_ENV, reasons.ISOLATION))
    used.update((reasons.VLLM_COMPILE, reasons.VLLM_STARTUP_PLAN, reasons.VLLM_LOADER))
    for path in BASELINES:
        used.update(setup["source"] for setup in read(path)["setups"].values())
    assert sorted(set(knowledge().sources) - used) == []


def releases_in(document: Any) -> Iterator[str]:
    """Every release that a file names as since, until, or in a history."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key in ("since", "until", "named_since") and isinstance(value, str):
                yield value
            else:
                yield from releases_in(value)
    elif isinstance(document, list):
        for item in document:
            yield from releases_in(item)


@pytest.mark.parametrize("path", [*VLLM, *REFUSALS, *RECIPES], ids=lambda path: path.name)
def test_releases_are_known(path: Path) -> None:
    assert sorted(set(releases_in(read(path))) - set(knowledge().line.releases)) == []


@pytest.mark.parametrize("name", ["flags", "env"])
def test_histories_are_in_order(name: str) -> None:
    order = knowledge().line.order
    tables = {"flags": "flags", "env": "variables"}
    for entry in some(read(CATALOG / "vllm" / f"{name}.json")[tables[name]].values()):
        ends = [order[release] for span in entry["present"] for release in span if release is not None]
        assert ends == sorted(set(ends))
        for key, history in entry.items():
            starts = [order[since] for since, _ in history]
            assert starts == sorted(starts)
            if key != "present":
                assert all(a != b or type(a) is not type(b) for (_, a), (_, b) in itertools.pairwise(history))
