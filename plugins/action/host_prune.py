# SPDX-License-Identifier: Apache-2.0
"""Run the module host_prune on the node, with what the lock file and the deployments refer to, and print the result.

Documentation: plugins/modules/host_prune.py (`ansible-doc -t module instinct.fleet.host_prune`).
"""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.vars import merge_hash
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.actions import size
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.prune_roots import (
    kept_images,
    kept_weights,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.variables import InventoryReader
from ansible_collections.instinct.fleet.plugins.plugin_utils.plan.lock_file import read_lock
from ansible_collections.instinct.fleet.plugins.plugin_utils.text import printable


class ActionModule(ActionBase):
    """host_prune."""

    TRANSFERS_FILES = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's own result."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        facts = task_vars or {}
        host = str(facts["inventory_hostname"])
        own = self._execute_module(module_args=self._arguments(host, facts), task_vars=task_vars)
        if not own.get("failed"):
            verb = "would remove" if self._task.check_mode else "removed"
            lines = [f"{host}: {verb} {size(own['bytes'])}", *(f"  {text}" for text in own["actions"])]
            text = "\n".join(lines if own["actions"] else [f"{host}: nothing to remove"])
            self._display.display(printable(text))
        merged: dict[str, Any] = merge_hash(result, own)
        return merged

    def _arguments(self, host: str, facts: dict[str, Any]) -> dict[str, Any]:
        given, reader = dict(self._task.args), InventoryReader(facts)
        try:
            lock = read_lock(reader.beside_inventory([host]) / "fleet.lock.json")
            deployments = reader.values(host, ("vllm_deployments",)).get("vllm_deployments") or ()
        except FleetError as error:
            raise AnsibleActionFail("\n".join(item.text() for item in error.problems)) from None
        return {
            **given,
            "images": [*(given.get("images") or ()), *kept_images(lock, deployments)],
            "weights": [*(given.get("weights") or ()), *kept_weights(lock)],
        }
