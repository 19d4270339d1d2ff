# SPDX-License-Identifier: Apache-2.0
"""What the documentation of this part's modules says of options and results is what they have."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.observe.node_state import DEFAULTS, node_state
from ansible_collections.instinct.fleet.plugins.modules import node_state as script

from tests.helpers.module_docs import documented_by
from tests.worlds.gpu_tree import Tree

MODULES = ("rocm_partition", "numa_balancing", "serving_generation")
KEYS = ("type", "elements", "required", "default", "choices")


def documented(module: Any) -> dict[str, dict[str, Any]]:
    return _arguments(documented_by(module)["options"])


def _arguments(options: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            **{key: option[key] for key in KEYS if key in option},
            **({"options": _arguments(option["suboptions"])} if "suboptions" in option else {}),
        }
        for name, option in options.items()
    }


@pytest.mark.parametrize("name", MODULES)
def test_options(name: str) -> None:
    module = importlib.import_module(f"ansible_collections.instinct.fleet.plugins.modules.{name}")
    spec = {option: {**fields} for option, fields in module.argument_spec().items()}
    assert documented(module) == spec


def test_options_of_node_state() -> None:
    options = documented(script)
    assert {name: option.get("default") for name, option in options.items()} == DEFAULTS


@pytest.mark.parametrize("name", [*MODULES, "node_state"])
def test_attributes_and_examples(name: str) -> None:
    module = importlib.import_module(f"ansible_collections.instinct.fleet.plugins.modules.{name}")
    attributes = documented_by(module)["attributes"]
    assert set(attributes) >= {"check_mode", "diff_mode", "idempotent"}
    for task in yaml.safe_load(module.EXAMPLES):
        assert set(task[f"instinct.fleet.{name}"] or {}) <= set(documented(module)), task


def described(value: Any, returned: dict[str, Any], path: str) -> list[str]:
    """Keys of a result that its documentation does not name."""
    missing = []
    for item in value if isinstance(value, list) else [value]:
        for key in item:
            known = returned.get("contains") or {name: {} for name in sample(returned)}
            if key not in known:
                missing.append(f"{path}.{key}")
            elif known[key].get("contains") and item[key]:
                missing += described(item[key], known[key], f"{path}.{key}")
            elif isinstance(item[key], dict) and known[key].get("sample"):
                missing += [f"{path}.{key}.{name}" for name in item[key] if name not in known[key]["sample"]]
    return missing


def sample(returned: dict[str, Any]) -> dict[str, Any]:
    found = returned.get("sample") or {}
    return (found[0] if found else {}) if isinstance(found, list) else found


def test_every_key_of_node_state_is_documented(tmp_path: Path) -> None:
    root = Tree(tmp_path).build().root
    args = {**DEFAULTS, "sysfs_root": str(root), "docker_socket": str(root / "none")}
    state = json.loads(json.dumps(node_state(args)))
    returned = yaml.safe_load(script.RETURN)["node_state"]
    assert described(state, returned, "node_state") == []
    assert set(returned["contains"]) == set(state)
