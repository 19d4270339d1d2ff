# SPDX-License-Identifier: Apache-2.0
"""Refuse variables behind -e that look like slips; every other plugin of this toolkit does so by the way.

Documentation: plugins/modules/extra_variables.py (`ansible-doc -t module instinct.fleet.extra_variables`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.action_base import ControllerAction


class ActionModule(ControllerAction):
    """extra_variables."""

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing is left to do: run() has looked."""
        del options, facts
        return {"changed": False}
