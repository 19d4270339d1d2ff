# SPDX-License-Identifier: Apache-2.0
"""Run the module host_prune on the node, under the lease of this run, with what is referred to, and print the result.

Documentation: plugins/modules/host_prune.py (`ansible-doc -t module instinct.fleet.host_prune`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError, Problem
from ansible_collections.instinct.fleet.plugins.plugin_utils.catalog.checker import Checker
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.actions import size
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.inventory_check import conflict_problems
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.lockfile import LOCK
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.prune_roots import (
    kept_images,
    kept_weights,
    pushed_repositories,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.registry_override import (
    VARIABLE,
    parse_overrides,
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
        path, check = reader.beside_inventory([host]) / LOCK, Checker()
        try:
            if wrong := [*conflict_problems(reader, [host], self._loader)]:
                raise FleetError(wrong)
            self._look_for(path, facts)
            lock = read_lock(path)
            own = reader.values(host, ("vllm_deployments", VARIABLE))
            overrides = parse_overrides(check, own.get(VARIABLE) or {})
            if check.problems:
                raise FleetError(check.problems)
        except FleetError as error:
            raise AnsibleActionFail("\n".join(item.text() for item in error.problems)) from None
        deployments = own.get("vllm_deployments") or ()
        return {
            **given,
            "images": [*(given.get("images") or ()), *kept_images(lock, deployments)],
            "registry_override": {
                **(given.get("registry_override") or {}),
                **{rule.origin: rule.mirror for rule in overrides},
            },
            "push_repositories": [
                *(given.get("push_repositories") or ()),
                *pushed_repositories(lock, deployments),
            ],
            "weights": [*(given.get("weights") or ()), *kept_weights(lock, deployments)],
        }

    def _look_for(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Raise FleetError if the lock file is not there, and something would be removed."""
        if path.exists() or boolean(facts.get("no_lock") or False, strict=False):
            return
        what = (
            f"{path} is not there. Only its pins keep what hosts have in store and no instance runs yet, as of a "
            "bundle or of fetch.yml."
        )
        fix = (
            "Copy it there, give the inventory that it is beside (-i), or run plan.yml, which pins what is deployed. "
            "To remove what no deployment, generation or container refers to all the same: -e no_lock=true."
        )
        if not self._task.check_mode:
            raise FleetError([Problem((), f"{what} Nothing was removed.", fix)])
        self._display.warning(f"{what} With -e apply=true this run is refused. {fix}")
