# SPDX-License-Identifier: Apache-2.0
"""Run the module kernel_cmdline on the node, under the lease of this run.

Documentation: plugins/modules/kernel_cmdline.py (`ansible-doc -t module instinct.fleet.kernel_cmdline`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction


class ActionModule(LeasedAction):
    """kernel_cmdline."""
