# SPDX-License-Identifier: Apache-2.0
"""Run the module image_push on the node, under the lease of this run.

Documentation: plugins/modules/image_push.py (`ansible-doc -t module instinct.fleet.image_push`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction


class ActionModule(LeasedAction):
    """image_push."""
