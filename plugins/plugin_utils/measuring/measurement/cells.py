# SPDX-License-Identifier: Apache-2.0
"""Match the cells of two sides of a comparison: only what did the same work under the same conditions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from .commands import options
from .requests import LoadPoint
from .rows import Row, TokenLengths, cell_name, load_of, shape_of

PRECISION = ("--dtype", "--quantization", "--kv-cache-dtype")
"""Options that change what is computed: engines that differ in one of them do not do the same work."""


@dataclass(frozen=True)
class Side:
    """The rows of one side, of one run or several, and the facts of their hosts as summary.json has them."""

    name: str
    rows: tuple[Row, ...]
    hosts: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class CellKey:
    """What must be equal for two measurements to be comparable."""

    deployment: str
    kind: str
    cell: str
    shape: TokenLengths
    load: LoadPoint
    dataset: str
    model: str
    commit: str
    precision: str
    gpus: int
    partition: str


@dataclass(frozen=True)
class UnmatchedCell:
    """A cell that only one side has; `differs`: what is different in the nearest cell of the other side."""

    key: CellKey
    side: str
    differs: str


def key_of(row: Row, hosts: Mapping[str, Mapping[str, Any]]) -> CellKey:
    """Return the key of a row."""
    host = hosts.get(row["host"], {})
    named, client = options(row.get("serve_command")), options(row.get("command"))
    modes = (host.get("compute_partition"), host.get("memory_partition"))
    return CellKey(
        deployment=str(row["deployment"]),
        kind=str(row["kind"]),
        cell=cell_name(row),
        shape=shape_of(row),
        load=load_of(row),
        # Its path has a part of the file's hash.
        dataset=client.get("--dataset-path") or client.get("--dataset") or "",
        model=str(row.get("model") or ""),
        commit=str(row.get("commit") or ""),
        precision=" ".join(
            f"{name} {named[name]}" for name in PRECISION if named.get(name, "auto") != "auto"
        ),
        gpus=len(row.get("gpus") or ()),
        partition="/".join(str(mode) for mode in modes if mode),
    )


def by_cell(side: Side) -> dict[CellKey, list[Row]]:
    """Return a side's rows by their cells, in the order of first appearance."""
    found: dict[CellKey, list[Row]] = {}
    for row in side.rows:
        found.setdefault(key_of(row, side.hosts), []).append(row)
    return found


def unmatched_cells(side: str, own: Iterable[CellKey], other: Iterable[CellKey]) -> list[UnmatchedCell]:
    """Return the cells that the other side does not have."""
    theirs = list(other)
    return [UnmatchedCell(key, side, _nearest(key, theirs)) for key in own if key not in theirs]


def _nearest(key: CellKey, others: Iterable[CellKey]) -> str:
    """Return what differs in the most similar of the other cells; "" if none is of the same deployment."""
    same = [item for item in others if (item.deployment, item.kind) == (key.deployment, key.kind)]
    if not same:
        return ""
    differing = min((_differing(key, item) for item in same), key=len)
    return ", ".join(f"{name}: {_text(mine)} and {_text(theirs)}" for name, mine, theirs in differing)


def _differing(one: CellKey, other: CellKey) -> list[tuple[str, Any, Any]]:
    found = [
        (field.name, getattr(one, field.name), getattr(other, field.name))
        for field in fields(CellKey)
        if getattr(one, field.name) != getattr(other, field.name)
    ]
    # The name of a cell follows from its shape and load.
    return [item for item in found if item[0] != "cell"] or found


def _text(value: Any) -> str:
    if isinstance(value, LoadPoint):
        return value.text
    if isinstance(value, TokenLengths):
        return f"{value.input or '?'} in, {value.output or '?'} out"
    return str(value) or "none"
