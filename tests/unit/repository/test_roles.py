# SPDX-License-Identifier: Apache-2.0
"""The contracts of the roles: names, sizes, what their tasks give to modules; and for variables, test_variables.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.helpers.some import some
from tests.playbook_variables import options_of

ROLES = sorted(p.name for p in (ROOT / "roles").iterdir())
WORKING = sorted(p.parent.name for p in (ROOT / "roles").glob("*/tasks"))
"""Those with tasks. The role fleet has none: the planner reads its variables."""
MODULES = sorted(p.stem for p in (ROOT / "library").glob("*.py"))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def spec_of(role: str) -> dict[str, Any]:
    """The options of all entry points of a role."""
    parts = load(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"].values()
    return {name: option for part in parts for name, option in (part.get("options") or {}).items()}


@pytest.mark.parametrize("role", ROLES)
def test_every_option_is_named_after_the_role_and_described(role: str) -> None:
    for name, option in some(spec_of(role).items()):
        assert name.startswith(f"{role}_") or role not in WORKING
        assert option.get("description"), name
        assert ("default" in option) != option.get("required", False), name
        if re.search(r"(token|password|key)$", name):
            assert option.get("no_log") is True, name


def tasks_of(path: Path) -> list[dict[str, Any]]:
    """The tasks of a file, those of blocks among them."""
    found: list[dict[str, Any]] = []

    def walk(tasks: list[dict[str, Any]]) -> None:
        for task in tasks:
            found.append(task)
            for part in ("block", "rescue", "always"):
                walk(task.get(part, []))

    walk(load(path))
    return found


def tasks_below(role: str) -> list[dict[str, Any]]:
    return [task for path in sorted((ROOT / "roles" / role).glob("tasks/*.yml")) for task in tasks_of(path)]


def test_all_roles_but_one_have_tasks() -> None:
    assert set(ROLES) - set(WORKING) == {"fleet"}


@pytest.mark.parametrize("role", WORKING)
def test_roles_are_small(role: str) -> None:
    for path in (ROOT / "roles" / role).glob("tasks/*.yml"):
        assert len([task for task in tasks_of(path) if "block" not in task]) <= 12, path


@pytest.mark.parametrize("role", WORKING)
def test_tasks_use_only_options_that_our_modules_have(role: str) -> None:
    """ansible-lint does not check the arguments of the collection's own modules."""
    ours = {f"instinct.fleet.{module}": module for module in MODULES}
    calls = [(task, name) for task in tasks_below(role) for name in set(task) & set(ours)]
    for task, name in some(calls):
        spec, given = options_of(name), set(task[name] or {})
        assert given <= set(spec), f"{role}: {task['name']}"
        required = {option for option, how in spec.items() if how.get("required")}
        assert required <= given, f"{role}: {task['name']}"


def test_one_file_sets_the_state_of_servers() -> None:
    """How an instance leaves the load balancers, and who waits how long for it, is written once."""
    trees = [ROOT / "playbooks", *(ROOT / "roles").glob("*/tasks")]
    users = [
        path
        for tree in trees
        for path in tree.rglob("*.yml")
        if "balancer_server:" in path.read_text("utf-8")
    ]
    assert [path.relative_to(ROOT).as_posix() for path in users] == ["roles/load_balancer/tasks/servers.yml"]
