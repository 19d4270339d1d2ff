# SPDX-License-Identifier: Apache-2.0
"""Each module's documentation says what the module has; fragments and action groups hold what modules share."""

from __future__ import annotations

import importlib
import re
from collections import defaultdict
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.helpers.module_docs import documented_by
from tests.helpers.some import some

PLUGINS = "ansible_collections.instinct.fleet.plugins"
MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py"))
KEYS = ("type", "elements", "default", "choices", "required")


def module(name: str) -> Any:
    return importlib.import_module(f"{PLUGINS}.modules.{name}")


def spec_of(name: str) -> dict[str, Any]:
    """The options that the module takes, or the action plugin that stands for it."""
    if hasattr(module(name), "argument_spec"):
        return dict(module(name).argument_spec())
    return dict(importlib.import_module(f"{PLUGINS}.action.{name}").ActionModule.options)


def compare(documented: dict[str, Any], spec: dict[str, Any]) -> None:
    assert set(documented) == set(spec)
    for name, option in spec.items():
        for key in KEYS:
            assert documented[name].get(key) == option.get(key), (name, key)
        if "options" in option:
            compare(documented[name]["suboptions"], option["options"])


@pytest.mark.parametrize("name", [name for name in MODULES if name != "node_state"])
def test_options_are_those_of_the_module(name: str) -> None:
    """node_state has no argument_spec; test_observe_docs.py holds its documentation."""
    compare(documented_by(module(name)).get("options", {}), spec_of(name))


@pytest.mark.parametrize("name", MODULES)
def test_attributes_say_what_is_supported(name: str) -> None:
    attributes = documented_by(module(name))["attributes"]
    assert {"check_mode", "diff_mode", "platform"} <= set(attributes)
    for attribute, said in attributes.items():
        assert said.get("description"), attribute
        assert said.get("support") in ("full", "partial", "none", "N/A"), attribute


@pytest.mark.parametrize("name", MODULES)
def test_other_modules_are_named_in_full(name: str) -> None:
    """Within a collection, M() and seealso know no short names."""
    text = module(name).DOCUMENTATION + module(name).RETURN
    named = [*re.findall(r"M\(([^)]+)\)", text), *re.findall(r"^ +- module: (.+)$", text, re.MULTILINE)]
    for other in named:
        assert other.removeprefix("instinct.fleet.") in MODULES or other.startswith("ansible.builtin."), other


def test_options_of_several_modules_are_in_fragments() -> None:
    """Those that three modules would otherwise describe in the same words."""
    described: dict[str, list[str]] = defaultdict(list)
    for name in MODULES:
        for option, text in (yaml.safe_load(module(name).DOCUMENTATION).get("options") or {}).items():
            described[f"{option}: {text}"].append(name)
    assert not {option: names for option, names in described.items() if len(names) > 2}


def test_action_groups() -> None:
    groups = yaml.safe_load((ROOT / "meta/runtime.yml").read_text())["action_groups"]
    with_socket = [
        name for name in MODULES if "docker_socket" in documented_by(module(name)).get("options", {})
    ]
    assert groups == {"docker": some(with_socket), "fleet": MODULES}
