# SPDX-License-Identifier: Apache-2.0
"""Run a module on the node under the lease of this run, within its time limit, and with its program if it has one.

`meta/runtime.yml` lists the modules; their documentation is in plugins/modules/ (`ansible-doc -t module
instinct.fleet.hf_model`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.program_action import ProgramAction


class ActionModule(ProgramAction):
    """The action of each module that is routed here."""
