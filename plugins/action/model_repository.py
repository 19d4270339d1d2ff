# SPDX-License-Identifier: Apache-2.0
"""Verify the signature of a received model here, and have the module give it its path on the node.

Documentation: plugins/modules/model_repository.py (`ansible-doc -t module instinct.fleet.model_repository`).
"""

from __future__ import annotations

from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.timed_action import TimedAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize import signature
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.public_key import (
    read_public_key,
    signed_by,
)


class ActionModule(TimedAction):
    """model_repository."""

    def call(self, args: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        """Return the module's result, or a failure that says why the model is not trusted."""
        try:
            key = read_public_key(str(args.get("public_key_file") or ""))
            found = super().call({**args, "step": "read"}, facts)
            if "statement" not in found:  # it failed, or was only predicted
                return found
            mark = signed_by(key, found["signature"], found["statement"])
        except (signature.BadSignature, FleetError) as error:
            msg = (
                f"{args.get('path')}: {str(error).rstrip('.')}. It was received, but is not visible here. "
                "Sign it where it was made (quantize.yml with quantize_signing_key_file), and run again."
            )
            return {"failed": True, "changed": False, "msg": msg}
        return {**super().call({**args, "step": "place"}, facts), "key": mark}
