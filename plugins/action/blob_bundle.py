# SPDX-License-Identifier: Apache-2.0
"""Run the module blob_bundle on the node, under the lease of this run.

Documentation: plugins/modules/blob_bundle.py (`ansible-doc -t module instinct.fleet.blob_bundle`).
"""

from __future__ import annotations

from ansible_collections.instinct.fleet.plugins.plugin_utils.leased_action import LeasedAction


class ActionModule(LeasedAction):
    """blob_bundle."""
