# SPDX-License-Identifier: Apache-2.0
"""Expand a suite into the cells of one engine, with neutral arguments for the client. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...knowledge.vllm.flag_values import Value
from ..measurement.requests import LoadPoint
from .engine import EngineVariant, InstanceEngine, offline_flags
from .suite import LOAD_ARGUMENTS, SERVE, Group, Shape

_MARKS = {"concurrency": "c", "rate": "r", "batch": "b"}


@dataclass(frozen=True)
class PlannedCell:
    """A cell before it is rendered. args: the client's; basis: those that define the cell."""

    name: str
    group: Group
    shape: Shape | None
    load: LoadPoint
    num_prompts: int | None
    args: Mapping[str, Value]
    basis: frozenset[str]


@dataclass(frozen=True)
class OmittedCell:
    """A cell or variant that an instance is not measured in, and why."""

    name: str
    reason: str


def expand(
    group: Group,
    engine: InstanceEngine,
    datasets: Mapping[str, Any],
    prefix: str = "",
    wanted: EngineVariant | None = None,
) -> Iterator[PlannedCell | OmittedCell]:
    """Yield each shape of a group under each load, and each shape that the engine's context cannot hold.

    `datasets` are those of bench_settings.yml; `wanted` is the variant in which an offline benchmark is run, and
    `prefix` its name.
    """
    first = (group.search.point(group.search.start),) if group.search else ()
    for shape in group.shapes or (None,):
        for load in group.loads or first:
            long = shape.input + shape.output if shape else datasets.get(group.dataset, {}).get("longest", 0)
            if engine.max_model_len is not None and long > engine.max_model_len:
                most = "" if shape else "up to "
                name = (
                    prefix + shape_name(group, shape) if group.search else prefix + _name(group, shape, load)
                )
                yield OmittedCell(
                    name, f"{most}{long} tokens are more than --max-model-len {engine.max_model_len}."
                )
                continue
            prompts = group.number_of_prompts(load, engine.max_num_seqs)
            basis = _basis(group, shape, load, prompts, datasets)
            variant = offline_flags(engine, wanted) if wanted and group.kind != SERVE else {}
            given = {flag.lstrip("-").replace("-", "_"): value for flag, value in variant.items()}
            yield PlannedCell(
                prefix + _name(group, shape, load),
                group,
                shape,
                load,
                prompts,
                {**group.args, **basis, **given},
                frozenset(basis),
            )


def shape_name(group: Group, shape: Shape | None) -> str:
    """Return the name of a group's cells of one shape, without their load."""
    dataset = () if group.dataset in ("", "random") else (group.dataset,)
    lengths = (f"in{shape.input}", f"out{shape.output}") if shape else ()
    return "-".join((*dataset, *lengths))


def _name(group: Group, shape: Shape | None, load: LoadPoint) -> str:
    arrival = "all" if load.value is None else f"{_MARKS[load.kind]}{load.value:g}"
    return "-".join(filter(None, (shape_name(group, shape), arrival)))


def _basis(
    group: Group, shape: Shape | None, load: LoadPoint, prompts: int | None, datasets: Mapping[str, Any]
) -> dict[str, Value]:
    found: dict[str, Value] = {"dataset_name": group.dataset} if group.dataset else {}
    if shape:
        names: Mapping[str, str] = datasets[group.dataset or "random"]
        if "input" in names:
            found[names["input"]] = shape.input - int(group.args.get(names.get("prefix", ""), 0))
        found[names["output"]] = shape.output
    if load.kind in LOAD_ARGUMENTS:
        found[LOAD_ARGUMENTS[load.kind]] = load.value
    if prompts is not None:
        found["num_prompts"] = prompts
    return found
