# SPDX-License-Identifier: Apache-2.0
"""Run the module haproxy_config on the node, under the lease of this run.

Documentation: plugins/modules/haproxy_config.py (`ansible-doc -t module instinct.fleet.haproxy_config`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction


class ActionModule(LeasedAction):
    """haproxy_config."""
