# SPDX-License-Identifier: Apache-2.0
"""forget.yml: the module learns by which names images are the toolkit's, and the operator what goes and what stays."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.action import ActionBase
from ansible_collections.instinct.fleet.plugins.action.host_forget import ActionModule
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.runs import this_run
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import BuildPin, Lock

from tests import ROOT

from .test_action_base import HostVars

ACTIONS, LEFT = ["remove container instinct-llama-0"], ["weights in /hf (1 GiB): -e forget_weights=true"]
LOCK = Lock({}, {}, {"own/vllm:1": BuildPin("sha256:1", "2", "3", pushed="r.example:5000/ai/vllm@x")})


def forget(
    directory: Path, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch, check: bool = False
) -> tuple[list[dict[str, Any]], list[str]]:
    """What the plugin sent to the module, and what it printed."""
    sent: list[dict[str, Any]] = []
    printed: list[str] = []
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})
    monkeypatch.setattr(
        ActionBase,
        "_execute_module",
        lambda _self, module_args, **_more: sent.append(module_args) or dict(answer),
    )
    plugin = ActionModule.__new__(ActionModule)  # its parts of Ansible are not needed
    plugin._task = SimpleNamespace(
        action="instinct.fleet.host_forget",
        args={"weights": True},
        check_mode=check,
        delegate_to=None,
        async_val=0,
    )
    plugin._display = SimpleNamespace(display=printed.append)
    plugin._loader = DataLoader()
    own = {"inventory_dir": str(directory), "registry_override": {"ghcr.io": "mirror.example/gh"}}
    plugin.run(None, {"inventory_hostname": "n1", "hostvars": HostVars({"n1": own}), **own})
    return sent, printed


def test_the_names_of_images_are_known_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fleet.lock.json").write_text(json.dumps(LOCK.to_json()), encoding="utf-8")
    ((given,), _printed) = forget(tmp_path, {"actions": [], "left": []}, monkeypatch)
    assert (given.pop("lease")["run"], given) == (
        this_run().id,
        {
            "weights": True,
            "registry_override": {"ghcr.io": "mirror.example/gh"},
            "push_repositories": ["r.example:5000/ai/vllm"],
        },
    )


def test_a_lock_file_that_cannot_be_read_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fleet.lock.json").write_text("{", encoding="utf-8")
    with pytest.raises(AnsibleActionFail, match=r"fleet\.lock\.json cannot be used"):
        forget(tmp_path, {}, monkeypatch)


@pytest.mark.parametrize(
    ("answer", "check", "printed"),
    [
        (
            {"actions": ACTIONS, "left": LEFT},
            False,
            [f"n1: done\n  {ACTIONS[0]}\nn1: stays\n  {LEFT[0]}"],
        ),
        (
            {"actions": ACTIONS, "left": LEFT},
            True,
            [f"n1: would do\n  {ACTIONS[0]}\nn1: would stay\n  {LEFT[0]}"],
        ),
        ({"actions": [], "left": LEFT}, False, [f"n1: nothing to remove\nn1: stays\n  {LEFT[0]}"]),
        ({"failed": True, "msg": "x"}, False, []),
    ],
)
def test_what_is_printed(
    answer: dict[str, Any], check: bool, printed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert forget(tmp_path, answer, monkeypatch, check)[1] == printed


def test_hosts_of_load_balancers_are_neither_stopped_nor_taken_apart() -> None:
    """The pattern of the last play is what the plan is about."""
    first, last = yaml.safe_load((ROOT / "playbooks/forget.yml").read_text(encoding="utf-8"))
    assert first["ansible.builtin.import_playbook"] == "stop.yml"
    assert "leaving=true" in first["vars"]["plan_hosts"]
    assert last["hosts"] == first["vars"]["fleet_only"]
    assert "difference(groups.load_balancer" in last["hosts"]
