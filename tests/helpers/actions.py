# SPDX-License-Identifier: Apache-2.0
"""The actions of modules, found as Ansible finds them; and copies of the collection that find others."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests import ROOT

MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py"))
# As TaskExecutor of ansible-core chooses, in a process of its own: it installs a finder of Python modules.
_FIND = """
import json, os, sys
from ansible.plugins.loader import action_loader, init_plugin_loader, module_loader
init_plugin_loader()
found = {}
for name in sys.argv[1:]:
    route = module_loader.find_plugin_with_context(name).action_plugin
    path = action_loader.find_plugin_with_context(route or name).plugin_resolved_path
    found[name] = path and os.path.realpath(path)
print(json.dumps(found))
"""


@cache
def action_files(prefix: str = "instinct.fleet.") -> dict[str, str]:
    """The file of each module's action below plugins/action, without its ending; what has none is left out."""
    done = subprocess.run(
        [sys.executable, "-c", _FIND, *(f"{prefix}{name}" for name in MODULES)],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = {name.removeprefix(prefix): path for name, path in json.loads(done.stdout).items() if path}
    assert {str(Path(path).parent) for path in found.values()} == {str(ROOT / "plugins/action")}
    return {name: Path(path).stem for name, path in found.items()}


def action_of(name: str) -> Any:
    """The class of a module's action."""
    file = action_files()[name]
    return importlib.import_module(f"ansible_collections.instinct.fleet.plugins.action.{file}").ActionModule


def write_runtime(meta: Path, fakes: Iterable[str] = MODULES) -> None:
    """Write meta/runtime.yml of a copy in which these modules have actions of their own, or none."""
    runtime = yaml.safe_load((ROOT / "meta/runtime.yml").read_text(encoding="utf-8"))
    for name in fakes:
        runtime["plugin_routing"]["modules"].pop(name, None)
    meta.mkdir()
    (meta / "runtime.yml").write_text(yaml.safe_dump(runtime), encoding="utf-8")
