# SPDX-License-Identifier: Apache-2.0
"""Run the module host_facts on the node, and compare the node's clock with this machine's.

Documentation: plugins/modules/host_facts.py (`ansible-doc -t module instinct.fleet.host_facts`).
"""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.hardware_checks import (
    clock_ahead,
)


class ActionModule(ActionBase):
    """host_facts."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result, with how far the node's clock is ahead."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        begun = time.time()
        result.update(self._execute_module(task_vars=task_vars))
        facts = result.get("host_facts")
        if isinstance(facts, dict):
            facts["clock_ahead"] = clock_ahead(begun, facts.get("time"), time.time())
        return result
