# SPDX-License-Identifier: Apache-2.0
"""Each variable stands in one argument_spec, with the type and the default that it has wherever it goes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.paths import HF_CACHE
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit import auditor
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired import (
    endpoint_settings,
    host_settings,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.public_variables import (
    public_variables,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run import request

from tests import ROOT, variables_table
from tests.playbook_variables import Tree, load

REPOSITORY = Tree(ROOT)


def undeclared(tree: Tree) -> Iterator[str]:
    """Variables that a file names and no role declares."""
    for place, name in tree.uses():
        if name not in tree.declarations:
            yield f"{place}: {name} stands in no argument_spec"


def repeated(tree: Tree) -> Iterator[str]:
    """Variables that are declared more than once."""
    for name, found in tree.declarations.items():
        if len(found) > 1:
            yield f"{name} stands in " + " and ".join(f"{item.role}/{item.entry}" for item in found)


def other_defaults(tree: Tree) -> Iterator[str]:
    """Defaults of a role that are not those of its argument_spec."""
    for path in sorted((tree.root / "roles").iterdir()):
        role, defaults = path.name, load(path / "defaults/main.yml")
        mine = {
            name: item.option.get("default", "none")
            for name, found in tree.declarations.items()
            for item in found
            if item.role == role
        }
        for name in sorted({*defaults, *mine}):
            if name not in mine or name not in defaults or defaults[name] != mine[name]:
                yield f"{role}: {name} is {defaults.get(name)!r} in defaults, {mine.get(name)!r} in argument_specs"


def other_types(tree: Tree) -> Iterator[str]:
    """Variables that are given to a module's option of another type, or with other choices."""
    for given in tree.given():
        for declared in tree.declarations.get(given.variable, ()):
            ours, theirs = ({"type": "str", **option} for option in (declared.option, given.option))
            kinds = [
                " of ".join(map(str, filter(None, (item["type"], item.get("elements")))))
                for item in (ours, theirs)
            ]
            if kinds[0] != kinds[1]:
                yield f"{given.place} is {kinds[1]}, {given.variable} is {kinds[0]}"
            choices = [{*item.get("choices", ())} - {""} for item in (ours, theirs)]
            if choices[0] != choices[1]:
                yield f"{given.place} takes other choices than {given.variable}"


def other_fallbacks(tree: Tree) -> Iterator[str]:
    """Places where a variable that is not set has another value than its default."""
    for place, fallback in tree.fallbacks():
        for declared in tree.declarations.get(fallback.variable, ()):
            default = declared.option.get("default")
            if fallback.variable not in tree.set_here and not fallback.omit and fallback.value != default:
                yield f"{place}: {fallback.variable} is {fallback.value!r} unless set, and {default!r} by its role"
    for given in tree.given():
        for declared in tree.declarations.get(given.variable, ()):
            default, theirs = declared.option.get("default"), given.option.get("default")
            if given.fallback and given.fallback.omit and not given.fallback.empties and theirs != default:
                yield f"{given.place} is {theirs!r} unless set, and {given.variable} is {default!r}"


def unconverted(tree: Tree) -> Iterator[str]:
    """Booleans and numbers that an expression takes as they are: -e gives them as text, of which "false" is true."""
    filters = {"bool": "bool", "int": "int", "float": "float"}
    for place, name in tree.computed():
        for declared in tree.declarations.get(name, ()):
            if needed := filters.get(declared.option.get("type", "str")):
                yield f"{place}: {name} needs | {needed}"


CHECKS = (undeclared, repeated, other_defaults, other_types, other_fallbacks, unconverted)


def all_problems(tree: Tree) -> list[str]:
    return [problem for check in CHECKS for problem in check(tree)]


def test_every_variable_is_declared_once_and_is_what_it_is_declared_to_be() -> None:
    assert len(list(REPOSITORY.uses())) > 60
    assert len(list(REPOSITORY.given())) > 100
    assert all_problems(REPOSITORY) == []


SPECS, TASKS = "meta/argument_specs.yml", "playbooks/plan.yml"


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        # As it was: in the middle of a rollout, the role refused a tolerance of 7.5, and the release was turned back.
        (f"roles/canary/{SPECS}", "canary_tolerance:\n        type: float", "canary_tolerance:\n        type: int", [
            "playbooks/plan.yml: instinct.fleet.fleet_plan.canary_terms.canary_tolerance is float, "
            "canary_tolerance is int",
        ] + [
            "roles/canary/tasks/main.yml: instinct.fleet.canary_verdict.tolerance is float, canary_tolerance is int",
        ] * 4),
        (f"roles/vllm_serve/{SPECS}", "elements: str", "elements: dict", [
            "roles/vllm_serve/tasks/main.yml: instinct.fleet.vllm_server.remove is list of str, vllm_serve_remove is "
            "list of dict",
        ] * 2),
        (f"roles/gpu_partition/{SPECS}", "[auto, rocm-smi, amd-smi, sysfs]", "[auto, amd-smi]", [
            f"roles/gpu_partition/tasks/{part}.yml: instinct.fleet.rocm_partition.backend takes other choices than "
            "gpu_partition_backend" for part in ("main", "preflight")
        ]),
        (f"roles/host_prep/{SPECS}", "type: int\n        default: 1800", "type: float\n        default: 1800", [
            "roles/host_prep/tasks/reboot.yml: ansible.builtin.reboot.reboot_timeout is int, "
            "host_prep_reboot_timeout is float",
        ]),
        (TASKS, "run_once: true", "delay: \"{{ new_delay | default(5) }}\"\n      run_once: true", [
            f"{TASKS}: new_delay stands in no argument_spec",
        ]),
        (TASKS, "when: not (offline | default(false) | bool)", "when: not offline and not new_flag | default(false)", [
            f"{TASKS}: new_flag stands in no argument_spec",
            f"{TASKS}: offline needs | bool",
        ]),
        ("playbooks/parts/partition.yml", "serial: \"{{ gpu_partition_serial", "serial: \"{{ gpu_partition_seria", [
            "playbooks/parts/partition.yml: gpu_partition_seria stands in no argument_spec",
        ]),
        (f"roles/hf_model/{SPECS}", "hf_model_timeout:", "vllm_serve_spans: {type: bool}\n      hf_model_timeout:", [
            "vllm_serve_spans stands in hf_model/main and vllm_serve/main",
            "hf_model: vllm_serve_spans is None in defaults, 'none' in argument_specs",
        ]),
        ("roles/benchmark/defaults/main.yml", "benchmark_timeout: 7200", "benchmark_timeout: 3600", [
            "benchmark: benchmark_timeout is 3600 in defaults, 7200 in argument_specs",
        ]),
        ("roles/benchmark/defaults/main.yml", "benchmark_timeout: 7200", "benchmark_time: 7200", [
            "benchmark: benchmark_time is 7200 in defaults, None in argument_specs",
            "benchmark: benchmark_timeout is None in defaults, 7200 in argument_specs",
        ]),
        ("playbooks/parts/partition.yml", "_serial | default([1, '20%'])", "_serial | default([2])", [
            "playbooks/parts/partition.yml: gpu_partition_serial is [2] unless set, and [1, '20%'] by its role",
        ]),
        (TASKS, "explain: \"{{ explain | default(omit) }}\"", "explain: \"{{ canary | default(omit) }}\"", [
            f"{TASKS}: instinct.fleet.fleet_plan.explain is False unless set, and canary is True",
        ]),
    ],
)  # fmt: skip
def test_a_planted_error_is_found(tmp_path: Path, file: str, old: str, new: str, expected: list[str]) -> None:
    for name in ("playbooks", "roles"):
        shutil.copytree(ROOT / name, tmp_path / name)
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    assert all_problems(Tree(tmp_path)) == expected


def test_what_the_planner_reads_is_declared() -> None:
    read = {
        *host_settings.VARIABLES,
        *endpoint_settings.VARIABLES,
        *auditor.VARIABLES,
        "hf_model_token_file",
    }
    read |= {*request.VARIABLES.values(), *request.CANARY_SETTINGS}
    assert read - {"ansible_host"} <= public_variables().keys()


def test_the_planner_has_the_declarations() -> None:
    assert public_variables().keys() == REPOSITORY.declarations.keys()
    tolerance = public_variables()["canary_tolerance"]
    assert (tolerance.role, tolerance.option) == ("canary", {"type": "float", "default": 10})
    assert public_variables()["deployment"].option == {"type": "str"}
    assert public_variables()["hf_model_cache_dir"].default == HF_CACHE


def test_the_page_of_all_variables_is_current() -> None:
    """`make docs` writes it anew."""
    assert (ROOT / "docs/variables.md").read_text(encoding="utf-8") == variables_table.page()


def test_documents_name_variables_that_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "playbooks").rglob("*.yml")]
    named = {
        name for path in pages for name in re.findall(r"-e '?([a-z]\w*)=", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert named - {"deploymnt"} <= public_variables().keys()  # that one shows what becomes of a slip


@pytest.mark.parametrize("page", ["docs/canary.md", "docs/runbooks/upgrade.md"])
def test_tables_of_variables_have_their_defaults(page: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| `?(\w+)`? \|", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    defaults = {name: item.default for name, item in public_variables().items() if item.default is not None}
    reported = {name: default for name, default in rows if name in defaults}
    assert len(reported) > 1
    for name, default in reported.items():
        assert default in (defaults[name], json.dumps(defaults[name])), name
