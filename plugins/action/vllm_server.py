# SPDX-License-Identifier: Apache-2.0
"""Run the module vllm_server on the node, with the program that its containers run around vLLM, and their secrets.

Documentation: plugins/modules/vllm_server.py (`ansible-doc -t module instinct.fleet.vllm_server`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.cache_action import CacheAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.program_action import ProgramAction


class ActionModule(ProgramAction, CacheAction):
    """vllm_server."""

    def arguments(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Add the secret variables of the servers' deployments.

        No plan contains them, so they come from the inventory.
        """
        found = super().arguments(facts)
        servers = [item for item in found.get("servers") or () if item.get("secrets")]
        if servers:
            from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.secret_variables import (
                secret_sets,
            )

            deployments = facts["hostvars"][facts["inventory_hostname"]]["vllm_deployments"]
            found["secrets"] = secret_sets(servers, deployments)
        return found

    def call(self, args: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        """Restore recorded caches of what starts, then return the module's own result."""
        starts = args.get("state") in (None, "present") and isinstance(args.get("servers"), list)
        caches = self.restored(args["servers"], facts) if starts else {}
        own = super().call(args, facts)
        for name in ("actions", "warnings"):
            if caches.get(name):
                own[name] = [*caches[name], *(own.get(name) or ())]
        own["changed"] = bool(own.get("changed") or caches.get("changed"))
        return own
