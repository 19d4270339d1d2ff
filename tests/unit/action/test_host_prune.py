# SPDX-License-Identifier: Apache-2.0
"""prune.yml: the module learns what the control node refers to, and the operator what goes, or would."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.action import ActionBase
from ansible.vars.hostvars import HostVars as AnsiblesHostVars
from ansible_collections.instinct.fleet.plugins.action.host_prune import ActionModule
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.runs import this_run
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    BuildPin,
    ImagePin,
    Lock,
    ModelPin,
)

from tests import ROOT
from tests.worlds.inventories import Inventory, write

from .test_action_base import HostVars

LOCK = Lock({"r/vllm:1": ImagePin("sha256:" + "1" * 64)}, {"|a/b@main": ModelPin("2" * 40)})
LEFT = {"changed": True, "actions": ["remove cache gone-0 (5 bytes)"], "bytes": 5}


def prune(
    directory: Path, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch, check: bool = True, **own: Any
) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """The plugin's result, what it sent to the module, and what it printed. own: variables of the host."""
    sent: list[dict[str, Any]] = []
    printed: list[str] = []
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})
    monkeypatch.setattr(
        ActionBase,
        "_execute_module",
        lambda _self, module_args, **_more: sent.append(module_args) or dict(answer),
    )
    plugin = ActionModule.__new__(ActionModule)  # its parts of Ansible are not needed
    args = {"cache_dirs": ["/hf"], "images": ["mine:1"]}
    plugin._task = SimpleNamespace(
        action="instinct.fleet.host_prune", args=args, check_mode=check, delegate_to=None, async_val=0
    )
    plugin._display = SimpleNamespace(display=printed.append, warning=printed.append)
    plugin._loader = DataLoader()
    own = {"inventory_dir": str(directory), "vllm_deployments": [{"image": "r/vllm:2"}], **own}
    result = plugin.run(None, {"inventory_hostname": "n1", "hostvars": HostVars({"n1": own}), **own})
    return result, sent, printed


def locked(directory: Path, lock: Lock = LOCK) -> None:
    (directory / "fleet.lock.json").write_text(json.dumps(lock.to_json()), encoding="utf-8")


def test_the_lock_file_and_the_deployments_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked(tmp_path)
    result, sent, _ = prune(tmp_path, LEFT, monkeypatch)
    assert result == LEFT
    ((lease, given),) = [(args.pop("lease"), args) for args in sent]
    assert given == {
        "cache_dirs": ["/hf"],
        "images": ["mine:1", "r/vllm:1", "r/vllm:2", "r/vllm@sha256:" + "1" * 64],
        "registry_override": {},
        "push_repositories": [],
        "weights": ["a/b@" + "2" * 40],
    }
    assert (lease["run"], lease["changes"]) == (this_run().id, True)


def test_a_lock_file_that_cannot_be_read_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fleet.lock.json").write_text("{", encoding="utf-8")
    with pytest.raises(AnsibleActionFail, match=r"fleet\.lock\.json cannot be used"):
        prune(tmp_path, LEFT, monkeypatch)


def test_groups_that_contradict_each_other_stop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays depends on the deployments."""
    groups = {
        name: {"hosts": {"n1": None}, "vars": {"vllm_deployments": [name]}} for name in ("instinct", "rack")
    }
    inventory = Inventory(write(tmp_path, {"mine/hosts.yml": groups}))
    hostvars = AnsiblesHostVars(inventory.manager, inventory.variables, inventory.loader)
    plugin = ActionModule.__new__(ActionModule)
    plugin._task, plugin._loader = SimpleNamespace(args={}), inventory.loader
    with pytest.raises(AnsibleActionFail, match=r"the groups rack .* and instinct .* set it differently"):
        plugin.arguments({"inventory_hostname": "n1", "hostvars": hostvars})


@pytest.mark.parametrize("given", [None, "false", "true", True])
@pytest.mark.parametrize("check", [True, False])
def test_without_a_lock_file_nothing_is_removed_by_default(
    given: Any, check: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a bundle brought, or fetch.yml fetched, is referred to by nothing else."""
    own = {} if given is None else {"no_lock": given}
    if not check and given in (None, "false"):
        with pytest.raises(
            AnsibleActionFail, match=r"fleet\.lock\.json is not there\. .* Nothing was removed\."
        ) as caught:
            prune(tmp_path, LEFT, monkeypatch, check, **own)
        assert "-e no_lock=true" in str(caught.value)
        return
    _result, sent, printed = prune(tmp_path, LEFT, monkeypatch, check, **own)
    assert len(sent) == 1
    refused = [line for line in printed if "With -e apply=true this run is refused" in line]
    assert bool(refused) == (given in (None, "false"))


def test_what_the_toolkit_itself_calls_images_is_known_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked(
        tmp_path,
        replace(
            LOCK, builds={"own/vllm:1": BuildPin("sha256:1", "2", "3", pushed="r.example:5000/ai/vllm@x")}
        ),
    )
    build = {"build": {"tag": "own/vllm", "push_to": "other.example/vllm"}}
    rules = {"index.docker.io/rocm": "mirror.example/hub", "ghcr.io": "mirror.example/gh"}
    own = {"vllm_deployments": [build], "registry_override": rules}
    ((given,),) = [prune(tmp_path, LEFT, monkeypatch, **own)[1]]
    assert given["registry_override"] == {
        "docker.io/rocm": "mirror.example/hub",
        "ghcr.io": "mirror.example/gh",
    }
    assert given["push_repositories"] == ["other.example/vllm", "r.example:5000/ai/vllm"]


def test_mirrors_that_make_no_sense_stop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked(tmp_path)
    with pytest.raises(AnsibleActionFail, match="is not a registry"):
        prune(tmp_path, LEFT, monkeypatch, registry_override={"https://x": "mirror.example"})


@pytest.mark.parametrize(
    ("answer", "check", "printed"),
    [
        (LEFT, True, ["n1: would remove 5 B\n  remove cache gone-0 (5 bytes)"]),
        (LEFT, False, ["n1: removed 5 B\n  remove cache gone-0 (5 bytes)"]),
        ({"changed": False, "actions": [], "bytes": 0}, True, ["n1: nothing to remove"]),
        ({"failed": True, "msg": "x"}, False, []),
    ],
)
def test_what_is_printed(
    answer: dict[str, Any], check: bool, printed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked(tmp_path)
    assert prune(tmp_path, answer, monkeypatch, check)[2] == printed


@pytest.mark.parametrize(
    ("variables", "dry"),
    [
        ({"ansible_check_mode": False}, True),
        ({"ansible_check_mode": False, "apply": "true"}, False),
        ({"ansible_check_mode": True, "apply": "true"}, True),
        ({"ansible_check_mode": False, "apply": "false"}, True),
    ],
)
def test_it_is_dry_unless_told(variables: dict[str, Any], dry: bool) -> None:
    import jinja2

    env = jinja2.Environment(autoescape=False)
    env.filters["bool"] = lambda value: str(value).lower() in ("true", "yes", "1")
    (play,) = yaml.safe_load((ROOT / "playbooks/prune.yml").read_text(encoding="utf-8"))
    (task,) = play["tasks"]
    assert env.from_string(task["check_mode"]).render(variables) == str(dry)
