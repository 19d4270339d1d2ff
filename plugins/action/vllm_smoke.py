# SPDX-License-Identifier: Apache-2.0
"""Run the module vllm_smoke on the node, with other runs kept away.

Documentation: plugins/modules/vllm_smoke.py (`ansible-doc -t module instinct.fleet.vllm_smoke`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction


class ActionModule(LeasedAction):
    """vllm_smoke."""

    changes = False
