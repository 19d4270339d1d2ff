# SPDX-License-Identifier: Apache-2.0
"""Run the module balancer_server on the node, under the lease of this run.

Documentation: plugins/modules/balancer_server.py (`ansible-doc -t module instinct.fleet.balancer_server`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction


class ActionModule(LeasedAction):
    """balancer_server."""
