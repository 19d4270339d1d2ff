# SPDX-License-Identifier: Apache-2.0
"""How many YAML files somebody has to read to understand what a playbook does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.playbook_variables import load, tasks

LIMIT = 17
"""Files from which upgrade.yml, the longest operation, is understood."""
BUILTIN = "ansible.builtin."
ROLE = "instinct.fleet."


def reach(start: Path) -> set[Path]:
    """Return the playbook and all playbooks, roles' task files and task files that it names, and those name, and so on.

    Defaults and argument_specs are not counted. Raises KeyError where the name of a file is only known in a run.
    """
    found: set[Path] = set()
    rest = [start.resolve()]
    while rest:
        path = rest.pop()
        if path not in found:
            found.add(path)
            rest += [item.resolve() for item in named(path)]
    return found


def named(path: Path) -> Iterator[Path]:
    """Return the files that a playbook or task file names."""
    for item in tasks(load(path)):
        yield from named_by(item, path.parent)


def named_by(item: Mapping[str, Any], directory: Path) -> Iterator[Path]:
    """Return the files that a play or task names."""
    for key, value in item.items():
        words = value if isinstance(value, Mapping) else {"file": value}
        match key.removeprefix(BUILTIN):
            case "import_playbook" | "import_tasks" | "include_tasks":
                yield directory / words["file"]
            case "import_role" | "include_role":
                yield task_file(words)
            case "roles" if isinstance(value, list):
                yield from (task_file(role) for role in value if isinstance(role, Mapping))


def task_file(role: Mapping[str, Any]) -> Path:
    """Return the task file of a role, as include_role or a play's list of roles names it."""
    name = str(role.get("role") or role["name"]).removeprefix(ROLE)
    return ROOT / "roles" / name / "tasks" / f"{role.get('tasks_from', 'main')}.yml"


def test_an_upgrade_is_understood_from_a_few_files() -> None:
    found = sorted(path.relative_to(ROOT).as_posix() for path in reach(ROOT / "playbooks/upgrade.yml"))
    assert len(found) <= LIMIT, "\n".join(found)


@pytest.mark.parametrize("playbook", sorted(path.stem for path in (ROOT / "playbooks").glob("*.yml")))
def test_every_file_that_is_named_is_there(playbook: str) -> None:
    for path in reach(ROOT / f"playbooks/{playbook}.yml"):
        assert path.is_file()


@pytest.mark.parametrize("playbook", sorted(path.stem for path in (ROOT / "playbooks").glob("*.yml")))
def test_every_run_begins_with_the_check_of_its_input(playbook: str) -> None:
    """It stands in the hosts of the first play, which Ansible evaluates before it contacts any."""
    first = load(ROOT / f"playbooks/{playbook}.yml")[0]
    while "hosts" not in first:
        path = next(iter(named_by(first, ROOT / "playbooks")))
        first = load(path)[0]
    assert "instinct.fleet.fleet_hosts" in str(first["hosts"]) + str(first.get("vars", {}).get("plan_hosts"))


def test_every_part_and_every_task_file_is_used() -> None:
    used = set().union(*(reach(path) for path in (ROOT / "playbooks").glob("*.yml")))
    there = {*(ROOT / "playbooks").rglob("*.yml"), *(ROOT / "roles").glob("*/tasks/*.yml")}
    assert {path.relative_to(ROOT) for path in there - used} == set()


def test_the_control_nodes_clock_dates_what_hosts_compare() -> None:
    """By its own clock, a host that is fast would bind all others with what was lifted long ago."""
    files = (*(ROOT / "playbooks").rglob("*.yml"), *(ROOT / "roles").glob("*/tasks/*.yml"))
    given = [task.get(f"{ROLE}serving_generation") or {} for path in files for task in tasks(load(path))]
    times = [str(item.get("at")) for item in given if "bindings" in item]
    assert len(times) == 4
    assert all(time.startswith("{{ now(utc=true") for time in times)


def test_whether_modes_can_change_is_known_before_anything_is_drained() -> None:
    ((change, *_unused),) = (play["tasks"] for play in load(ROOT / "playbooks/parts/partition.yml"))
    first = change["block"][0]
    assert first[f"{BUILTIN}include_role"]["tasks_from"] == "preflight"
    assert first["when"] == "not fleet_host_plan.partition.interrupted"
    (check,) = load(ROOT / "roles/gpu_partition/tasks/preflight.yml")
    assert check["check_mode"] is True


def test_all_kinds_of_references_count(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(
        "- import_playbook: b.yml\n"
        "- hosts: all\n"
        "  roles: [{role: instinct.fleet.vllm_image}]\n"
        "  tasks:\n"
        "    - block: [{ansible.builtin.include_tasks: c.yml}]\n"
        "    - ansible.builtin.include_role: {name: instinct.fleet.load_balancer, tasks_from: selection}\n"
    )
    (tmp_path / "b.yml").write_text(
        "- hosts: all\n  tasks: [{ansible.builtin.import_tasks: {file: c.yml}}]\n"
    )
    (tmp_path / "c.yml").write_text("- ansible.builtin.debug:\n")
    names = {f"{path.parents[1].name}/{path.stem}" if "roles" in path.parts else path.stem
             for path in reach(tmp_path / "a.yml")}  # fmt: skip
    assert names == {"a", "b", "c", "vllm_image/main", "load_balancer/selection", "load_balancer/servers"}


@pytest.mark.parametrize("playbook", sorted(path.name for path in (ROOT / "playbooks").glob("*.yml")))
def test_the_readme_names_every_playbook(playbook: str) -> None:
    assert f"`{playbook}" in (ROOT / "README.md").read_text(encoding="utf-8")
