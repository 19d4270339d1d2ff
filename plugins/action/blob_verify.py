# SPDX-License-Identifier: Apache-2.0
"""Run the module blob_verify on the node, under the lease of this run.

Documentation: plugins/modules/blob_verify.py (`ansible-doc -t module instinct.fleet.blob_verify`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction


class ActionModule(LeasedAction):
    """blob_verify."""
