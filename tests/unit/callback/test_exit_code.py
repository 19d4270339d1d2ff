# SPDX-License-Identifier: Apache-2.0
"""The exit code of a run that left out what is held: its own, unless something failed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.helpers.playbooks import Playbooks

TEXT = "llama is held at generation 1: generation 2 was turned back (slower)."
LEFT_OUT = {"fleet_plan_result": {"ignored": [TEXT]}}


def play(
    playbooks: Playbooks, tmp_path: Path, before: list[dict[str, Any]], held: bool = True, **env: str
) -> tuple[int, str]:
    """Run the last play of site.yml after some tasks; return the exit code and what was printed."""
    hosts = dict.fromkeys(("n1", "n2"), LEFT_OUT)
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    groups: dict[str, Any] = {"fleet_held": {"hosts": hosts}} if held else {"others": {"hosts": hosts}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"vars": local, "children": groups}}))
    first = {"name": "Before", "hosts": "all", "gather_facts": False, "tasks": before}
    last = yaml.safe_load((ROOT / "playbooks/parts/held.yml").read_text(encoding="utf-8"))
    (tmp_path / "play.yml").write_text(yaml.safe_dump([first, *last], sort_keys=False))
    runs = Playbooks(tmp_path, {"JUNIT_OUTPUT_DIR": str(tmp_path / "junit"), **env}) if env else playbooks
    done = runs.run("-i", str(tmp_path / "hosts.yml"), str(tmp_path / "play.yml"))
    if env:
        runs.close()
    return done.returncode, done.stdout + done.stderr


WELL = [{"name": "Do", "ansible.builtin.assert": {"that": True}}]
ONE_FAILS = [{"name": "Do", "ansible.builtin.assert": {"that": "inventory_hostname != 'n2'"}}]
IGNORED = [{**ONE_FAILS[0], "ignore_errors": True}]


@pytest.mark.parametrize(
    ("before", "held", "env", "code"),
    [
        (WELL, True, {}, 10),
        pytest.param(IGNORED, True, {}, 10, marks=pytest.mark.deep),
        pytest.param(WELL, False, {}, 0, marks=pytest.mark.deep),
        (ONE_FAILS, True, {}, 2),
        pytest.param(
            WELL, True, {"ANSIBLE_CALLBACKS_ENABLED": "ansible.builtin.junit"}, 2, marks=pytest.mark.deep
        ),
    ],
    ids=["all else was done", "a failure that is ignored", "nothing is held", "a host failed", "not enabled"],
)
def test_the_exit_code(
    playbooks: Playbooks, tmp_path: Path, before: Any, held: bool, env: dict[str, str], code: int
) -> None:
    found, out = play(playbooks, tmp_path, before, held, **env)
    assert (found, TEXT in out) == (code, held), out
    if (before, held) == (WELL, True):
        # After the recap; with no advice to correct something and to run again.
        assert out.rstrip().splitlines()[-1].strip() == TEXT
        assert out.index("PLAY RECAP") < out.rindex(TEXT)
        assert "Next:" not in out


@pytest.mark.deep
def test_other_callbacks_get_all_events(playbooks: Playbooks, tmp_path: Path) -> None:
    enabled = "ansible.builtin.junit,instinct.fleet.exit_code"
    code, out = play(playbooks, tmp_path, WELL, ANSIBLE_CALLBACKS_ENABLED=enabled)
    assert code == 10, out
    assert list((tmp_path / "junit").iterdir())
