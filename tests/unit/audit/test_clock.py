# SPDX-License-Identifier: Apache-2.0
"""How far a host's clock is from the control node's, as far as one call can show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.hardware_checks import (
    clock_ahead,
)

from tests import ROOT


@pytest.mark.parametrize(
    ("read", "ahead"),
    [
        (100.0, 0.0),
        (107.5, 0.0),  # somewhere within the call, which takes its time
        (110.0, 0.0),
        (118.25, 8.25),
        (580, 470.0),
        (99.5, -0.5),
        (-380.0, -480.0),
        (None, None),
        ("110", None),
        (True, None),
    ],
)
def test_only_what_is_certain_counts(read: object, ahead: float | None) -> None:
    assert clock_ahead(100.0, read, 110.0) == ahead


def test_the_module_s_answer_is_compared_with_this_machine(tmp_path: Path) -> None:
    """The module itself, run by Ansible with a Python whose clock is eight minutes ahead."""
    (tmp_path / "sitecustomize.py").write_text(
        "import time\nnow = time.time\ntime.time = lambda: now() + 480\n", encoding="utf-8"
    )
    ahead = tmp_path / "python3"
    ahead.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n', encoding="utf-8")
    ahead.chmod(0o755)
    program = str(Path(sys.executable).parent / "ansible")
    run = subprocess.run(
        [program, "-i", "n1,", "n1", "-c", "local", "-m", "instinct.fleet.host_facts", "-t", str(tmp_path / "out"),
         "-e", f"ansible_python_interpreter={ahead}"],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        cwd=ROOT, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    answer = json.loads((tmp_path / "out/n1").read_text(encoding="utf-8"))
    assert run.returncode == 0, run.stdout + run.stderr
    assert 470 < answer["host_facts"]["clock_ahead"] <= 480
