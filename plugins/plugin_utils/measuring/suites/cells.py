# SPDX-License-Identifier: Apache-2.0
"""The cells of a suite for one instance, as the module takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...base.json_record import JsonRecord
from ..measurement.requests import LoadPoint
from ..measurement.slo_search import SearchRules
from .expand import OmittedCell
from .suite import Shape, Slo


@dataclass(frozen=True)
class SuiteCell:
    """One measurement of an instance. num_prompts: None for the latency benchmark; metric: what repeats are judged by.

    percentiles: those that this many requests can show. argv has no seed: each run has its own.
    """

    name: str
    kind: str
    argv: tuple[str, ...]
    shape: Shape | None
    load: LoadPoint
    num_prompts: int | None
    slos: tuple[Slo, ...]
    percentiles: tuple[float, ...]
    metric: str
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the cell as the module takes it."""
        return {
            "cell": self.name,
            "kind": self.kind,
            "argv": list(self.argv),
            "shape": self.shape.to_json() if self.shape else None,
            "load": self.load.to_json(),
            "num_prompts": self.num_prompts,
            "slos": [slo.to_json() for slo in self.slos],
            "percentiles": list(self.percentiles),
            "metric": self.metric,
        }


@dataclass(frozen=True)
class CellSearch:
    """A shape whose load is searched for, once for each SLO. first: its cell at the first load; at: renders others."""

    name: str
    rules: SearchRules
    first: SuiteCell
    at: Callable[[float], SuiteCell]


@dataclass(frozen=True)
class SuiteCells(JsonRecord, hide=("suite", "offline", "omitted", "warnings", "searches")):
    """An instance's cells, and how often and in which order they run; or what is searched, and then there are none.

    order: the names of the cells for each of `most` blocks, shuffled by the seed. omitted: what is not measured here.
    """

    suite: str
    offline: bool
    cells: tuple[SuiteCell, ...]
    omitted: tuple[OmittedCell, ...]
    blocks: int
    most: int
    half_width: float
    warmups: int
    seed: int
    order: tuple[tuple[str, ...], ...]
    warnings: tuple[str, ...] = ()
    searches: tuple[CellSearch, ...] = ()
