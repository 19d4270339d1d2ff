# SPDX-License-Identifier: Apache-2.0
"""A data set of the control node is copied to a node for root alone: it may be the users' own texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ansible_collections.instinct.fleet.plugins.action.vllm_bench import ActionModule


def test_only_root_reads_a_data_set_on_a_node() -> None:
    copied: list[dict[str, Any]] = []

    def get(_name: str, task: Any, **_more: Any) -> Any:
        return SimpleNamespace(run=lambda task_vars: copied.append(task.args) or {"changed": True})

    plugin = object.__new__(ActionModule)
    plugin._task = SimpleNamespace(copy=SimpleNamespace)  # type: ignore[assignment]
    plugin._shared_loader_obj = SimpleNamespace(action_loader=SimpleNamespace(get=get))
    plugin._connection = plugin._play_context = plugin._loader = plugin._templar = None
    data = SimpleNamespace(path="/data/chats.json", directory="/var/lib/instinct-fleet/dataset/12ab")
    assert plugin._copied(data, {}) is None  # type: ignore[arg-type]
    (args,) = copied
    assert args["dest"] == "/var/lib/instinct-fleet/dataset/12ab/"
    assert (args["owner"], args["mode"], args["directory_mode"]) == ("root", "0600", "0700")
