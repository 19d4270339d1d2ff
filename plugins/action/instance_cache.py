# SPDX-License-Identifier: Apache-2.0
"""Run the module instance_cache on the node, with the bundles that the control node has, or for them.

Documentation: plugins/modules/instance_cache.py (`ansible-doc -t module instinct.fleet.instance_cache`).
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.cache_action import CacheAction


class ActionModule(CacheAction):
    """instance_cache."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what was packed or restored."""
        result: dict[str, Any] = ActionBase.run(self, tmp, task_vars)
        facts, args = task_vars or {}, self.arguments(task_vars or {})
        work = {"packed": self.packed, "restored": self.restored}.get(str(args.get("state")))
        if work is None or not isinstance(args.get("instances"), list):
            return {
                **result,
                **self.call({**args, "lease": self._lease(facts)}, facts),
            }  # the module says why
        return {**result, **work(args["instances"], facts, args.get("limit"))}
