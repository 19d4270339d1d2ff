# SPDX-License-Identifier: Apache-2.0
"""Run the module numa_balancing on the node, under the lease of this run.

Documentation: plugins/modules/numa_balancing.py (`ansible-doc -t module instinct.fleet.numa_balancing`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction


class ActionModule(LeasedAction):
    """numa_balancing."""
