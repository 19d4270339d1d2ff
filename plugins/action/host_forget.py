# SPDX-License-Identifier: Apache-2.0
"""Run the module host_forget on the node, under the lease of this run, and print what was removed and what stays.

Documentation: plugins/modules/host_forget.py (`ansible-doc -t module instinct.fleet.host_forget`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.text import printable
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import InventoryReader
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving.host_references import (
    host_references,
)


class ActionModule(LeasedAction):
    """host_forget."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's own result, and print it."""
        result = super().run(tmp, task_vars)
        if not result.get("failed"):
            host, check = self._host(task_vars or {}), self._task.check_mode
            found = (
                (f"{host}: {'would do' if check else 'done'}", result["actions"]),
                (f"{host}: {'would stay' if check else 'stays'}", result["left"]),
            )
            lines = [
                line for head, texts in found if texts for line in (head, *(f"  {text}" for text in texts))
            ]
            lines = lines if result["actions"] else [f"{host}: nothing to remove", *lines]
            self._display.display(printable("\n".join(lines)))
        return result

    def arguments(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the module's parameters, with the names by which it knows the toolkit's images."""
        given = dict(self._task.args)
        try:
            there = host_references(InventoryReader(facts), str(facts["inventory_hostname"]), self._loader)
        except FleetError as error:
            raise AnsibleActionFail("\n".join(item.text() for item in error.problems)) from None
        return {**given, **there.image_names(given)}
