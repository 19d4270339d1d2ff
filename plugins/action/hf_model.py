# SPDX-License-Identifier: Apache-2.0
"""Run the module hf_model on the node, with the program that downloads in a container.

Documentation: plugins/modules/hf_model.py (`ansible-doc -t module instinct.fleet.hf_model`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.program_action import ProgramAction


class ActionModule(ProgramAction):
    """hf_model."""
