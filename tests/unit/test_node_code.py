# SPDX-License-Identifier: Apache-2.0
"""What runs on nodes is found by its imports, and `make lint` finds in it what Python 3.9 does not have."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node_code import ROOT, node_code

BIN = Path(sys.executable).parent
(LINE,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if "/vermin " in line]
OPTIONS = shlex.split(LINE.partition("vermin ")[2].partition("$$")[0])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the code, to hide something in."""
    for place in ("library", "module_utils", "plugins/action"):
        shutil.copytree(ROOT / place, tmp_path / place)
    return tmp_path


def vermin(root: Path) -> subprocess.CompletedProcess[str]:
    """What `make lint` runs, on a copy."""
    found = [str(path) for path in node_code(root)]
    return subprocess.run(
        [str(BIN / "vermin"), *OPTIONS, *found], capture_output=True, text=True, check=False
    )


def test_what_runs_on_nodes_is_found() -> None:
    found = {str(path.relative_to(ROOT)) for path in node_code()}
    assert found >= {
        "library/node_state.py",  # sends no module_utils along
        "library/vllm_server.py",
        "module_utils/instinct/engine.py",  # imported by imports
        "module_utils/instinct/fetch_program.py",  # handed to a container as text
        "module_utils/instinct/supervise_ray.py",
        "module_utils/instinct/balancer_agent.py",  # copied
    }
    assert not found & {"library/fleet_plan.py", "module_utils/instinct/controller.py"}
    assert len(found) > 90


def test_the_code_as_it_is_passes(tree: Path) -> None:
    done = vermin(tree)
    assert done.returncode == 0, done.stdout


# Where it is hidden, and the word that tells that it was found.
HIDDEN = (
    ("library/vllm_smoke.py", "import datetime\nNOW = datetime.datetime.now(datetime.UTC)", "datetime.UTC"),
    ("library/node_state.py", "PAIRS = list(zip([1], [2], strict=True))", "zip(strict)"),
    ("module_utils/instinct/files.py", "PAIRS = list(zip([1], [2], strict=True))", "zip(strict)"),
    ("module_utils/instinct/supervise_ray.py", "from datetime import UTC", "datetime.UTC"),
    ("module_utils/instinct/balancer_agent.py", "import tomllib", "tomllib"),
    (
        "module_utils/instinct/bench_program.py",
        "def f(x):\n    match x:\n        case 1: pass",
        "pattern matching",
    ),
)


def test_what_python_3_9_does_not_have_is_found(tree: Path) -> None:
    for name, hidden, _ in HIDDEN:
        with (tree / name).open("a") as file:
            file.write(f"\n{hidden}\n")
    done = vermin(tree)
    assert done.returncode == 1, done.stdout
    told = done.stdout.split("\n\n")  # a file's name, and below it what was found there
    for name, _, word in HIDDEN:
        (here,) = [text for text in told if f"/{name}\n" in text]
        assert word in here
