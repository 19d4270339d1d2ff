# SPDX-License-Identifier: Apache-2.0
"""vllm-router is installed as its lock file says, and nothing else is."""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jinja2
import yaml

from tests import ROOT

ROLE = ROOT / "roles/load_balancer"
LOCK = (ROLE / "files/router-requirements.txt").read_text(encoding="utf-8")


def pip_task() -> dict[str, Any]:
    """Options of the task that installs it."""
    tasks = yaml.safe_load((ROLE / "tasks/main.yml").read_text(encoding="utf-8"))
    (block,) = (task["block"] for task in tasks if "block" in task)
    (task,) = (task for task in block if "ansible.builtin.pip" in task)
    return dict(task["ansible.builtin.pip"])


def test_all_of_it_has_a_version_and_hashes() -> None:
    entries = re.split(r"\n(?=[a-z])", re.sub(r"(?m)^ *#.*\n", "", LOCK).strip())
    assert len(entries) > 20
    for entry in entries:
        assert re.fullmatch(
            r"[a-z0-9-]+==[0-9][\w.]*( ; [^\\\n]+)? \\(\n    --hash=sha256:[0-9a-f]{64}( \\)?)+", entry
        ), entry
    assert "vllm-router==0.1.17 " in LOCK
    assert "name" not in pip_task()


def test_what_is_not_as_locked_is_not_installed(tmp_path: Path) -> None:
    wheel = tmp_path / "wheels/vllm_router-0.1.17-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("vllm_router-0.1.17.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr("vllm_router-0.1.17.dist-info/METADATA", "Name: vllm-router\nVersion: 0.1.17\n")
        file.writestr("vllm_router-0.1.17.dist-info/RECORD", "")
    words = jinja2.Environment(autoescape=False).from_string(pip_task()["extra_args"])
    args = shlex.split(words.render(load_balancer_router_wheels="wheels"))
    args[args.index("--find-links") + 1] = str(wheel.parent)
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    found = {}
    for name, pin in {
        "right": f" --hash=sha256:{right}",
        "wrong": f" --hash=sha256:{'0' * 64}",
        "none": "",
    }.items():
        (tmp_path / name).write_text(f"vllm-router==0.1.17{pin}\n")
        found[name] = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", *args, "-r", tmp_path / name, "-t", tmp_path / "to"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert found["right"].returncode == 0, found["right"].stderr
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in found["wrong"].stderr
    assert "--require-hashes mode" in found["none"].stderr
