# SPDX-License-Identifier: Apache-2.0
"""Run the module serving_generation on the node, under the lease of this run.

Documentation: plugins/modules/serving_generation.py (`ansible-doc -t module instinct.fleet.serving_generation`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction


class ActionModule(LeasedAction):
    """serving_generation."""
