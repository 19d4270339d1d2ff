# SPDX-License-Identifier: Apache-2.0
"""Run the module rocm_partition on the node, with the program that sets partition modes at boot.

Documentation: plugins/modules/rocm_partition.py (`ansible-doc -t module instinct.fleet.rocm_partition`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.program_action import ProgramAction


class ActionModule(ProgramAction):
    """rocm_partition."""
