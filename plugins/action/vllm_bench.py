# SPDX-License-Identifier: Apache-2.0
"""Run the module vllm_bench on the node, with the program that repeats a run.

Documentation: plugins/modules/vllm_bench.py (`ansible-doc -t module instinct.fleet.vllm_bench`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.program_action import ProgramAction


class ActionModule(ProgramAction):
    """vllm_bench."""
