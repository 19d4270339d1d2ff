# SPDX-License-Identifier: Apache-2.0
"""Run the module balancer_server on the node, under the lease of this run.

Documentation: plugins/modules/balancer_server.py (`ansible-doc -t module instinct.fleet.balancer_server`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.unknown_variables import (
    FORMER,
)


class ActionModule(LeasedAction):
    """balancer_server."""

    def arguments(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the module's other parameters. Raise AnsibleActionFail for former names of the operator's variables.

        The plan refuses former names that no file of group_vars or host_vars sets. drain.yml makes no plan, and would
        drain more than such a limit allows.
        """
        wrong = [f"{name}: is now called {FORMER[name]}. Rename it." for name in FORMER if name in facts]
        if wrong:
            raise AnsibleActionFail(" ".join(["Nothing was done.", *wrong]))
        return super().arguments(facts)
