# SPDX-License-Identifier: Apache-2.0
"""What the action plugins import is compiled once, not in every process of every task."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import ROOT

# As ansible-playbook imports an action plugin; prints who loads each module.
PROGRAM = """
import importlib
import ansible.cli
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder
_AnsibleCollectionFinder(paths=[{collections!r}])._install()
for name in {names}:
    module = importlib.import_module("ansible_collections.instinct.fleet.plugins." + name)
    print(name, type(module.__spec__.loader).__name__)
"""


def loaders(*names: str) -> dict[str, str]:
    program = PROGRAM.format(collections=str(ROOT / ".collections"), names=names)
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return dict(line.split(" ") for line in done.stdout.splitlines())


def test_what_comes_after_the_first_import_keeps_its_bytecode() -> None:
    found = loaders(
        "plugin_utils.actions.action_base", "plugin_utils.planning.pipeline", "module_utils.common.redact"
    )
    assert (
        found["plugin_utils.planning.pipeline"] == found["module_utils.common.redact"] == "SourceFileLoader"
    )


@pytest.mark.parametrize("plugin", ["callback.fleet", "lookup.fleet_hosts"])
def test_what_a_run_begins_with_keeps_its_bytecode(plugin: str) -> None:
    name = (
        "plugin_utils.planning.inventory.run_input"
        if plugin == "lookup.fleet_hosts"
        else "plugin_utils.base.hints"
    )
    assert loaders(plugin, name)[name] == "SourceFileLoader"


def test_ansible_alone_keeps_none() -> None:
    """Once this fails, Ansible does it itself, and plugin_utils/actions/bytecode.py can go."""
    assert loaders("plugin_utils.planning.pipeline") == {
        "plugin_utils.planning.pipeline": "_AnsibleCollectionLoader"
    }


def test_its_finder_is_there_once_however_often_it_is_imported() -> None:
    program = """
import importlib, sys
import ansible.cli
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions import bytecode
importlib.reload(bytecode)
print([getattr(finder, "__name__", "") for finder in sys.meta_path].count(bytecode.BytecodeCache.__name__))
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".collections")}
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=env
    )
    assert done.stdout == "1\n"
