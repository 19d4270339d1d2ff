# SPDX-License-Identifier: Apache-2.0
"""Run a module on the node under the lease of this run; `meta/runtime.yml` lists the modules.

Their documentation is in plugins/modules/ (`ansible-doc -t module instinct.fleet.blob_fetch`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction


class ActionModule(LeasedAction):
    """The action of each module that is routed here."""
