# SPDX-License-Identifier: Apache-2.0
"""The plan's verdicts against vLLM's own: what its engine configuration refuses, and what it takes.

    python -m tests.oracles.real_engines --python PYTHON --wheels DIR         eight releases, fetched into DIR
    python -m tests.oracles.real_engines … --versions 0.24.0 --count 500      another one, and fewer cases
    python -m tests.oracles.real_engines … --record                           some of the answers, into RECORD

Each case is a deployment. What the planner refuses is rendered as the operator wrote it, what it accepts as the plan
does; both go through the parser of `vllm serve` and EngineArgs.create_engine_config() of the release, on a simulated
host with eight MI300X. `make engines` runs it. Exit code 1 when fewer than 99.8 % of the verdicts are the same.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.common.hashing import text_hash
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import ImageSoftware
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.settings import flag_argv
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.factory import ModelSource
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import ImagePin, Lock
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet

from tests import ROOT
from tests.commands import instances
from tests.oracles.engine_cases import Case, cases
from tests.oracles.engine_models import ALL, FILES, write
from tests.oracles.real_engines_runner import MARKER
from tests.oracles.real_parsers import program
from tests.oracles.vllm_wheels import VERSIONS, fetch, libraries
from tests.worlds.catalogue import knowledge
from tests.worlds.plan_world import DIGEST, GIB, IMAGE, fleet, state, workshop

RUNNER = Path(__file__).with_name("real_engines_runner.py")
RECORD = ROOT / "tests/data/vllm/engine_verdicts.json"
COUNT, RECORDED = 600, 100
"""Cases of each release, and those of them that are recorded."""
SAME = 0.998
OWNER = "org"
"""The checkpoints stand in a directory of this name, so that their paths look like repositories of the hub."""


@dataclass(frozen=True)
class Plan:
    """The planner's verdict. problems: why it refuses; empty when it accepts. argv: what stands behind `vllm serve`."""

    argv: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """vLLM's verdict. stage: how far it came; text and where: why it refuses."""

    accepted: bool
    stage: str = ""
    error: str = ""
    text: str = ""
    where: str = ""

    @property
    def kind(self) -> str:
        """The same for refusals with one cause: numbers and names of the case are left out."""
        said = re.sub(r"^\d+ validation errors? for (\w+)\s+", r"\1 ", self.text)
        said = re.sub(r"\[type=\w+, input_value.*", "", said, flags=re.DOTALL)
        said = re.sub(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\{[^}]*\}|-?\d+(\.\d+)?", "…", said)
        return f"{self.error}: {' '.join(said.split())[:150]} ({self.where.partition(':')[0]})"


@cache
def _lock(version: str) -> Lock:
    software = ImageSoftware(version, "rocm", "7.0.0", "2.9.0", "3.12", ("gfx942", "gfx950"))
    return Lock({IMAGE: ImagePin(DIGEST, 4 * GIB, software)}, {})


@cache
def _models() -> dict[str, ModelSource]:
    return {name: ModelSource(config, tuple((file, 1000) for file in FILES)) for name, config in ALL.items()}


def plan(case: Case, version: str) -> Plan:
    """Plan a deployment on a node with eight MI300X; nothing of recipes, so that the flags are the operator's."""
    wanted = {
        "name": "m",
        "model": f"{OWNER}/{case.model}",
        "model_config": case.model,
        "image": IMAGE,
        "recipes": False,
        "engine_args": dict(case.engine_args),
        **case.sizes,
    }
    try:
        made = plan_fleet(
            check_fleet(fleet({"host-1": state()}, [wanted])), workshop(_lock(version), _models())
        )
        if made.excluded:
            return Plan(raw(case, version), tuple(why for _, why in made.excluded))
    except FleetError as error:
        return Plan(raw(case, version), tuple(problem.text() for problem in error.problems))
    return Plan(tuple(instances(made)[0]["argv"][2:]), ())


def raw(case: Case, version: str) -> tuple[str, ...]:
    """The command line as the operator would have written it, without the plan."""
    table = knowledge().flags(version)
    argv = [f"{OWNER}/{case.model}"]
    for name, value in (*case.sizes.items(), *case.engine_args.items()):
        argv += flag_argv(table, name, value)
    return tuple(argv)


class Engines:
    """Asks the vLLM that a command's Python imports, and keeps its answers in a file: they do not change."""

    def __init__(self, python: Sequence[str], kept: Path) -> None:
        self.python = python
        self.program = program(RUNNER)
        self.mark = text_hash(RUNNER.read_text(encoding="utf-8") + json.dumps(ALL, sort_keys=True))
        self.kept = kept
        found = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        self.answers: dict[str, dict[str, Any]] = found["answers"] if found.get("mark") == self.mark else {}

    def ask(self, lines: Sequence[Sequence[str]]) -> list[Answer]:
        """The verdicts, in this order. RuntimeError when vLLM ends before the last."""
        keys = [json.dumps(list(argv)) for argv in lines]
        missing = [key for key in dict.fromkeys(keys) if key not in self.answers]
        if missing:
            self.answers.update(zip(missing, self._asked(missing), strict=True))
            content = {"mark": self.mark, "answers": self.answers}
            self.kept.write_text(json.dumps(content), encoding="utf-8")
        return [Answer(**self.answers[key]) for key in keys]

    def _asked(self, lines: Sequence[str]) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as home:
            write(Path(home) / OWNER)
            done = subprocess.run(
                [*self.python, "-c", self.program],
                input="".join(f'{{"argv": {line}}}\n' for line in lines),
                capture_output=True,
                text=True,
                check=False,
                cwd=home,
            )
        found = [line[len(MARKER) :] for line in done.stdout.splitlines() if line.startswith(MARKER)]
        if len(found) != len(lines):
            end = "\n".join(done.stderr.splitlines()[-15:])
            raise RuntimeError(f"{len(found)} verdicts for {len(lines)} command lines:\n{end}")
        return [json.loads(text) for text in found]


@dataclass(frozen=True)
class Compared:
    """One case with both verdicts."""

    version: str
    case: Case
    plan: Plan
    answer: Answer

    @property
    def same(self) -> bool:
        """Whether both accept, or both refuse."""
        return self.answer.accepted == (not self.plan.problems)

    @property
    def kind(self) -> str:
        """What they disagree about."""
        if self.answer.accepted:
            said = re.sub(r"'[^']*'|\"[^\"]*\"|-?\d+(\.\d+)?", "…", self.plan.problems[0])
            return f"only the plan refuses: {' '.join(said.split())[:150]}"
        return f"only vLLM refuses: {self.answer.kind}"


def judge(engines: Engines, version: str, count: int, seed: int) -> list[Compared]:
    """Plan the cases of a release, and ask its vLLM about them."""
    made = cases(knowledge().flags(version), count, seed)
    plans = [plan(case, version) for case in made]
    answers = engines.ask([item.argv for item in plans])
    return [
        Compared(version, case, planned, answer)
        for case, planned, answer in zip(made, plans, answers, strict=True)
    ]


def _line(*texts: str) -> str:
    return " ".join(" ".join(texts).split())[:400]


def record(compared: Sequence[Compared], path: Path) -> None:
    """Write some of the cases of each release with vLLM's verdicts, for the unit tests; every disagreement is kept out.

    An entry is the model, the flags, the sizes, and what vLLM refuses, "" where it accepts.
    """
    found: dict[str, list[list[Any]]] = {}
    for item in compared:
        kept = found.setdefault(item.version, [])
        if item.same and len(kept) < RECORDED:
            said = "" if item.answer.accepted else item.answer.kind[:100]
            kept.append([item.case.model, item.case.engine_args, item.case.sizes, said])
    entries = {
        version: "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in kept) + "\n]"
        for version, kept in found.items()
    }
    text = ",\n".join(f'"{version}": {kept}' for version, kept in entries.items())
    path.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def report(compared: Sequence[Compared]) -> str:
    """The disagreements by kind, most frequent first, each with one command line."""
    kinds: Counter[str] = Counter()
    first: dict[str, Compared] = {}
    releases: dict[str, set[str]] = {}
    for item in compared:
        if not item.same:
            kinds[item.kind] += 1
            first.setdefault(item.kind, item)
            releases.setdefault(item.kind, set()).add(item.version)
    lines = []
    for kind, count in kinds.most_common():
        item = first[kind]
        lines += [
            f"{count} x {kind}",
            f"    in {', '.join(sorted(releases[kind]))}; {item.version}: {' '.join(item.plan.argv)}",
            f"    vLLM: {item.answer.stage} {item.answer.where} {_line(item.answer.text) or 'accepts'}",
            f"    plan: {_line(*item.plan.problems[:1]) or 'accepts'}",
        ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", required=True, metavar="PATH", help="a Python with vLLM's libraries")
    parser.add_argument("--wheels", required=True, metavar="DIR", help="where the releases are, or go")
    parser.add_argument("--versions", nargs="+", default=list(VERSIONS), metavar="VERSION")
    parser.add_argument("--count", type=int, default=COUNT, help="cases of each release")
    parser.add_argument("--seed", type=int, default=1, help="of the cases")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name} anew")
    parser.add_argument("--report", default="", metavar="FILE", help="where all disagreements go")
    options = parser.parse_args(arguments)
    directory = Path(options.wheels).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    more = libraries(directory)
    everything: list[Compared] = []
    for version, path in zip(options.versions, fetch(directory, options.versions), strict=True):
        start = time.monotonic()
        python = ["env", f"PYTHONPATH={path}:{more}", str(Path(options.python).absolute())]
        engines = Engines(python, directory / f"engine-answers-{version}.json")
        found = judge(engines, version, options.count, options.seed)
        everything += found
        same, accepted = sum(item.same for item in found), sum(item.answer.accepted for item in found)
        print(
            f"vLLM {version}: {len(found)} deployments, of which it accepts {accepted}; {len(found) - same} verdicts "
            f"differ ({same / len(found):.1%} are the same; {time.monotonic() - start:.0f} s)",
            flush=True,
        )
        if options.report:
            Path(options.report).write_text(report(everything) + "\n", encoding="utf-8")
    if options.record:
        record(everything, RECORD)
    share = sum(item.same for item in everything) / len(everything)
    print(f"{len(everything)} deployments: {share:.2%} of the verdicts are the same")
    print(report(everything))
    return 0 if share >= SAME else 1


if __name__ == "__main__":
    sys.exit(main())
