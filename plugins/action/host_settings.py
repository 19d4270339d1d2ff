# SPDX-License-Identifier: Apache-2.0
"""Run the module host_settings on the node, under the lease of this run.

Documentation: plugins/modules/host_settings.py (`ansible-doc -t module instinct.fleet.host_settings`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction


class ActionModule(LeasedAction):
    """host_settings."""
