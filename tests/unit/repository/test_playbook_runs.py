# SPDX-License-Identifier: Apache-2.0
"""A fork of ansible-playbook does and prints what one that is started does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import ROOT
from tests.helpers.playbooks import PROGRAM, Playbooks


@pytest.mark.parametrize("given", [("-e", "offline=true", "-v"), ("-e", "offlin=true")])
def test_a_fork_is_as_a_process_of_its_own(
    tmp_path: Path, playbooks: Playbooks, given: tuple[str, ...]
) -> None:
    shutil.copytree(ROOT / "inventory/example", tmp_path / "mine")
    args = ("-i", "mine", *given, str(ROOT / "playbooks/plan.yml"))
    env = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    }  # fmt: skip
    own = subprocess.run([PROGRAM, *args], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    fork = playbooks.run(*args, cwd=tmp_path)
    assert (fork.returncode, fork.stdout, fork.stderr) == (own.returncode, own.stdout, own.stderr)


def test_a_variable_of_ansible_is_for_the_process(playbooks: Playbooks) -> None:
    with pytest.raises(AssertionError):
        playbooks.run("plan.yml", env={"ANSIBLE_FORKS": "1"})
