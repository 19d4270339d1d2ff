# SPDX-License-Identifier: Apache-2.0
"""`make lint` finds what Python 3.9 does not have, wherever code that runs on nodes stands."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests import ROOT

BIN = Path(sys.executable).parent
(LINE,) = [line for line in (ROOT / ".pre-commit-config.yaml").read_text().splitlines() if "/vermin " in line]
WORDS = shlex.split(LINE.partition("vermin ")[2])
OPTIONS = [word for word in WORDS if word.startswith("-")]
PLACES = [word for word in WORDS if not word.startswith("-")]


def vermin(root: Path) -> subprocess.CompletedProcess[str]:
    """What `make lint` runs, on a copy."""
    return subprocess.run(
        [str(BIN / "vermin"), *OPTIONS, *(str(root / place) for place in PLACES)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


# Where it is hidden, and the word that tells that it was found.
HIDDEN = (
    (
        "plugins/modules/vllm_smoke.py",
        "import datetime\nNOW = datetime.datetime.now(datetime.UTC)",
        "datetime.UTC",
    ),
    ("plugins/modules/node_state.py", "PAIRS = list(zip([1], [2], strict=True))", "zip(strict)"),
    ("plugins/module_utils/common/files.py", "PAIRS = list(zip([1], [2], strict=True))", "zip(strict)"),
    ("plugins/module_utils/programs/supervisor/ray.py", "from datetime import UTC", "datetime.UTC"),
    ("plugins/module_utils/programs/haproxy_agent.py", "import tomllib", "tomllib"),
    (
        "plugins/module_utils/programs/bench_job.py",
        "def f(x):\n    match x:\n        case 1: pass",
        "pattern matching",
    ),
)


def test_what_python_3_9_does_not_have_is_found(tmp_path: Path) -> None:
    """In copies of some files, which are found to have nothing else; that all files pass is for `make lint` to say."""
    for name, _, _ in HIDDEN:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    done = vermin(tmp_path)
    assert done.returncode == 0, done.stdout
    for name, hidden, _ in HIDDEN:
        with (tmp_path / name).open("a") as file:
            file.write(f"\n{hidden}\n")
    done = vermin(tmp_path)
    assert done.returncode == 1, done.stdout
    lines = done.stdout.split("\n\n")  # a file's name, and below it what was found there
    for name, _, word in HIDDEN:
        (here,) = [text for text in lines if f"/{name}\n" in text]
        assert word in here
