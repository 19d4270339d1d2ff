# SPDX-License-Identifier: Apache-2.0
"""The catalogue against vLLM's own argument parsers, for the versions that are at hand.

    python -m tests.real_parsers --python venv/bin/python                      an installed vLLM
    python -m tests.real_parsers --python venv/bin/python --from-dir wheel/    an unpacked wheel, with venv's libraries

What is rendered (every recipe for every model of the recipe tests, GPU and objective; every neutral setting with
every value; every kind of benchmark) must be accepted; and the catalogue's verdict on made-up command lines, good
and bad ones, must be the parser's. docs/catalogue.md says how to make such a venv. Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "module_utils")]

from instinct.argv import check_argv  # noqa: E402
from instinct.benchargs import bench_args, bench_table  # noqa: E402
from instinct.findings import errors  # noqa: E402
from instinct.flags import Flag, FlagTable  # noqa: E402
from instinct.recipes import OBJECTIVES, Context, select  # noqa: E402
from instinct.settings import render_setting, render_settings, to_argv  # noqa: E402

from tests.real_parsers_runner import MARKER  # noqa: E402
from tests.unit.catalogue import knowledge, matrix  # noqa: E402
from tests.unit.test_flags_bench import ENGINE, LATENCY, OFFLINE, SERVE  # noqa: E402
from tests.unit.test_flags_settings import values  # noqa: E402
from tests.unit.test_recipes import MODELS, RECIPES, engine  # noqa: E402

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
    "--lora-modules": "an action of its own reads name=path or JSON; the catalogue takes any text",
}


def rendered(version: str) -> dict[str, list[list[str]]]:
    """Command lines that plans and benchmarks of this version may consist of, each once."""
    book = knowledge().book(version)
    lines: dict[str, dict[tuple[str, ...], None]] = {SERVE_COMMAND: {}}
    for model, gfx, objective, tp in product(MODELS, ("gfx942", "gfx950"), OBJECTIVES, (1, 8)):
        for changes in ({}, {"compute": "CPX", "memory": "NPS4"}, {"speculative": True}, {"kv_cache": "fp8"}):
            where = Context(
                book.release,
                book.line,
                gfx,
                objective=objective,
                tp=tp,
                engine=engine(book.release.name),
                **changes,
            )
            found = render_settings(book, select(RECIPES, model, where).values())
            lines[SERVE_COMMAND][(model.repository, *to_argv(book.flags, found.args))] = None
    for name in knowledge().settings:
        for value in values(name):
            argv = to_argv(book.flags, render_setting(book, name, value).args)
            lines[SERVE_COMMAND][("m", *argv)] = None
    for kind, arguments, flags in (
        ("serve", SERVE, {}),
        ("latency", LATENCY, ENGINE),
        ("throughput", OFFLINE, ENGINE),
    ):
        made = bench_args(book.flags, knowledge().bench, knowledge().bench_book, kind, arguments, flags)
        if made.argv[0] == "vllm":
            lines.setdefault(made.table, {})[made.argv[3:]] = None
    return {command: [list(argv) for argv in found] for command, found in lines.items()}


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
    if flag.type.startswith("config") and table.configs.of_flag(flag.name) is None:
        texts.remove('{"a": 1}')  # the keys of this class are not in the catalogue
    if flag.choices:
        texts += [str(choice) for choice in flag.choices] * 2
    if flag.kind == "list" and dice.random() < 0.5:
        return [option, dice.choice(texts), dice.choice(texts)]
    if dice.random() < 0.05:
        return [option]
    value = dice.choice(texts)
    return [f"{option}={value}"] if dice.random() < 0.3 else [option, value]


def ask(python: str, directory: str, asked: dict[str, list[list[str]]]) -> tuple[str, dict[str, list[str]]]:
    """The installed vLLM's version and its verdicts."""
    environment = {**os.environ, **({"PYTHONPATH": directory} if directory else {})}
    done = subprocess.run(
        [python, str(RUNNER)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    lines = [line[len(MARKER) :] for line in done.stdout.splitlines() if line.startswith(MARKER)]
    if not lines:
        raise SystemExit(f"{python} gave no verdicts:\n" + "\n".join(done.stderr.splitlines()[-10:]))
    found: dict[str, Any] = json.loads(lines[-1])
    return found["version"], found["verdicts"]


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
    parser.add_argument("--seed", type=int, default=1, help="of the made-up command lines")
    options = parser.parse_args(arguments)
    directory = str(Path(options.from_dir).resolve()) if options.from_dir else ""
    version, _ = ask(options.python, directory, {})
    table = knowledge().flags(version)
    wanted = rendered(version)
    invented = [*made_up(table, options.seed), *(item["argv"] for item in matrix().values())]
    asked = {**wanted, SERVE_COMMAND: [*wanted[SERVE_COMMAND], *invented]}
    _, verdicts = ask(options.python, directory, asked)
    wrong = 0
    for command, lines in wanted.items():
        refused = [(argv, text) for argv, text in zip(lines, verdicts[command], strict=False) if text]
        print(f"vLLM {version}, {command}: {len(lines)} rendered command lines, {len(refused)} refused")
        for argv, text in refused[:10]:
            print(f"  {' '.join(argv)}\n    {text}")
        wrong += len(refused)
    texts = verdicts[SERVE_COMMAND][len(wanted[SERVE_COMMAND]) :]
    differing = []
    for argv, text in zip(invented, texts, strict=True):
        here = errors(check_argv(table, argv))
        if bool(text) != bool(here):
            differing.append((argv, text, [finding.text() for finding in here]))
    accepted = sum(not text for text in texts)
    print(
        f"vLLM {version}: {len(invented)} made-up command lines, of which its parser accepts {accepted}; "
        f"{len(differing)} verdicts differ"
    )
    for argv, text, said in differing[:15]:
        print(f"  {' '.join(argv)}\n    parser: {text or 'accepted'}\n    here:   {said or 'accepted'}")
    tables = [
        bench_table(table, knowledge().bench, command) for command in wanted if command != SERVE_COMMAND
    ]
    wrong += sum(1 for item in tables if item is None)
    return 1 if wrong or differing else 0


if __name__ == "__main__":
    sys.exit(main())
