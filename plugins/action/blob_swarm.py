# SPDX-License-Identifier: Apache-2.0
"""Run the module blob_swarm on the node, with the program that moves blobs between nodes.

Documentation: plugins/modules/blob_swarm.py (`ansible-doc -t module instinct.fleet.blob_swarm`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.program_action import ProgramAction


class ActionModule(ProgramAction):
    """blob_swarm."""
