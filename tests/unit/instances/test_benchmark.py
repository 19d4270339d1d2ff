# SPDX-License-Identifier: Apache-2.0
"""The command lines of the roles' benchmarks in every release, to the word.

The record also has what was run before the planner composed them, where that was something else: a line that the
release's own client refuses. Write it anew where a line is meant to change:

    python -m tests.unit.instances.test_benchmark > tests/data/bench_commands.json
"""

from __future__ import annotations

import functools
import itertools
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.bench_clients.bench_args import (
    bench_table,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.findings import errors
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.benchmark import (
    VARIABLES,
    bench_command,
    unknown_benchmark_arguments,
)

from tests import ROOT
from tests.commands import instances
from tests.oracles.vllm_parser import check_argv
from tests.worlds.plan_world import deployment, knowledge, plan, state

RECORD = ROOT / "tests/data/bench_commands.json"
RELEASES = knowledge().line.releases


def defaults(role: str) -> dict[str, Any]:
    """A role's variables."""
    found: dict[str, Any] = yaml.safe_load((ROOT / f"roles/{role}/defaults/main.yml").read_text())
    return found


ROLE = defaults("benchmark")
CASES = {
    "serve": ("serve", ROLE["benchmark_serve_args"]),
    "canary": ("serve", defaults("canary")["canary_args"]),
    "latency": ("latency", ROLE["benchmark_latency_args"]),
    "throughput": ("throughput", ROLE["benchmark_throughput_args"]),
}


@functools.cache
def instance(release: str) -> dict[str, Any]:
    """An instance as the plan has it."""
    flags = {"trust_remote_code": True, "tokenizer_mode": "auto"}
    wanted = deployment(vllm_version=release, tensor_parallel_size=2, engine_args=flags)
    (found,) = instances(plan({"n1": state()}, [wanted]))
    assert found["vllm"] == release
    return found


def line(case: str, release: str) -> str:
    """The command line, or why there is none."""
    kind, arguments = CASES[case]
    try:
        return shlex.join(bench_command(knowledge(), kind, instance(release), arguments).argv)
    except FleetError as error:
        return f"refused: {error}"


def refusals(text: str, release: str) -> tuple[str, ...]:
    """What the client's own parser has against a line."""
    words = shlex.split(text)
    count = 3 if words[0] == "vllm" else 2
    client = " ".join(words[:3]) if words[0] == "vllm" else f"benchmarks/{Path(words[1]).name}"
    table = bench_table(knowledge().flags(release), knowledge().bench, client)
    assert table is not None, client
    return tuple(finding.text() for finding in errors(check_argv(table, words[count:])))


def record() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def entries(case: str) -> dict[str, dict[str, Any]]:
    """The record of a case by release."""
    return {release: entry for entry in record()[case] for release in entry["releases"]}


@pytest.mark.parametrize("case", CASES)
def test_the_line_is_the_recorded_one_and_the_client_takes_it(case: str) -> None:
    known = entries(case)
    assert list(known) == list(RELEASES)
    for release, entry in known.items():
        found = line(case, release)
        assert found == entry["line"], release
        assert not found.startswith("refused: "), f"{release}: the role's own arguments are refused"
        assert refusals(found, release) == ()


@pytest.mark.parametrize("case", CASES)
def test_only_lines_that_the_client_refused_are_others_than_before(case: str) -> None:
    for release, entry in entries(case).items():
        if "before" in entry:
            assert refusals(entry["before"], release), release


def test_arguments_of_the_inventory_that_no_release_has() -> None:
    variables = {
        "n1": {"benchmark_serve_args": {"num_promts": 1}, "benchmark_latency_args": "{{ own }}"},
        "n2": {
            "benchmark_throughput_args": {"max_num_sequences": 1, "max_num_seqs": 1},
            "canary_args": {"seed": 1},
        },
    }
    found = [problem.text() for problem in unknown_benchmark_arguments(knowledge(), variables)]
    assert found == [
        "benchmark_serve_args.num_promts (host n1): is not an argument of vLLM's serve benchmark. "
        "Did you mean num_prompts?",
        "benchmark_throughput_args.max_num_sequences (host n2): is not an argument of vLLM's throughput benchmark. "
        "Did you mean max_num_seqs?",
    ]
    roles = {"n1": {name: defaults(name.partition("_")[0])[name] for name in VARIABLES}}
    assert list(unknown_benchmark_arguments(knowledge(), roles)) == []


def main() -> None:
    """Print the record, with what was before as it has it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for case in CASES:
        known = entries(case)
        rows = [(release, line(case, release), known[release].get("before")) for release in RELEASES]
        for (text, before), group in itertools.groupby(rows, lambda row: row[1:]):
            entry = {"releases": [row[0] for row in group], "line": text}
            found.setdefault(case, []).append({**entry, "before": before} if before else entry)
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
