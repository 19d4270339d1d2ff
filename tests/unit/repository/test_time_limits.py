# SPDX-License-Identifier: Apache-2.0
"""Every child process has a time limit: it is started by common/processes.py, or stands here with what ends it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests import ROOT

PLUGINS = ROOT / "plugins"

STARTS = {
    "module_utils/common/processes.py": "the helper itself",
    "module_utils/swarm/swarm_member.py": "outlives the call on purpose, and ends at the deadline in its job",
    "module_utils/programs/bench_client.py": "runs in a container that is stopped at benchmark_timeout",
    "module_utils/programs/burnin.py": "is killed after phase_seconds, in a container with a limit of its own",
    "module_utils/programs/inspect_image.py": "runs in a container that is killed after 300 s, with an error",
    "module_utils/programs/router.py": "serves for as long as the unit runs",
    "module_utils/programs/supervisor/child.py": "serves for as long as the container runs",
}
"""Files that may use subprocess themselves, and why."""

FOREVER = {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve", "execvp"}
STARTING = {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"}

WORDS = re.compile(r"\b(os|pty|subprocess|run_command|create_subprocess_\w+)\b")
"""What a file has that can start a process."""


def _hiding(path: str, node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.module in ("subprocess", "pty", "asyncio.subprocess"):
        yield f"{path}:{node.lineno}: from {node.module}"
    if isinstance(node, ast.Import):
        hidden = [item for item in node.names if item.name in ("subprocess", "os") and item.asname]
        yield from (f"{path}:{node.lineno}: {item.name} as {item.asname}" for item in hidden)


def unlimited(path: str, tree: ast.AST) -> Iterator[str]:
    """Yield the calls of a file that start a process without a limit, and the imports that would hide them."""
    for node in ast.walk(tree):
        yield from _hiding(path, node)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
        name = node.func.attr
        # At its limit, subprocess.run() kills its child alone, and waits for whoever else holds the output.
        if (
            (owner == "subprocess" and name in STARTING and path not in STARTS)
            or (owner == "os" and (name in FOREVER or name.startswith("spawn")))
            or (name in ("run_command", "create_subprocess_exec", "create_subprocess_shell"))
        ):
            yield f"{path}:{node.lineno}: {owner}.{name}"


def test_every_child_process_has_a_time_limit() -> None:
    found = []
    for file in sorted(PLUGINS.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if WORDS.search(text):  # to parse all files takes seconds
            found += unlimited(str(file.relative_to(PLUGINS)), ast.parse(text))
    assert found == [], (
        "use run_program() of common/processes.py, or run_checked() of common/checked_program.py"
    )


@pytest.mark.parametrize("path", STARTS)
def test_what_is_excused_is_there(path: str) -> None:
    tree = ast.parse((PLUGINS / path).read_text(encoding="utf-8"))
    assert not list(unlimited(path, tree))
    assert list(unlimited("elsewhere.py", tree))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("modules/x.py", "module.run_command(['ls'])"),
        ("module_utils/x.py", "subprocess.run(['ls'], timeout=5)"),
        ("module_utils/x.py", "subprocess.check_output(['ls'])"),
        ("module_utils/programs/x.py", "subprocess.run(['ls'], timeout=5)"),
        ("module_utils/host/x.py", "with subprocess.Popen(['ls']) as p:\n    pass"),
        ("action/x.py", "os.system('ls')"),
        ("action/x.py", "os.spawnlp(os.P_WAIT, 'ls')"),
        ("action/x.py", "from subprocess import run"),
        ("action/x.py", "import subprocess as sp"),
    ],
)
def test_what_is_found(path: str, text: str) -> None:
    assert list(unlimited(path, ast.parse(text)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("module_utils/swarm/swarm_member.py", "subprocess.Popen(['ls'])"),
        ("module_utils/x.py", "run_program(Program(['ls']), 5)\nself.run(1)\npool.run()"),
    ],
)
def test_what_is_not(path: str, text: str) -> None:
    assert not list(unlimited(path, ast.parse(text)))
