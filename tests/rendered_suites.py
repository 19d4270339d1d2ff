# SPDX-License-Identifier: Apache-2.0
"""Every cell of every suite, rendered for one vLLM release on engines that run each of its variants."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.bench_clients.bench_args import (
    bench_table,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.findings import errors
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.settings import flag_argv
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.compose import suite_cells
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.engine import wanted_engine
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.parse import read_suite
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.suite import Suite

from tests.oracles.vllm_parser import check_argv
from tests.worlds.catalogue import knowledge

MODELS = ("amd/Llama-3.1-70B-Instruct-FP8-KV", "org/other")
ENGINE = ("--port", "8000", "--tensor-parallel-size", "8", "--trust-remote-code")
DATA = {"dataset_path": "/data/conversations.json"}
SOME = {
    "--speculative-config": '{"method":"ngram","num_speculative_tokens":2}',
    "--speculative-model": "org/draft",
}
"""Values for variants that take any."""
Line = tuple[str, tuple[str, ...]]
"""A client as bench.json calls it, and what stands behind it."""


@cache
def suite(name: str) -> Suite:
    """A suite of the catalogue."""
    return read_suite(knowledge(), name)


def instance(release: str, *flags: str, model: str = "org/m", **keys: Any) -> dict[str, Any]:
    """An instance as the plan has it."""
    return {
        "name": "m-0", "model": model, "served_model": "m", "vllm": release, "port": 8000, "env": {},
        "argv": ["vllm", "serve", model, *flags], **keys,
    }  # fmt: skip


def engines(name: str, release: str) -> Iterator[dict[str, Any]]:
    """Instances that run as the suite's variants want it; one per model without variants."""
    table = knowledge().flags(release)
    by_model = any(group.models or group.except_models for group in suite(name).groups)
    for model in MODELS if by_model else MODELS[:1]:
        yield instance(release, *ENGINE, model=model)
    for variant in suite(name).variants:
        wanted = wanted_engine(knowledge(), variant, table)
        words = [
            word
            for flag, value in wanted.args.items()
            if value
            for word in ([flag, SOME[flag]] if flag in SOME else flag_argv(table, flag, value))
        ]
        if words and not wanted.why_not:
            yield instance(release, *ENGINE, *words)


def suites_for(release: str) -> dict[str, list[list[str]]]:
    """What all suites render for a release, by client."""
    found: dict[str, list[list[str]]] = {}
    for name in knowledge().suite_names:
        for command, words in sorted(lines_of(name, release)[0]):
            found.setdefault(command, []).append(list(words))
    return found


def lines_of(name: str, release: str) -> tuple[set[Line], set[str]]:
    """What a suite renders for a release, and why cells and variants of it are left out."""
    lines: set[Line] = set()
    reasons: set[str] = set()
    for engine in engines(name, release):
        files = any(group.dataset == "sharegpt" for group in suite(name).groups)
        try:
            found = suite_cells(knowledge(), suite(name), engine, DATA if files else None)
        except FleetError as error:
            reasons.add(str(error))
            continue
        reasons.update(item.reason for item in found.omitted)
        lines.update(client(cell.argv) for cell in found.cells)
        for search in found.searches:
            lines.update(client(search.at(search.rules.start * step).argv) for step in (0.5, 1, 8))
    return lines, reasons


def client(argv: tuple[str, ...]) -> Line:
    """The line, with its client's name in front."""
    if argv[0] == "vllm":
        return " ".join(argv[:3]), argv[3:]
    return f"benchmarks/{argv[1].rpartition('/')[2]}", argv[2:]


def refusals(line: Line, release: str) -> tuple[str, ...]:
    """What the client's recorded parser has against a line."""
    table = bench_table(knowledge().flags(release), knowledge().bench, line[0])
    assert table is not None, line[0]
    return tuple(finding.text() for finding in errors(check_argv(table, line[1])))
