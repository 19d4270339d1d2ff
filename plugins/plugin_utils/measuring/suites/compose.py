# SPDX-License-Identifier: Apache-2.0
"""Compose the cells of a suite for instances: what is measured, with which command lines, in which order. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ....module_utils.common.errors import FleetError, Problem
from ...knowledge.catalog.load import Knowledge
from ...knowledge.vllm.flag_values import Value
from .cells import CellSearch, SuiteCell, SuiteCells
from .datasets import SUITE
from .engine import (
    EngineVariant,
    InstanceEngine,
    can_run_offline,
    read_engine,
    runs_variant,
    variant_text,
    wanted_engine,
)
from .expand import OmittedCell, expand, shape_name
from .overrides import parse_overrides
from .parse import read_suite
from .render import Renderer
from .suite import Group, Suite

MANY = 5
"""Maximum number of reasons in a message."""


@dataclass(frozen=True)
class SuiteCommands:
    """A suite for several instances. cells: SuiteCells.to_json() by instance; offline: they must be stopped.

    searches: of a suite that searches for loads, the searches by instance; then `cells` is empty.
    """

    suite: str
    offline: bool
    cells: Mapping[str, Mapping[str, Any]]
    warnings: tuple[str, ...]
    searches: Mapping[str, SuiteCells]


def suite_commands(
    knowledge: Knowledge,
    name: str,
    instances: Iterable[Mapping[str, Any]],
    overrides: Mapping[str, Value] | None = None,
) -> SuiteCommands:
    """Return the cells of each instance in a suite: a name of the catalogue, or a path.

    The warnings say what is left out and why. Raise FleetError with the problems of all instances.
    """
    suite = read_suite(knowledge, name)
    made: dict[str, SuiteCells] = {}
    problems: list[Problem] = []
    for instance in instances:
        try:
            made[instance["name"]] = suite_cells(knowledge, suite, instance, overrides)
        except FleetError as error:
            problems += error.problems
    if problems:
        raise FleetError(problems)
    warnings = [
        f"{instance}: {text}"
        for instance, cells in made.items()
        for text in (*cells.warnings, *(f"{item.name} is left out. {item.reason}" for item in cells.omitted))
    ]
    found = {instance: cells.to_json() for instance, cells in made.items() if not cells.searches}
    searches = {instance: cells for instance, cells in made.items() if cells.searches}
    return SuiteCommands(suite.name, suite.offline, found, tuple(warnings), searches)


def wrong_suites(knowledge: Knowledge, variables: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield what is wrong with the suite of hosts, so that the plan fails, not the run.

    A template is not evaluated here; the run checks it.
    """
    chosen: dict[str, list[str]] = {}
    for host, given in variables.items():
        name = given.get(SUITE)
        if isinstance(name, str) and name and "{{" not in name:
            chosen.setdefault(name, []).append(host)
    for name, hosts in chosen.items():
        try:
            read_suite(knowledge, name)
        except FleetError as error:
            for item in error.problems:
                yield Problem((SUITE, *item.path), item.what, item.fix, tuple(hosts))


def suite_cells(
    knowledge: Knowledge,
    suite: Suite,
    instance: Mapping[str, Any],
    overrides: Mapping[str, Value] | None = None,
) -> SuiteCells:
    """Return the cells in which an instance (as in the plan) is measured.

    `overrides` are the operator's: blocks, most, half_width, warmups, seed, kinds, percentiles, and arguments of the
    client that the suite leaves open. Raise FleetError for wrong ones, for a requested percentile for which a cell has
    too few requests, for a data set without its file, and if no cell is left.
    """
    given = parse_overrides(knowledge, suite, overrides or {})
    try:
        engine = read_engine(knowledge, instance)
    except (KeyError, ValueError) as error:
        raise FleetError([Problem((f"targets[{instance.get('name') or '?'}]",), f"{error}.")]) from None
    if suite.searches and instance.get("endpoint"):
        raise FleetError([_beside_users(suite, str(instance["name"]))])
    found = list(_cells(Renderer(knowledge, suite, instance, given), engine))
    cells = tuple(item for item in found if isinstance(item, SuiteCell))
    searches = tuple(item for item in found if isinstance(item, CellSearch))
    omitted = tuple(item for item in found if isinstance(item, OmittedCell))
    if not cells and not searches:
        raise FleetError([_nothing(suite, str(instance["name"]), omitted)])
    names = [*(cell.name for cell in cells), *(search.name for search in searches)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        what = f"has two cells {', '.join(twice)}."
        raise FleetError([Problem((f"suite {suite.name}",), what, "Each shape needs a load of its own.")])
    repeats = given.repeats
    return SuiteCells(
        suite=suite.name,
        offline=suite.offline,
        cells=cells,
        omitted=omitted,
        blocks=repeats.blocks,
        most=repeats.most,
        half_width=repeats.half_width,
        warmups=repeats.warmups,
        seed=given.seed,
        order=tuple(block_orders([cell.name for cell in cells], repeats.most, given.seed)),
        warnings=tuple(
            dict.fromkeys(
                text for cell in (*cells, *(item.first for item in searches)) for text in cell.warnings
            )
        ),
        searches=searches,
    )


def block_orders(names: Iterable[str], blocks: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Yield the order of the cells in each block: a drift of the machine then falls on no cell in particular."""
    dice, cells = random.Random(seed), sorted(names)
    for _block in range(blocks):
        yield tuple(dice.sample(cells, len(cells)))


def _cells(renderer: Renderer, engine: InstanceEngine) -> Iterator[SuiteCell | CellSearch | OmittedCell]:
    suite, datasets = renderer.suite, renderer.knowledge.bench_book["datasets"]
    for prefix, wanted in _variants(renderer.knowledge, suite, engine):
        if isinstance(wanted, OmittedCell):
            yield wanted
            continue
        for group in _groups(renderer):
            for planned in expand(group, engine, datasets, prefix, wanted):
                made = planned if isinstance(planned, OmittedCell) else renderer.render(planned)
                if group.search and isinstance(made, SuiteCell):
                    yield _search(renderer, engine, group, made, prefix)
                else:
                    yield made


def _groups(renderer: Renderer) -> list[Group]:
    """Return the suite's groups for this model, of the kinds of benchmarks that the run is for."""
    kinds, model = renderer.overrides.kinds, str(renderer.instance["model"])
    return [group for group in renderer.suite.groups if group.kind in kinds and group.measures(model)]


def _search(
    renderer: Renderer, engine: InstanceEngine, group: Group, first: SuiteCell, prefix: str
) -> CellSearch | OmittedCell:
    """Return the search of a group for the shape of its first cell."""
    rules, name = group.search, prefix + shape_name(group, first.shape)
    if rules is None:
        raise AssertionError(f"{group.title} has no search")
    if not first.slos:
        return OmittedCell(name, f"No limit of its `slos` is for {renderer.instance['model']}.")
    shapes = (first.shape,) if first.shape else ()

    def at(load: float) -> SuiteCell:
        other = replace(group, search=replace(rules, start=load), shapes=shapes)
        (planned,) = expand(other, engine, renderer.knowledge.bench_book["datasets"], prefix)
        made = None if isinstance(planned, OmittedCell) else renderer.render(planned)
        if not isinstance(made, SuiteCell):  # a release that can express the first load can express all
            raise AssertionError(f"{name} cannot be measured at {load:g}")
        return made

    return CellSearch(name, rules, first, at)


def _variants(
    knowledge: Knowledge, suite: Suite, engine: InstanceEngine
) -> Iterator[tuple[str, EngineVariant | OmittedCell | None]]:
    """Yield the variants that can be measured, each with the prefix of its cells, and why others cannot be.

    A running engine is measured as the variant that it runs. An offline benchmark starts its own engine, which
    can have the flags of any variant.
    """
    if not suite.variants:
        yield "", None
    for variant in suite.variants:
        wanted = wanted_engine(knowledge, variant, engine.table)
        if wanted.why_not:
            yield "", OmittedCell(variant.name, wanted.why_not)
        elif runs_variant(engine, wanted):
            yield f"{variant.name}-", EngineVariant({}, {})
        elif suite.offline and can_run_offline(engine, wanted):
            yield f"{variant.name}-", wanted
        else:
            yield "", OmittedCell(variant.name, f"The engine does not run with {variant_text(variant)}.")


def _beside_users(suite: Suite, instance: str) -> Problem:
    what = "searches for a load that is too high, but this measurement shares a load balancer with users."
    return Problem(
        (f"suite {suite.name}", instance),
        what,
        "Leave out live=true, so that instances are taken out of service.",
    )


def _nothing(suite: Suite, instance: str, omitted: Iterable[OmittedCell]) -> Problem:
    """Return why a suite measures nothing of an instance, and what to do."""
    reasons = [f"{item.name}: {item.reason}" for item in omitted]
    more = f" ({len(reasons)} in all)" if len(reasons) > MANY else ""
    names = {variant.name for variant in suite.variants}
    if names and {item.name for item in omitted} <= names:
        fix = (
            "The suite compares engines, but restarts none. Set one variant in the deployment, roll it out with "
            "upgrade.yml, run the suite, and do the same with the next variant."
        )
    else:
        fix = "Choose another suite, or write one of your own and give its path."
    what = " ".join(["nothing in it can be measured.", *reasons[:MANY]]) + more
    return Problem((f"suite {suite.name}", instance), what, fix)
