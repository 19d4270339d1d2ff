# SPDX-License-Identifier: Apache-2.0
"""Samples how many small faults the unit tests find: changes one thing in a module, and runs its tests.

python -m tests.mutants MODULE... [--count 15] [--seed 1] [--jobs 1] [--at-least 90] [--tests FILE...]

A mutant is killed when a test fails, which is named, or its time is over (five times that of the unchanged code). A
survivor is behaviour that no test pins, or a change that makes no difference: such a one is named in
data/mutants_equivalent.txt, as it is printed without file and line, below a comment with the reason, and is not drawn.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import itertools
import os
import queue
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import ROOT

EQUIVALENT = ROOT / "tests/data/mutants_equivalent.txt"
PRODUCT = ("plugins",)
COLLECTION = "ansible_collections.instinct.fleet."
TREES = ("plugins/module_utils", "plugins/plugin_utils")
MARGIN = 20.0
MEMORY = 8 << 30  # a mutant may ask for memory without end
# Whatever a mutant leaves behind ends with it: it would take the time of those after it. The first process of a
# namespace hears no signals, so it is a shell.
CONTAINED = (
    ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", '"$@"; exit $?', "sh")
    if os.geteuid() == 0
    else ()
)
# pytest's exit codes for a test that failed, and for files that cannot be imported.
FAILED = (1, 2, 4)
NAMES = r"\w+(?: as \w+)?"
IMPORTS = re.compile(
    rf"^[ \t]*(from [\w.]+ import (?:\([^)]*\)|{NAMES}(?:, {NAMES})*))[ \t]*(?:#.*)?$", re.MULTILINE
)
CRASHED = (-signal.SIGSEGV, 128 + signal.SIGSEGV)  # the latter by the shell
# By their paths below tests/unit. For other modules the imports tell.
TESTS = {
    "measuring.statistics.shift": ["canary/test_canary"],
    "measuring.canary.verdict": ["canary/test_canary", "action/test_canary_verdict"],
    "common.redact": ["common/test_redact"],
    "planning.desired.renamed_hosts": ["desired/test_renamed_hosts"],
    "planning.pins.lockfile": [
        "pins/test_lockfile",
        "tuning/test_image_software",
        "resolving/test_access",
        "resolving/test_registry",
    ],
    "endpoint.converge": [
        "endpoint/test_converge",
        "endpoint/test_balancer_change",
        "endpoint/test_drain",
        "endpoint/test_virtual_address",
    ],
    "planning.endpoint.gone": [
        "endpoint/test_gone",
        "rollout_run/test_leaving",
        "endpoint/test_plan",
        "endpoint/test_plan_properties",
        "rollout/test_stopping",
        "simulation/test_reported_edits",
    ],
    "planning.endpoint.balancer_actions": [
        "endpoint/test_plan",
        "endpoint/test_plan_properties",
        "endpoint/test_secrets",
        "rollout/test_rollout_balancer",
        "endpoint/test_virtual_address",
    ],
    "planning.endpoint.plan": [
        "endpoint/test_plan",
        "endpoint/test_plan_properties",
        "endpoint/test_secrets",
        "rollout/test_rollout_balancer",
        "endpoint/test_virtual_address",
    ],
    "planning.endpoint.backends": ["endpoint/test_backends"],
    "planning.endpoint.servers": ["endpoint/test_servers", "endpoint/test_server_properties"],
    "planning.generations.revisions": ["generations/test_revisions", "generations/test_sources"],
    "partition.modes": [
        "partition/test_partition_modes",
        "partition/test_partition_transaction",
        "partition/test_rocm_partition",
    ],
    "partition.transaction": ["partition/test_partition_transaction"],
    "planning.placement.layout": [
        "placement/test_layout",
        "placement/test_layout_groups",
        "placement/test_network",
    ],
    "planning.changes.actions": ["changes/test_actions", "plan/test_plan"],
    "planning.resolving.registry": ["resolving/test_registry_plan", "resolving/test_registry"],
    "programs.supervisor.group": ["programs/test_supervise_ranks", "programs/test_supervise_group"],
    "programs.supervisor.main": [
        "programs/test_supervise_program",
        "programs/test_supervise",
        "programs/test_supervise_group",
    ],
    "planning.rollout.batches": [
        "rollout/test_batches",
        "rollout/test_any_order",
        "rollout/test_rollout_balancer",
        "rollout/test_plan",
        "rollout/test_rollout_playbook",
        "rollout_run/test_text",
    ],
    "planning.rollout.capacity": ["rollout/test_capacity"],
    "planning.rollout.deploy": [
        "rollout/test_first",
        "rollout/test_deploy",
        "rollout/test_plan",
        "rollout/test_stopping",
        "rollout/test_rollout_balancer",
        "simulation/test_reported_edits",
    ],
    "planning.rollout.groups": [
        "rollout/test_batches",
        "rollout/test_rollout_balancer",
        "simulation/test_reported_edits",
    ],
    "planning.rollout_run.proof": ["rollout_run/test_proof", "rollout_run/test_leaving"],
    "planning.rollout.members": [
        "rollout/test_members",
        "rollout/test_batches",
        "rollout/test_capacity",
        "simulation/test_reported_edits",
    ],
    "planning.rollout_run.todo": [
        "rollout_run/test_todo",
        "rollout/test_deploy",
        "rollout/test_measurement",
        "fetching/test_pushes",
        "endpoint/test_former",
    ],
    "planning.rollout.steps": ["rollout/test_rollout_steps"],
    "planning.rollout.schedule": [
        "rollout/test_batches",
        "rollout/test_any_order",
        "rollout/test_rollout_balancer",
        "simulation/test_reported_edits",
    ],
    "planning.rollout.turning_back": [
        "rollout/test_turning_back",
        "simulation/test_turned_back",
        "simulation/test_hold_histories",
        "rollout/test_deploy",
        "rollout/test_stopping",
    ],
    "planning.rollout.batch_work": [
        "rollout/test_plan",
        "inventory/test_unknown_variables",
        "rollout/test_rollout_balancer",
        "rollout/test_rollout_playbook",
    ],
    "planning.rollout.host_rollout": [
        "rollout/test_plan",
        "inventory/test_unknown_variables",
        "rollout/test_rollout_balancer",
        "rollout/test_measurement",
    ],
    "planning.rollout.plan": [
        "rollout/test_plan",
        "inventory/test_unknown_variables",
        "rollout/test_rollout_balancer",
    ],
    "planning.rollout.preconditions": [
        "rollout/test_plan",
        "inventory/test_unknown_variables",
        "rollout/test_rollout_balancer",
        "rollout/test_stopping",
        "rollout/test_measurement",
    ],
    "planning.rollout.trials": [
        "rollout/test_plan",
        "inventory/test_unknown_variables",
        "rollout/test_rollout_balancer",
        "rollout/test_deploy",
    ],
    "serving.converge": ["serving/test_converge_faults", "serving/test_converge"],
    "knowledge.sizing.fit": ["sizing/test_fit_small", "sizing/test_fit_vllm", "sizing/test_fit"],
    "knowledge.sizing.kv_cache": ["sizing/test_kvcache", "sizing/test_fit_vllm", "sizing/test_fit"],
    "knowledge.shapes.quantized": ["shapes/test_quantized", "sizing/test_fit"],
    "knowledge.shapes.weights": ["shapes/test_weights", "sizing/test_fit_vllm", "sizing/test_fit"],
    "planning.simulation.before": [
        "simulation/test_before",
        "simulation/test_named_edits",
        "simulation/test_reported_edits",
    ],
    "planning.simulation.calls": [
        "simulation/test_calls",
        "simulation/test_plays",
        "simulation/test_simulate",
        "simulation/test_reported_edits",
    ],
    "planning.simulation.clients": ["simulation/test_clients", "simulation/test_named_edits"],
    "planning.simulation.model": ["simulation/test_model", "simulation/test_before"],
    "planning.simulation.plays": [
        "simulation/test_plays",
        "simulation/test_simulate",
        "simulation/test_named_edits",
        "simulation/test_reported_edits",
        "simulation/test_turned_back",
        "simulation/test_random_edits",
    ],
    "planning.simulation.rules": ["simulation/test_rules"],
    "planning.simulation.simulate": ["simulation/test_simulate"],
    "planning.simulation.text": [
        "simulation/test_text",
        "simulation/test_named_edits",
        "simulation/test_replaced_host",
        "simulation/test_reported_edits",
    ],
    "weights.download": ["weights/test_download_faults", "weights/test_download"],
}
SWAPS: dict[type[ast.AST], Any] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "exc"}
SKIPPED = (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)
DELETED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete)


@dataclass(frozen=True)
class Mutant:
    """A module's text with one change; name: where and what."""

    path: Path
    line: int
    name: str
    text: bytes


def walk(node: ast.AST, parent: ast.AST, owner: str = "") -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """(function, parent, node) of what may be changed: no messages, no annotations, no names of types."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript) and not owner:
        return
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        owner = f"{owner}.{node.name}".lstrip(".")
    yield owner, parent, node
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if field not in SKIPPED_FIELDS and isinstance(child, ast.AST) and not isinstance(child, SKIPPED):
                yield from walk(child, node, owner)


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | str]]:
    """(what is replaced, by what) for each mutant of a node."""
    match node:
        case ast.Compare(left, ops, comparators):
            for index, op in enumerate(ops):
                swapped = [*ops[:index], SWAPS[type(op)](), *ops[index + 1 :]]
                yield node, ast.Compare(left, swapped, comparators)
        case ast.BoolOp(op, values):
            yield node, ast.BoolOp(SWAPS[type(op)](), values)
            for index in range(len(values)):
                rest = [*values[:index], *values[index + 1 :]]
                yield node, ast.BoolOp(op, rest) if len(rest) > 1 else rest[0]
        case ast.BinOp(left, op, right) if type(op) in SWAPS:
            yield node, ast.BinOp(left, SWAPS[type(op)](), right)
        case ast.UnaryOp(ast.Not(), operand):
            yield node, operand
        case ast.Constant(bool() as value):
            yield node, ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield node, ast.Constant(value + 1)
        case ast.Call(func, [first, second, *others], keywords):
            # The order makes no difference to min and max.
            if (
                not isinstance(first, ast.Starred)
                and not isinstance(second, ast.Starred)
                and ast.unparse(func) not in NAMES
            ):
                yield node, ast.Call(func, [second, first, *others], keywords)
        case ast.Return(value) if value and ast.unparse(value) != "None":
            yield node, "return None"
        case ast.If(test) | ast.IfExp(test):
            if ast.unparse(test) != "TYPE_CHECKING" and "__name__" not in ast.unparse(test):
                yield from ((test, ast.Constant(value)) for value in (True, False))
        case ast.comprehension(ifs=ifs):
            yield from ((test, ast.Constant(True)) for test in ifs)
    if isinstance(node, DELETED) and not isinstance(getattr(node, "value", None), ast.Constant):
        yield node, "pass"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
        yield node.func, ast.Name(NAMES[node.func.id])


def path_of(module: str) -> Path:
    """The file of a module, such as knowledge.sizing.fit."""
    name = f"{module.replace('.', '/')}.py"
    return next(path for tree in TREES if (path := ROOT / tree / name).is_file())


def module_of(path: Path) -> str:
    """The module of a file: its name below its tree; the file's own name for any other."""
    for tree in map(Path, TREES):
        if tree in path.parents:
            return ".".join(path.relative_to(tree).with_suffix("").parts)
    return path.stem


def mutants(path: Path, source: bytes) -> Iterator[Mutant]:
    """All mutants of a file's text."""
    starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]

    def span(node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, (ast.expr, ast.stmt))
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    tree, names = ast.parse(source), Counter[str]()
    for owner, parent, node in walk(tree, tree):
        for old, new in changes(node):
            if not isinstance(new, str) and ast.dump(old) == ast.dump(new):
                continue
            (start, end), word = span(old), new if isinstance(new, str) else ast.unparse(new)
            put = f"({word})" if isinstance(old, ast.expr) else word
            # A number or a name alone says little: what is around it is shown too.
            whole = parent if isinstance(parent, ast.expr) and isinstance(old, ast.Constant) else old
            left, right = span(whole)
            shown = [source[left:right], source[left:start] + word.encode() + source[end:right]]
            was, now = (re.sub(r"\s+", " ", part.decode()) for part in shown)
            name = f"{module_of(path)}.{owner}: {was} -> {now}"
            names[name] += 1
            number = f" #{names[name]}" if names[name] > 1 else ""
            text = source[:start] + put.encode() + source[end:]
            yield Mutant(path, old.lineno, name + number, text)  # type: ignore[attr-defined]


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Modules of ours that a file imports."""
    found: set[str] = set()
    here = path.relative_to(ROOT).with_suffix("").parts
    # To parse the rest of a thousand files takes seconds.
    for node in (ast.parse(text).body[0] for text in IMPORTS.findall(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = here[: -node.level] if node.level else ()
            name = "/".join([*base, *(node.module or "").removeprefix(COLLECTION).split(".")])
            found |= {name, *(f"{name}/{alias.name}" for alias in node.names)}
    return frozenset(module_of(Path(name)) for name in found if name.startswith(TREES))


def tests_of(module: str) -> list[str]:
    """The unit tests of a module: those listed for it, or else those nearest to it by imports."""
    unit = ROOT / "tests/unit"
    if module in TESTS:
        return [f"tests/unit/{name}.py" for name in TESTS[module]]
    files = [path for place in (*PRODUCT, "tests") for path in (ROOT / place).rglob("*.py")]
    names, found = {module}, set[Path]()
    for _ in range(4):
        users = {path for path in files if names & imported(path)}
        found = {path for path in users if unit in path.parents and path.stem.startswith("test_")}
        if found:
            break
        names |= {module_of(path.relative_to(ROOT)) for path in users}
    return [str(path.relative_to(ROOT)) for path in sorted(found)]


def private_copy(place: Path) -> Path:
    """The working tree, for one mutant at a time."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    for name in done.stdout.split("\0"):
        if name and ((ROOT / name).is_file() or (ROOT / name).is_symlink()):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name, follow_symlinks=False)
    return place


def failure(tree: Path, tests: Sequence[str], seconds: float | None) -> str:
    """The first test that fails in a tree, "over time", or "a crash of Python"; "" when all pass.

    A crash is the mutant's: it recurses, or asks for memory, without end. RuntimeError when pytest itself ends in
    another way, which says nothing of the tests.
    """
    options = ["-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [*CONTAINED, sys.executable, "-m", "pytest", *options, *tests], cwd=tree, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        )  # fmt: skip
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "over time"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        text = said.read()
    if code == 0:
        return ""
    if code in CRASHED:
        return "a crash of Python"
    if code not in FAILED:
        raise RuntimeError(f"pytest ended with {code}:\n{text[-2000:]}")
    named = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    return named[1].removeprefix("tests/unit/") if named else "the import of its tests"


def killer(tree: Path, mutant: Mutant, tests: Sequence[str], seconds: float, stamp: int) -> str:
    """What fails with a mutant. stamp: the file's time, by which Python knows what it has compiled."""
    path = tree / mutant.path
    was = path.read_bytes()
    try:
        path.write_bytes(mutant.text)
        os.utime(path, (stamp, stamp))
        return failure(tree, tests, seconds)
    finally:
        path.write_bytes(was)


def main() -> int:
    """The program; 1 when too many mutants survive."""
    assert __doc__
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.split("\n")[0])
    parser.add_argument("modules", nargs="+", metavar="MODULE", help="such as knowledge.sizing.fit")
    parser.add_argument("--count", type=int, default=15, help="mutants of each module")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--at-least", type=float, default=0.0, metavar="PERCENT", help="of all that are run")
    parser.add_argument("--tests", nargs="+", metavar="FILE", help="instead of those found for each module")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    equivalent = {line for line in lines if line and not line.startswith("#")}
    killed = run = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as place, ThreadPoolExecutor(given.jobs) as pool:
        trees: queue.Queue[Path] = queue.Queue()
        for number in range(given.jobs):
            trees.put(private_copy(Path(place, str(number))))
        stamps = itertools.count(1)
        for module in given.modules:
            path = path_of(module)
            tests = given.tests or tests_of(module)
            tree = trees.get()
            begun = time.monotonic()
            if failed := failure(tree, tests, None):
                sys.exit(f"{failed} fails without a mutant")
            limit = 5 * (time.monotonic() - begun) + MARGIN
            trees.put(tree)

            def outcome(mutant: Mutant, tests: Sequence[str] = tests, limit: float = limit) -> str:
                tree = trees.get()
                try:
                    return killer(tree, mutant, tests, limit, next(stamps))
                finally:
                    trees.put(tree)

            every = list(mutants(path.relative_to(ROOT), path.read_bytes()))
            open_ = [one for one in every if one.name not in equivalent]
            sample = random.Random(f"{given.seed} {module}").sample(open_, min(given.count, len(open_)))
            counts = Counter[str]()
            for mutant, failed in zip(sample, pool.map(outcome, sample), strict=True):
                word, by = ("killed", f"  by {failed}") if failed else ("SURVIVED", "")
                print(f"{word:8} {mutant.path}:{mutant.line} {mutant.name}{by}", flush=True)
                counts[word] += 1
            print(
                f"{module}: {dict(counts)} of {len(open_)}, and {len(every) - len(open_)} equivalent;"
                f" by {' '.join(tests)}",
                flush=True,
            )
            killed, run = killed + counts["killed"], run + counts["killed"] + counts["SURVIVED"]
            listed = {line for line in equivalent if line.startswith(f"{module}.")}
            if stale := listed - {one.name for one in every}:
                sys.exit(f"{EQUIVALENT}: no mutants any more: {sorted(stale)}")
    score = 100 * killed / run if run else 100.0
    print(f"{killed} of {run} killed: {score:.1f} %")
    return int(score < given.at_least)


if __name__ == "__main__":
    sys.exit(main())
