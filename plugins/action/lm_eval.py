# SPDX-License-Identifier: Apache-2.0
"""Run the module lm_eval on the node, with the items for its instances to answer.

Documentation: plugins/modules/lm_eval.py (`ansible-doc -t module instinct.fleet.lm_eval`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions import bytecode  # before all others  # noqa: F401  # pylint: disable=unused-import
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.timed_action import TimedAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.tasks import (
    serving_replicas,
    share,
)


class ActionModule(TimedAction):
    """lm_eval."""

    def arguments(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the task's arguments, with the items of each instance."""
        given = super().arguments(facts)
        hosts = ((facts.get("fleet_plan_result") or {}).get("plan") or {}).get("hosts") or {}
        work = {}
        for target in given.get("targets") or ():
            replicas = serving_replicas(hosts, target["deployment"])
            own = (self._host(dict(facts)), target["name"])
            work[target["name"]] = {
                task["title"]: share(range(int(task["items"])), replicas, own)
                for task in given.get("tasks") or ()
            }
        return {**given, "work": work}
