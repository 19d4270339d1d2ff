# SPDX-License-Identifier: Apache-2.0
"""Run the module host_prune on the node, under the lease of this run, with what is referred to, and print the result.

Documentation: plugins/modules/host_prune.py (`ansible-doc -t module instinct.fleet.host_prune`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.actions import size
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.inventory_check import conflict_problems
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.prune_roots import (
    kept_images,
    kept_weights,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.variables import InventoryReader
from ansible_collections.instinct.fleet.plugins.plugin_utils.leased_action import LeasedAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.plan.lock_file import read_lock
from ansible_collections.instinct.fleet.plugins.plugin_utils.text import printable


class ActionModule(LeasedAction):
    """host_prune."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's own result, and print it."""
        result = super().run(tmp, task_vars)
        if not result.get("failed"):
            host = self._host(task_vars or {})
            verb = "would remove" if self._task.check_mode else "removed"
            lines = [f"{host}: {verb} {size(result['bytes'])}", *(f"  {text}" for text in result["actions"])]
            text = "\n".join(lines if result["actions"] else [f"{host}: nothing to remove"])
            self._display.display(printable(text))
        return result

    def arguments(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the module's parameters, with what stays."""
        host, given, reader = str(facts["inventory_hostname"]), dict(self._task.args), InventoryReader(facts)
        try:
            if wrong := [*conflict_problems(reader, [host], self._loader)]:
                raise FleetError(wrong)
            lock = read_lock(reader.beside_inventory([host]) / "fleet.lock.json")
            deployments = reader.values(host, ("vllm_deployments",)).get("vllm_deployments") or ()
        except FleetError as error:
            raise AnsibleActionFail("\n".join(item.text() for item in error.problems)) from None
        return {
            **given,
            "images": [*(given.get("images") or ()), *kept_images(lock, deployments)],
            "weights": [*(given.get("weights") or ()), *kept_weights(lock, deployments)],
        }
