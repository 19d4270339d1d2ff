# SPDX-License-Identifier: Apache-2.0
"""Run the module vllm_image on the node, with the program that says what is in an image.

Documentation: plugins/modules/vllm_image.py (`ansible-doc -t module instinct.fleet.vllm_image`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.program_action import ProgramAction


class ActionModule(ProgramAction):
    """vllm_image."""
