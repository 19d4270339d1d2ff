# SPDX-License-Identifier: Apache-2.0
"""Decide what load balancers' answers mean for a run; read their results, and decide nothing here.

Documentation: plugins/modules/balancer_verdict.py (`ansible-doc -t module instinct.fleet.balancer_verdict`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.answers import answers_of


class ActionModule(ControllerAction):
    """balancer_verdict."""

    options: ClassVar = {
        "results": {"type": "list", "elements": "dict", "required": True},
        "by": {"type": "str", "choices": ["operator", "run"], "default": "run"},
    }

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the load balancers that did not answer; fail if none did, or if the operator wants all."""
        found = answers_of(options["results"])
        # A query before anything is set must not end a run that one load balancer is enough for.
        by = "run" if self._task.check_mode else options["by"]
        problem = found.problem(by)
        result = {"changed": False, "lost": dict(found.lost), "warnings": found.warnings(by)}
        return {**result, "failed": True, "msg": problem, "class": found.failure_class} if problem else result
