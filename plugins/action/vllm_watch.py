# SPDX-License-Identifier: Apache-2.0
"""Run the module vllm_watch on the node, with other runs kept away.

Documentation: plugins/modules/vllm_watch.py (`ansible-doc -t module instinct.fleet.vllm_watch`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction


class ActionModule(LeasedAction):
    """vllm_watch."""

    changes = False
