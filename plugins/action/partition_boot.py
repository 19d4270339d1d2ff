# SPDX-License-Identifier: Apache-2.0
"""Run the module partition_boot on the node, with the program that sets partition modes at boot.

Documentation: plugins/modules/partition_boot.py (`ansible-doc -t module instinct.fleet.partition_boot`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.program_action import ProgramAction


class ActionModule(ProgramAction):
    """partition_boot."""
