# SPDX-License-Identifier: Apache-2.0
"""A benchmark suite: what is measured, under which loads, how often. Its files are catalog/suites/*.yml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...base.json_record import JsonRecord
from ...knowledge.rules.repositories import matches_pattern
from ...knowledge.vllm.flag_values import Value
from ..measurement.requests import LoadPoint
from ..measurement.slo_search import SearchRules
from ..statistics.percentiles import requests_needed

SERVE = "serve"
PRECISE = 0.02
"""Half the width of the interval of a median, as a share of it, at which repeats end; a suite may set its own."""
LOADS: Mapping[str, tuple[str, ...]] = {
    "serve": ("concurrency", "rate", "all"),
    "latency": ("batch",),
    "throughput": ("all",),
}
"""Possible loads of each kind of benchmark; `all`: every request at once."""
LOAD_ARGUMENTS: Mapping[str, str] = {
    "concurrency": "max_concurrency",
    "rate": "request_rate",
    "batch": "batch_size",
}
"""The client's argument for each load. Without an argument, the client sends all requests at once."""


@dataclass(frozen=True)
class Shape(JsonRecord):
    """Tokens of each prompt, and of each answer."""

    input: int
    output: int


@dataclass(frozen=True)
class PromptRule:
    """How many requests a run sends: the first rule that is set, and at least `least`."""

    count: int = 0
    per_concurrency: int = 0
    per_max_num_seqs: int = 0
    seconds: int = 0
    least: int = 1

    def number(self, load: LoadPoint, max_num_seqs: int) -> int:
        """Return the number of requests under a load, for an engine that decodes max_num_seqs sequences at once."""
        wanted = (
            self.count
            or self.per_concurrency * int(load.value or 0)
            or self.per_max_num_seqs * max_num_seqs
            or round(self.seconds * float(load.value or 0))
        )
        return max(wanted, self.least)


@dataclass(frozen=True)
class Group:
    """Cells of one kind: every shape under every load. No shapes: the data set has its own lengths.

    search: in place of loads, for each shape and SLO the highest load that keeps it.
    models, except_models: patterns of the models that it measures and leaves out.
    """

    title: str
    kind: str
    dataset: str
    shapes: tuple[Shape, ...]
    loads: tuple[LoadPoint, ...]
    prompts: PromptRule | None
    args: Mapping[str, Value] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    except_models: tuple[str, ...] = ()
    search: SearchRules | None = None

    def number_of_prompts(self, load: LoadPoint, max_num_seqs: int) -> int | None:
        """Return the requests of a run under a load: in a search, enough for its percentile."""
        if self.prompts is None:
            return None
        wanted = self.prompts.number(load, max_num_seqs)
        return max(wanted, requests_needed(round(self.search.share * 100, 6))) if self.search else wanted

    def measures(self, model: str) -> bool:
        """Return whether it is meant for a model (a repository, or a path)."""
        return (not self.models or matches_pattern(model, self.models)) and not matches_pattern(
            model, self.except_models
        )


@dataclass(frozen=True)
class Slo(JsonRecord, hide=("models",)):
    """Limits that a request has to keep, in milliseconds; None where there is no limit. No models: for all."""

    name: str
    models: tuple[str, ...] = ()
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None


@dataclass(frozen=True)
class Variant:
    """A configuration of the engine: neutral settings, flags of `vllm serve`, variables.

    Null or false for a flag: it is not set. True for a flag with a value: it is set, to anything.
    """

    name: str
    settings: Mapping[str, Value] = field(default_factory=dict)
    engine_args: Mapping[str, Value] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Repeats:
    """Discarded runs, then blocks: at least `blocks`, at most `most`.

    half_width: of the 95 % interval of a cell's median, as a share of the median. Wider ones get more blocks.
    """

    warmups: int
    blocks: int
    most: int
    half_width: float


@dataclass(frozen=True)
class Suite:
    """A suite. Its groups measure either running instances or stopped ones."""

    name: str
    title: str
    repeats: Repeats
    groups: tuple[Group, ...]
    percentiles: tuple[float, ...] = ()
    slos: tuple[Slo, ...] = ()
    variants: tuple[Variant, ...] = ()

    @property
    def searches(self) -> bool:
        """Return whether it searches for loads instead of measuring given ones."""
        return any(group.search for group in self.groups)

    @property
    def offline(self) -> bool:
        """Return whether the client loads the model itself, so that the instances must be stopped."""
        return all(group.kind != SERVE for group in self.groups)

    def slos_of(self, model: str) -> tuple[Slo, ...]:
        """Return the limits that hold for a model."""
        return tuple(slo for slo in self.slos if not slo.models or matches_pattern(model, slo.models))
