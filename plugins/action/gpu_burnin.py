# SPDX-License-Identifier: Apache-2.0
"""Run the module gpu_burnin on the node, with the program that tests the GPUs.

Documentation: plugins/modules/gpu_burnin.py (`ansible-doc -t module instinct.fleet.gpu_burnin`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.program_action import ProgramAction


class ActionModule(ProgramAction):
    """gpu_burnin."""

    changes = False
