# SPDX-License-Identifier: Apache-2.0
"""Run the module rocm_partition on the node, no longer than its limits allow.

Documentation: plugins/modules/rocm_partition.py (`ansible-doc -t module instinct.fleet.rocm_partition`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.timed_action import TimedAction


class ActionModule(TimedAction):
    """rocm_partition."""
