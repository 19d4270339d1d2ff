# SPDX-License-Identifier: Apache-2.0
"""Programs as nodes and containers get them: each is whole by itself, and its action plugin hands it over.

Those of several files are run by test_supervise.py and test_partition_boot.py.
"""

from __future__ import annotations

import ast
import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.instinct.fleet.plugins.plugin_utils.bundle import archive, bundle, script

ACTIONS = "ansible_collections.instinct.fleet.plugins.action"
SCRIPTS = ("bench_repeat", "download", "haproxy_agent", "inspect_image", "keepalived_check", "router")
GIVEN = {
    "hf_model": script("download"),
    "partition_boot": archive("partition_boot"),
    "rocm_partition": archive("partition_boot"),
    "vllm_bench": script("bench_repeat"),
    "vllm_image": script("inspect_image"),
    "vllm_server": bundle("supervisor").files,
}


def imported(text: str) -> set[str]:
    """Top names of what a text imports; AssertionError for a relative import."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, ast.unparse(node)
            found.add(str(node.module).partition(".")[0])
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_program_of_one_text_needs_nothing_of_ours(name: str) -> None:
    text = script(name)
    compile(text, name, "exec")
    own = {"huggingface_hub"} if name == "download" else set()  # the image's
    assert imported(text) - own <= set(sys.stdlib_module_names)
    assert "__main__" in text


@pytest.mark.parametrize("name", GIVEN)
def test_the_action_plugin_hands_the_program_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []

    def execute(self: Any, module_args: dict[str, Any], **more: Any) -> dict[str, Any]:
        sent.append(module_args)
        return {"changed": True}

    monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})
    monkeypatch.setattr(ActionBase, "_execute_module", execute)
    action = importlib.import_module(f"{ACTIONS}.{name}").ActionModule
    plugin = action.__new__(action)  # its parts of Ansible are not needed
    plugin._task = SimpleNamespace(args={"timeout": 5}, async_val=0)
    assert plugin.run(None, {}) == {"changed": True}
    composed = {"commands": {}} if name == "vllm_bench" else {}
    assert sent == [{"timeout": 5, **composed, "program": GIVEN[name]}]
    assert GIVEN[name]
