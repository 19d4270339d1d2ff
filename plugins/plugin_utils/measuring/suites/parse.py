# SPDX-License-Identifier: Apache-2.0
"""Parse a suite strictly: every unknown key and name is an error, with the nearest one that is valid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....module_utils.benchmarks.bench_results import KINDS
from ....module_utils.common.errors import FleetError, Path, Problem, suggest
from ...base.checker import Checker
from ...knowledge.bench_clients.bench_args import reserved_findings
from ...knowledge.bench_clients.bench_clients import unknown_arguments
from ...knowledge.catalog.load import Knowledge
from ..measurement.requests import LoadPoint
from ..measurement.slo_search import SearchRules
from .suite import (
    LOAD_ARGUMENTS,
    LOADS,
    PRECISE,
    SERVE,
    Group,
    PromptRule,
    Repeats,
    Shape,
    Slo,
    Suite,
    Variant,
)

SUITE_KEYS = (
    "schema", "suite", "title", "repeats", "percentiles", "slos", "variants",
    "groups",
)  # fmt: skip
GROUP_KEYS = (
    "title", "kind", "dataset", "shapes", "load", "num_prompts", "args", "models", "except_models", "source",
)  # fmt: skip
RULES = ("count", "per_concurrency", "per_max_num_seqs", "seconds")
LIMITS = ("ttft_ms", "tpot_ms", "e2el_ms")
SEARCHED = ("rate", "concurrency")
SEARCH_KEYS = (*SEARCHED, "share", "probes", "tolerance", "least", "most")
COUNT = 10_000_000
"""Upper limit for tokens, requests and seconds of a cell."""
CELL_ARGUMENTS = frozenset(
    {*LOAD_ARGUMENTS.values(), "num_prompts", "dataset_name", "percentiles", "metric_percentiles", "seed"}
    | {"input_len", "output_len", "random_input_len", "random_output_len", "goodput", "save_detailed"}
)
"""Arguments of the client that a cell's own keys determine."""


def read_suite(knowledge: Knowledge, name: str) -> Suite:
    """Return a suite of the catalogue, or the one in a file. Raise FleetError for an unknown name or a wrong file."""
    return parse_suite(knowledge, name, knowledge.suite(name))


def parse_suite(knowledge: Knowledge, name: str, document: Any) -> Suite:
    """Return the suite of a YAML document. Raise FleetError with every mistake in it."""
    parser = _Parser(knowledge, (f"suite {name}",))
    suite = parser.suite(document)
    if parser.check.problems:
        raise FleetError(parser.check.problems)
    return suite


class _Parser:
    """Collects the mistakes of one suite."""

    def __init__(self, knowledge: Knowledge, where: Path) -> None:
        self.knowledge, self.where, self.check = knowledge, where, Checker()

    def suite(self, document: Any) -> Suite:
        check, where = self.check, self.where
        keys = check.mapping(document, where, SUITE_KEYS)
        groups = check.listing(keys.get("groups", ()), (*where, "groups"))
        if not groups:
            check.wrong((*where, "groups"), "a suite needs at least one group of cells.")
        found = Suite(
            name=check.text(
                keys.get("suite"), (*where, "suite"), "", r"[a-z0-9][a-z0-9.-]*", "a-z, 0-9, . and -"
            ),
            title=check.text(keys.get("title"), (*where, "title")),
            repeats=self.repeats(keys.get("repeats", {})),
            groups=tuple(self.group(item, (*where, "groups", index)) for index, item in enumerate(groups)),
            percentiles=self.percentiles(keys.get("percentiles", ()), (*where, "percentiles")),
            slos=self.each("slos", keys, self.slo),
            variants=self.each("variants", keys, self.variant),
        )
        if len({group.kind == SERVE for group in found.groups}) > 1:
            what = "measures both running instances (serve) and stopped ones (latency, throughput)."
            check.wrong((*where, "groups"), what, "Write two suites.")
        if found.searches and not all(group.search for group in found.groups):
            what = "both searches for loads and measures given ones."
            check.wrong((*where, "groups"), what, "Write two suites.")
        if found.searches and not found.slos:
            what = "is missing: it says which limits the load must keep."
            check.wrong((*where, "slos"), what, "Write [{name: chat, ttft_ms: 500, tpot_ms: 40}].")
        return found

    def each(self, key: str, keys: Mapping[str, Any], parse: Any) -> tuple[Any, ...]:
        path = (*self.where, key)
        items = self.check.listing(keys.get(key, ()), path)
        found = tuple(parse(item, (*path, index)) for index, item in enumerate(items))
        names = [item.name for item in found]
        for name in sorted({name for name in names if names.count(name) > 1}):
            self.check.wrong(path, f"{name} is there twice.", "Give each a name of its own.")
        return found

    def repeats(self, value: Any) -> Repeats:
        where = (*self.where, "repeats")
        keys = self.check.mapping(value, where, ("warmups", "blocks", "most", "half_width"))
        blocks = self.check.integer(keys.get("blocks", 3), (*where, "blocks"), 3, 1, 100)
        return Repeats(
            warmups=self.check.integer(keys.get("warmups", 1), (*where, "warmups"), 1, 0, 100),
            blocks=blocks,
            most=self.check.integer(keys.get("most", max(10, blocks)), (*where, "most"), blocks, blocks, 100),
            half_width=self.number(keys.get("half_width", PRECISE), (*where, "half_width")) or PRECISE,
        )

    def group(self, value: Any, path: Path) -> Group:
        check = self.check
        keys = check.mapping(value, path, GROUP_KEYS)
        kind = check.choice(keys.get("kind"), (*path, "kind"), SERVE, KINDS)
        shapes = check.listing(keys.get("shapes", ()), (*path, "shapes"))
        dataset = self.dataset(kind, keys, path)
        has_lengths = kind == "latency" or "input" in self.knowledge.bench_book["datasets"].get(dataset, {})
        if has_lengths and not shapes:
            check.wrong((*path, "shapes"), "is missing.", "Write [{input: 1024, output: 128}].")
        load, search = keys.get("load"), None
        if kind == SERVE and isinstance(load, Mapping) and set(load) == {"search"}:
            search = self.search(load["search"], (*path, "load", "search"))
        return Group(
            title=check.text(keys.get("title"), (*path, "title")),
            kind=kind,
            dataset=dataset,
            shapes=tuple(self.shape(item, (*path, "shapes", index)) for index, item in enumerate(shapes)),
            loads=() if search else self.loads(kind, load, (*path, "load")),
            prompts=self.prompts(kind, keys, search, path),
            args=self.args(kind, keys.get("args", {}), (*path, "args")),
            models=check.texts(keys.get("models", ()), (*path, "models")),
            except_models=check.texts(keys.get("except_models", ()), (*path, "except_models")),
            search=search,
        )

    def dataset(self, kind: str, keys: Mapping[str, Any], path: Path) -> str:
        if kind == "latency":
            if "dataset" in keys:
                self.check.wrong(
                    (*path, "dataset"), "the latency benchmark has no data set.", "Leave it out."
                )
            return ""
        known, name = self.knowledge.bench_book["datasets"], keys.get("dataset", "random")
        if name not in known:
            self.check.wrong((*path, "dataset"), f"{name!r} is not a data set.", suggest(name, known))
        return str(name)

    def shape(self, value: Any, path: Path) -> Shape:
        keys = self.check.mapping(value, path, ("input", "output"))
        return Shape(
            *(self.check.integer(keys.get(key), (*path, key), 1, 1, COUNT) for key in ("input", "output"))
        )

    def loads(self, kind: str, value: Any, path: Path) -> tuple[LoadPoint, ...]:
        known = (*LOADS[kind], "search") if kind == SERVE else LOADS[kind]
        keys = self.check.mapping(value, path, known)
        if len(keys) != 1:
            what = f"needs exactly one of {', '.join(known)}."
            self.check.wrong(
                path, what, "Runs at a rate and at a concurrency cannot be compared: write two groups."
            )
            return ()
        name, values = next(iter(keys.items()))
        if name == "all":
            if values is not True:
                self.check.wrong((*path, "all"), "must be true.")
            return (LoadPoint("all"),)
        items = self.check.listing(values, (*path, name))
        numbers = [self.number(item, (*path, name, index)) for index, item in enumerate(items)]
        if not items:
            self.check.wrong((*path, name), "must not be empty.")
        if name != "rate" and any(number is not None and number != int(number) for number in numbers):
            self.check.wrong((*path, name), "must be whole numbers.")
        return tuple(LoadPoint(name, number) for number in numbers if number is not None)

    def search(self, value: Any, path: Path) -> SearchRules:
        """Return how to search for a load: from the first one on, between least and most."""
        check, keys = self.check, self.check.mapping(value, path, SEARCH_KEYS)
        kinds = [name for name in SEARCHED if name in keys]
        if len(kinds) != 1:
            check.wrong(path, f"needs exactly one of {', '.join(SEARCHED)}, the load to begin with.")
            return SearchRules("rate", 1.0)
        loads = {
            name: self.number(keys[name], (*path, name)) for name in (*kinds, "least", "most") if name in keys
        }
        if kinds == ["concurrency"] and any(item != int(item) for item in loads.values() if item):
            check.wrong(path, "must have whole numbers of requests at once.")
        shares = {
            name: self.number(keys[name], (*path, name)) for name in ("share", "tolerance") if name in keys
        }
        for name, item in shares.items():
            if item is not None and item >= 1:
                check.wrong((*path, name), f"{item:g} is not a share.", "0.99 is 99 %.")
        start = loads.pop(kinds[0]) or 1.0
        given = {
            name: item
            for name, item in (*loads.items(), *shares.items())
            if item and (item < 1 or name in loads)
        }
        probes = check.integer(keys.get("probes", 10), (*path, "probes"), 10, 2, 100)
        found = SearchRules(kinds[0], start, probes=probes, **given)
        if not found.least <= start <= found.most:
            check.wrong((*path, kinds[0]), f"{start:g} is not from {found.least:g} to {found.most:g}.")
        return found

    def prompts(
        self, kind: str, keys: Mapping[str, Any], search: SearchRules | None, path: Path
    ) -> PromptRule | None:
        where = (*path, "num_prompts")
        if kind == "latency":
            if "num_prompts" in keys:
                self.check.wrong(where, "the latency benchmark sends one batch.", "Leave it out.")
            return None
        rule = self.check.mapping(keys.get("num_prompts"), where, (*RULES, "least"))
        if len(set(rule) & set(RULES)) != 1:
            self.check.wrong(where, f"needs exactly one of {', '.join(RULES)}.")
        for name, load in (("per_concurrency", "concurrency"), ("seconds", "rate")):
            loads = {search.kind} if search else set(keys.get("load") or ())
            if name in rule and loads != {load}:
                self.check.wrong((*where, name), f"belongs to a load of {load}.")
        return PromptRule(
            **{name: self.check.integer(item, (*where, name), 1, 1, COUNT) for name, item in rule.items()}
        )

    def args(self, kind: str, value: Any, path: Path) -> dict[str, Any]:
        given = self.check.mapping(value, path)
        book, bench = self.knowledge.bench_book, self.knowledge.bench
        table = self.knowledge.flags(self.knowledge.line.releases[-1])
        wrong = [*unknown_arguments(table, bench, book, kind, given), *reserved_findings(book, kind, given)]
        self.check.problems += [Problem((*path, item.subject), f"{item.what}.", item.fix) for item in wrong]
        for name in sorted(CELL_ARGUMENTS & {name.lstrip("-").replace("-", "_") for name in given}):
            self.check.wrong((*path, name), "is determined by the suite's own keys.", "Leave it out.")
        return given

    def slo(self, value: Any, path: Path) -> Slo:
        keys = self.check.mapping(value, path, ("name", "models", *LIMITS, "source"))
        limits = {name: self.number(keys[name], (*path, name)) for name in LIMITS if name in keys}
        if not limits:
            self.check.wrong(path, f"needs at least one of {', '.join(LIMITS)}.")
        name, models = keys.get("name"), keys.get("models", ())
        return Slo(
            self.check.text(name, (*path, "name")), self.check.texts(models, (*path, "models")), **limits
        )

    def variant(self, value: Any, path: Path) -> Variant:
        keys = self.check.mapping(value, path, ("name", "settings", "engine_args", "env", "source"))
        settings = self.check.mapping(
            keys.get("settings", {}), (*path, "settings"), tuple(self.knowledge.settings)
        )
        engine = self.check.mapping(keys.get("engine_args", {}), (*path, "engine_args"))
        ever = {
            name.lstrip("-").replace("-", "_"): flag
            for name, flag in self.knowledge.flags(self.knowledge.line.releases[-1]).ever.items()
        }
        for name in engine:
            if name.replace("-", "_") not in ever:
                what = "is not a flag of vLLM in any release of the catalogue."
                self.check.wrong((*path, "engine_args", name), what, suggest(name, ever))
        env = self.check.mapping(keys.get("env", {}), (*path, "env"))
        name = self.check.text(
            keys.get("name"), (*path, "name"), "", r"[A-Za-z0-9._-]+", "letters, digits, . _ -"
        )
        return Variant(name, settings, engine, {key: str(item) for key, item in env.items()})

    def percentiles(self, value: Any, path: Path) -> tuple[float, ...]:
        items = self.check.listing(value, path)
        numbers = (self.number(item, (*path, index)) for index, item in enumerate(items))
        found = tuple(number for number in numbers if number is not None)
        if any(number >= 100 for number in found):
            self.check.wrong(path, "must be below 100.")
        return found

    def number(self, value: Any, path: Path) -> float | None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            self.check.wrong(path, f"{value!r} is not a number above 0.")
            return None
        return value
