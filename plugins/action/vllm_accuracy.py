# SPDX-License-Identifier: Apache-2.0
"""Run the module vllm_accuracy on the node, with the items for its instances to answer.

Documentation: plugins/modules/vllm_accuracy.py (`ansible-doc -t module instinct.fleet.vllm_accuracy`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions import bytecode  # before all others  # noqa: F401  # pylint: disable=unused-import
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.timed_action import TimedAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.files import CATALOG
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import Knowledge
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.scoring import (
    ANSWER_TOKENS,
    parse_items,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.accuracy.tasks import (
    interleave_categories,
    parse_tasks,
    serving_replicas,
    share,
)


class ActionModule(TimedAction):
    """vllm_accuracy."""

    def arguments(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the task's arguments, with the items of each instance and the passages."""
        given = super().arguments(facts)
        knowledge = Knowledge(CATALOG)
        sets = parse_tasks(given.get("sets") or ("sanity", "nll"), knowledge.accuracy["sets"])
        items = parse_items(knowledge.accuracy_set("sanity")) if "sanity" in sets else ()
        passages = knowledge.accuracy_set("nll").splitlines() if "nll" in sets else []
        hosts = ((facts.get("fleet_plan_result") or {}).get("plan") or {}).get("hosts") or {}
        prompts = {}
        for target in given.get("targets") or ():
            if boolean(given.get("divide", True)):
                replicas = serving_replicas(hosts, target["deployment"])
                own = share(items, replicas, (self._host(dict(facts)), target["name"]))
            else:
                own = interleave_categories(items)
            prompts[target["name"]] = [{"id": item.id, "text": item.prompt} for item in own]
        work = {
            "prompts": prompts,
            "passages": [json.loads(line) for line in passages],
            "tokens": ANSWER_TOKENS,
        }
        return {**given, "work": work}
