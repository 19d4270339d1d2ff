# SPDX-License-Identifier: Apache-2.0
"""Build the command line that benchmarks an instance, for the vLLM release of its client. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ....module_utils.common.errors import FleetError, Problem
from ....module_utils.content.urls import with_brackets
from ....module_utils.engines.mounts import BENCH_MOUNT, BENCH_RESULT, snapshot_dir
from ....module_utils.service.endpoint import listen_address, local_address
from ...knowledge.bench_clients.bench_args import BenchCommand, bench_args, reserved_findings
from ...knowledge.bench_clients.bench_clients import unknown_arguments
from ...knowledge.catalog.load import Knowledge
from ...knowledge.vllm.flag_values import Value

VARIABLES: Mapping[str, str] = {
    "benchmark_serve_args": "serve",
    "benchmark_latency_args": "latency",
    "benchmark_throughput_args": "throughput",
    "canary_args": "serve",
}
"""Variables with arguments of a benchmark, and its kind."""
NEEDED = ("name", "model", "served_model", "vllm", "port", "argv")


def unknown_benchmark_arguments(
    knowledge: Knowledge, variables: Mapping[str, Mapping[str, Any]]
) -> Iterator[Problem]:
    """Yield the benchmark arguments in hosts' variables that no release's client has: the plan fails, not the run.

    Variables that are templates are not evaluated here; the run checks them.
    """
    for name, kind in VARIABLES.items():
        named = {
            host: list(map(str, given[name]))
            for host, given in variables.items()
            if isinstance(given.get(name), Mapping)
        }
        if not named:  # as in most inventories, and reading the tables takes its time
            continue
        table = knowledge.flags(knowledge.line.releases[-1])
        every = dict.fromkeys(chain.from_iterable(named.values()))
        found = unknown_arguments(table, knowledge.bench, knowledge.bench_book, kind, every)
        for host, names in named.items():
            for item in found:
                if item.subject in names:
                    yield Problem((name, item.subject), f"{item.what}.", item.fix, (host,))


@dataclass(frozen=True)
class Benchmark:
    """The command line, which contains no secret, and the warnings."""

    argv: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def bench_command(
    knowledge: Knowledge, kind: str, instance: Mapping[str, Any], arguments: Mapping[str, Value]
) -> Benchmark:
    """Return the benchmark of an instance. Raise FleetError for invalid arguments.

    `instance` is as in the plan; `arguments` are the client's, as the operator writes them: true gives a flag without
    value; false and null omit it.
    """
    made = compose_command(knowledge, kind, instance, arguments)
    wrong = [*reserved_findings(knowledge.bench_book, kind, _given(arguments))]
    wrong += [item for item in made.findings if item.is_error]
    if wrong:
        raise FleetError(Problem(("args", item.subject), f"{item.what}.", item.fix) for item in wrong)
    return Benchmark(made.argv, tuple(item.text() for item in made.findings))


def compose_command(
    knowledge: Knowledge, kind: str, instance: Mapping[str, Any], arguments: Mapping[str, Value]
) -> BenchCommand:
    """Return the benchmark, with findings for what the release cannot express; with an error it must not be run.

    Raise FleetError for an instance without a required key, an unknown kind, and a vLLM older than the catalogue.
    """
    where = f"targets[{instance.get('name') or '?'}]"
    missing = [key for key in NEEDED if not instance.get(key)]
    if missing:
        what = f"{', '.join(missing)} is missing."
        raise FleetError([Problem((where,), what, "Pass the instances as listed in the plan.")])
    client, book, asked = instance.get("client") or {}, knowledge.bench_book, _given(arguments)
    omitted = arguments.keys() - asked.keys()
    always = {name: value for name, value in book["always"].get(kind, {}).items() if name not in omitted}
    results = _results(kind)
    last = {**results, **asked} if kind == "serve" else {**asked, **results}
    try:
        return bench_args(
            knowledge.flags(client.get("vllm") or instance["vllm"]),
            knowledge.bench,
            book,
            kind,
            _measured(kind, instance),
            {**always, **last},
            instance["argv"],
        )
    except ValueError as error:
        raise FleetError([Problem((where,), f"{error}.")]) from None


def _given(arguments: Mapping[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in arguments.items() if value is not None and value is not False}


def _measured(kind: str, instance: Mapping[str, Any]) -> dict[str, Value]:
    model, commit = str(instance["model"]), instance.get("commit")
    if kind != "serve":
        return {"model": instance["argv"][2]}
    host = local_address(listen_address(instance["argv"]))
    local = f"http://{with_brackets(host)}:{instance['port']}"
    return {
        "model": model,
        "served_model_name": instance["served_model"],
        "tokenizer": snapshot_dir(model, commit) if commit and not model.startswith("/") else model,
        "base_url": (instance.get("endpoint") or {}).get("url") or local,
    }


def _results(kind: str) -> dict[str, Value]:
    if kind != "serve":
        return {"output_json": f"{BENCH_MOUNT}/{BENCH_RESULT}"}
    return {"save_result": True, "result_directory": BENCH_MOUNT, "result_file": BENCH_RESULT}
