# SPDX-License-Identifier: Apache-2.0
"""Run the module host_prune on the node, under the lease of this run, with what must stay, and print the result.

Documentation: plugins/modules/host_prune.py (`ansible-doc -t module instinct.fleet.host_prune`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError, Problem
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.text import printable
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.actions import size
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import InventoryReader
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.prune_roots import (
    kept_images,
    kept_weights,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving.host_references import (
    host_references,
)


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
        host, given = str(facts["inventory_hostname"]), dict(self._task.args)
        try:
            there = host_references(InventoryReader(facts), host, self._loader)
            self._look_for(there.path, facts)
        except FleetError as error:
            raise AnsibleActionFail("\n".join(item.text() for item in error.problems)) from None
        return {
            **given,
            **there.image_names(given),
            "images": [*(given.get("images") or ()), *kept_images(there.lock, there.deployments)],
            "weights": [*(given.get("weights") or ()), *kept_weights(there.lock, there.deployments)],
        }

    def _look_for(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Raise FleetError if the lock file is not there, and something would be removed."""
        if path.exists() or boolean(facts.get("no_lock") or False, strict=False):
            return
        what = (
            f"{path} is not there. Only its pins keep content that hosts store and no instance runs yet, "
            "such as that of a "
            "bundle or of fetch.yml."
        )
        fix = (
            "Copy it there, give the inventory that it is next to (-i), or run plan.yml, which pins what is deployed. "
            "To remove what no deployment, generation or container refers to anyway: -e no_lock=true."
        )
        if not self._task.check_mode:
            raise FleetError([Problem((), f"{what} Nothing was removed.", fix)])
        self._display.warning(f"{what} With -e apply=true this run is refused. {fix}")
