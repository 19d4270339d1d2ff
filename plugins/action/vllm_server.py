# SPDX-License-Identifier: Apache-2.0
"""Run the module vllm_server on the node, with the program that its containers run around vLLM.

Documentation: plugins/modules/vllm_server.py (`ansible-doc -t module instinct.fleet.vllm_server`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.program_action import ProgramAction


class ActionModule(ProgramAction):
    """vllm_server."""
