# SPDX-License-Identifier: Apache-2.0
"""Modules with one action: meta/runtime.yml leads to it, by full and by short name, and each keeps its own settings."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions import timed_action

from tests import ROOT
from tests.helpers.actions import action_files, action_of
from tests.helpers.playbooks import Playbooks

# The file of the action, whether plans get out of date, the limit in seconds (0 is the task's own), and the program.
ROUTED: dict[str, tuple[str, bool, int, bool]] = {
    "blob_fetch": ("leased", True, 0, False),
    "blob_swarm": ("timed", True, 86700, True),
    "blob_verify": ("leased", True, 0, False),
    "gpu_burnin": ("timed", False, 2100, True),
    "haproxy_config": ("leased", True, 0, False),
    "hf_model": ("timed", True, 86700, True),
    "host_settings": ("leased", True, 0, False),
    "image_push": ("leased", True, 0, False),
    "kernel_cmdline": ("leased", True, 0, False),
    "numa_balancing": ("leased", True, 0, False),
    "partition_boot": ("timed", True, 300, True),
    "rocm_partition": ("timed", True, 2100, False),
    "serving_generation": ("leased", True, 0, False),
    "vllm_image": ("timed", True, 29100, True),
    "vllm_smoke": ("leased", False, 0, False),
    "vllm_watch": ("leased", False, 0, False),
}
OWN = {
    "balancer_server": True,
    "instance_cache": True, "host_forget": True, "host_prune": True, "lm_eval": False, "model_quantize": False,
    "model_repository": True, "model_verify": False, "vllm_accuracy": False, "vllm_bench": False, "vllm_server": True,
}  # fmt: skip
"""Whether plans get out of date by modules whose actions are their own."""


def test_every_module_has_its_action() -> None:
    """host_facts, instance_status and node_state change nothing, and need no lease."""
    found = action_files()
    shared = {name: file for name, file in found.items() if file in ("leased", "timed")}
    assert shared == {name: file for name, (file, *_) in ROUTED.items()}
    assert all(file == name for name, file in found.items() if name not in ROUTED)


def test_short_names_have_the_same_actions() -> None:
    """In a checkout, by ansible.cfg: ansible -m rocm_partition."""
    assert action_files(prefix="") == action_files()
    assert {path.stem for path in (ROOT / "action_plugins").iterdir()} == set(ROUTED)


def plugin_of(name: str, action: str) -> Any:
    """An action without its parts of Ansible."""
    kind = action_of(name)
    plugin = kind.__new__(kind)
    plugin._task = SimpleNamespace(args={"timeout": None}, async_val=0, delegate_to=None, action=action)
    return plugin


@pytest.mark.parametrize("prefix", ["instinct.fleet.", ""])
@pytest.mark.parametrize("name", ROUTED)
def test_settings_are_those_of_the_module(name: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _file, changes, limit, program = ROUTED[name]
    sent: list[dict[str, Any]] = []
    limits: list[int] = []
    real = timed_action.time_limit

    def execute(self: Any, module_args: dict[str, Any], **more: Any) -> dict[str, Any]:
        sent.append(module_args)
        return {}

    def limited(seconds: int) -> Any:
        limits.append(seconds)
        return real(seconds)

    monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})
    monkeypatch.setattr(ActionBase, "_execute_module", execute)
    monkeypatch.setattr(timed_action, "time_limit", limited)
    plugin_of(name, f"{prefix}{name}").run(None, {})
    (args,) = sent
    assert args["lease"]["changes"] is changes
    assert sum(limits) == limit
    assert bool(args.get("program")) is program


@pytest.mark.parametrize("name", OWN)
def test_which_modules_keep_plans_valid(name: str) -> None:
    assert plugin_of(name, f"instinct.fleet.{name}")._lease({})["changes"] is OWN[name]


PLAY = """
- hosts: localhost
  gather_facts: false
  collections: [instinct.fleet]
  module_defaults:
    group/instinct.fleet.docker: {docker_socket: /nonesuch}
    instinct.fleet.kernel_cmdline: {unknown: true}
  tasks:
    - instinct.fleet.numa_balancing: {}
    - numa_balancing: {}
    - instinct.fleet.vllm_watch: {servers: [], seconds: 1}
"""


def test_a_playbook_gives_each_module_its_lease_and_its_own_defaults(
    tmp_path: Path, playbooks: Playbooks
) -> None:
    """With -vvv, which prints what modules were given. The last task has the defaults of its group, and no others."""
    (tmp_path / "play.yml").write_text(PLAY, encoding="utf-8")
    done = playbooks.run(
        "-i", "localhost,", "-c", "local", "--check", "-vvv", "-e", f"ansible_python_interpreter={sys.executable}",
        "play.yml", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"(?:changes|docker_socket): \S+", done.stdout) == [
        "changes: true", "changes: true", "docker_socket: /nonesuch", "changes: false",
    ]  # fmt: skip


def test_routes_are_sorted() -> None:
    runtime = yaml.safe_load((ROOT / "meta/runtime.yml").read_text(encoding="utf-8"))
    assert list(runtime["plugin_routing"]["modules"]) == sorted(ROUTED)
