# SPDX-License-Identifier: Apache-2.0
"""Find the published results that are nearest to the fleet's own measurements, and say how they differ. Pure.

No published result is of this fleet: the ratio is for orientation, never a verdict.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .cells import Side, by_cell
from .commands import options
from .requests import LoadPoint
from .rows import MOST_FAILED, Row, failed_share, has_success, load_of, shape_of

KINDS = {"serving": "serve", "latency": "latency", "throughput": "throughput"}
"""Kinds of baselines, and those of rows."""
_WEIGHTS = ("mxfp4", "fp4", "fp8", "int4", "bf16")
# What the names of a model contain in addition to its own name.
_SUFFIX = re.compile(r"[-_. ](fp8|fp4|mxfp4|int4|int8|awq|gptq|bf16|kv|preview|instruct|quark|dynamic)$")


@dataclass(frozen=True)
class Conditions:
    """The conditions of a result; None: not known. load: of a throughput benchmark, its number of prompts."""

    model: str
    gpu: str | None
    gpus: int | None
    weights: str | None
    input: int | None
    output: int | None
    load: LoadPoint
    vllm: str | None
    image: str | None


@dataclass(frozen=True)
class PublishedResult:
    """One row of the baselines."""

    kind: str
    conditions: Conditions
    metrics: Mapping[str, float]
    counted: str | None
    source: str
    date: str | None


@dataclass(frozen=True)
class Ratio:
    """One metric: measured over published, both in the unit of the published one."""

    metric: str
    measured: float
    published: float
    more_is_better: bool

    @property
    def value(self) -> float:
        """Return measured/published."""
        return self.measured / self.published


@dataclass(frozen=True)
class Counterpart:
    """A published row with the measured cell that is nearest to it.

    same: whether it did the same work, as far as the publication says: model, kind, lengths and load. distance: orders
    counterparts, 0 for no known difference.
    """

    cell: str
    deployment: str
    published: PublishedResult
    ratios: tuple[Ratio, ...]
    differs: tuple[str, ...]
    same: bool
    distance: float = field(compare=False, default=0.0)


def read_published(files: Iterable[Mapping[str, Any]]) -> list[PublishedResult]:
    """Return the rows of the baselines (catalog/baselines/*.json)."""
    found = []
    for data in files:
        for item in data["results"]:
            setup = data["setups"][item["setup"]]
            conditions = Conditions(
                model=family(item["model"]),
                gpu=setup["gpu"],
                gpus=item["tensor_parallel_size"] or setup["gpus"],
                weights=item["weights"],
                input=item["input_tokens"],
                output=item["output_tokens"],
                load=_published_load(item),
                vllm=setup["vllm"],
                image=item.get("image") or setup["image"],
            )
            found.append(
                PublishedResult(
                    KINDS[item["kind"]], conditions, item["metrics"], item.get("tokens_counted"),
                    setup["source"], setup["date"],
                )
            )  # fmt: skip
    return found


def counterparts(side: Side, published: Sequence[PublishedResult]) -> list[Counterpart]:
    """Return the published rows for what was measured, nearest first within each cell.

    Each published row of the same work appears once, with the nearest cell. A cell without such a row gets the nearest
    row of its model and kind, if there is any.
    """
    cells = [
        (key.cell, key.deployment, row, conditions_of(row, side.hosts))
        for key, rows in by_cell(side).items()
        if (row := _median_row(rows))
    ]
    found: list[Counterpart] = []
    for item in published:
        near = [pair for cell in cells if (pair := _beside(*cell, item)) and pair.same]
        found += [min(near, key=lambda pair: pair.distance)] if near else []
    covered = {(pair.cell, pair.deployment) for pair in found}
    for cell in cells:
        if cell[:2] not in covered:
            near = [pair for item in published if (pair := _beside(*cell, item))]
            found += [min(near, key=lambda pair: pair.distance)] if near else []
    return sorted(found, key=lambda pair: (pair.deployment, pair.cell, pair.distance))


def family(model: str) -> str:
    """Return a model's name without organization, precision and tuning: they have the same shape."""
    name = model.rsplit("/", 1)[-1].lower()
    while (shorter := _SUFFIX.sub("", name)) != name:
        name = shorter
    return name


def conditions_of(row: Row, hosts: Mapping[str, Mapping[str, Any]]) -> Conditions:
    """Return the conditions under which a row was measured."""
    models = {gpu.get("model") for gpu in hosts.get(row["host"], {}).get("gpus") or ()}
    shape, load = shape_of(row), load_of(row)
    if row["kind"] == "throughput":
        load = LoadPoint("all", row.get("num_prompts"))
    return Conditions(
        model=family(str(row.get("model") or "")),
        gpu=models.pop() if len(models) == 1 else None,
        gpus=len(row.get("gpus") or ()) or None,
        weights=_weights(row),
        input=shape.input,
        output=shape.output,
        load=load,
        vllm=str((row.get("versions") or {}).get("vllm") or "").partition("+")[0] or None,
        image=row.get("image"),
    )


def _published_load(item: Mapping[str, Any]) -> LoadPoint:
    if item["kind"] == "latency":
        return LoadPoint("batch", item.get("batch_size"))
    if item["kind"] == "throughput":
        return LoadPoint("all", item.get("prompts"))
    return LoadPoint("concurrency", item.get("concurrency"))


def _weights(row: Row) -> str | None:
    named = options(row.get("serve_command"))
    text = f"{row.get('model') or ''} {named.get('--quantization', '')} {named.get('--dtype', '')}".lower()
    text = text.replace("bfloat16", "bf16")
    return next((name for name in _WEIGHTS if name in text), None)


def _median_row(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return a row of the runs that succeeded, with the medians of their numbers."""
    done = [row for row in rows if has_success(row)]
    if not done:
        return None
    numbers = {
        name: statistics.median(values)
        for name, first in done[0].items()
        if isinstance(first, (int, float))
        and not isinstance(first, bool)
        and len(values := [row[name] for row in done if isinstance(row.get(name), (int, float))]) == len(done)
    }
    return {**done[0], **numbers}


_RATES: Mapping[str, str] = {
    "requests_per_second": "request_throughput",
    "output_tokens_per_second": "output_throughput",
    "total_tokens_per_second": "total_token_throughput",
}


def _measured(metric: str, counted: str | None, row: Row) -> float | None:
    """Return what was measured of a published metric, in its unit; None if nothing was."""
    if metric in _RATES:
        return row.get(_RATES[metric])
    if metric in ("tokens_per_second", "tokens_per_second_per_gpu"):
        # Where the source does not say what it counts, it is most likely all tokens; `differs` says so.
        value = row.get("output_throughput" if counted == "output" else "total_token_throughput")
        return value / (len(row["gpus"]) or 1) if value and metric.endswith("gpu") else value
    if metric == "latency_seconds":
        latency = row.get("mean_batch_latency_ms")
        return latency / 1000 if latency else None
    if metric == "output_tokens_per_second_per_user":
        tpot = row.get("median_tpot_ms")
        return 1000 / tpot if tpot else None
    return row.get(metric) if metric.endswith("_ms") else None


def _beside(
    cell: str, deployment: str, row: Row, own: Conditions, item: PublishedResult
) -> Counterpart | None:
    """Pair a published row with a measured one; None if model, kind or metrics have nothing in common."""
    theirs = item.conditions
    if row["kind"] != item.kind or own.model != theirs.model:
        return None
    ratios = tuple(
        Ratio(metric, value, published, not metric.endswith(("_ms", "_seconds")))
        for metric, published in item.metrics.items()
        if (value := _measured(metric, item.counted, row))
    )
    if not ratios:
        return None
    differs, distance = [], 0.0
    for name, weight, apart in _DISTANCES:
        mine, other = getattr(own, name), getattr(theirs, name)
        if mine != other:
            differs.append(f"{name} {_text(mine)}, not {_text(other)}")
            distance += weight * apart(mine, other)
    failed = failed_share([row])
    if failed > MOST_FAILED:
        differs.append(f"{failed:.0%} of the requests failed")
    if item.counted == "unknown":
        differs.append("what the published tokens/s count is not known")
    work = all(
        getattr(theirs, name) in (None, getattr(own, name)) for name in ("input", "output")
    ) and _same_load(own.load, theirs.load)
    return Counterpart(cell, deployment, item, ratios, tuple(differs), work, distance)


def _same_load(own: LoadPoint, theirs: LoadPoint) -> bool:
    # A throughput benchmark gives all prompts at once: their number matters little.
    return theirs.value is None or theirs.kind == "all" or own == theirs


def _other(mine: object, other: object) -> float:
    return 0.5 if mine is None or other is None else 1.0


def _octaves(mine: float | None, other: float | None) -> float:
    return 0.5 if not mine or not other else abs(math.log2(mine / other))


def _loads(mine: LoadPoint, other: LoadPoint) -> float:
    return 3.0 if mine.kind != other.kind else _octaves(mine.value, other.value)


# How much each difference counts; judgements: hardware first, then the work, then the software.
_DISTANCES: Sequence[tuple[str, float, Callable[[Any, Any], float]]] = (
    ("gpu", 8.0, _other),
    ("gpus", 6.0, _octaves),
    ("weights", 4.0, _other),
    ("input", 2.0, _octaves),
    ("output", 2.0, _octaves),
    ("load", 2.0, _loads),
    ("vllm", 0.5, _other),
    ("image", 0.1, _other),
)


def _text(value: Any) -> str:
    return value.text if isinstance(value, LoadPoint) else "unknown" if value is None else str(value)


def counterpart_json(pair: Counterpart) -> dict[str, Any]:
    """Return an entry of `published` in compare.json."""
    return {
        "deployment": pair.deployment,
        "cell": pair.cell,
        "source": pair.published.source,
        "date": pair.published.date,
        "same_work": pair.same,
        "differs": list(pair.differs),
        "ratios": {
            ratio.metric: {
                "measured": ratio.measured,
                "published": ratio.published,
                "ratio": ratio.value,
                "more_is_better": ratio.more_is_better,
            }
            for ratio in pair.ratios
        },
    }
