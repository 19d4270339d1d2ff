# SPDX-License-Identifier: Apache-2.0
"""Have the module compare models with their manifests on the node, and verify the signatures here.

Documentation: plugins/modules/model_verify.py (`ansible-doc -t module instinct.fleet.model_verify`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.timed_action import TimedAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize import signature
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.public_key import (
    read_public_key,
    signed_by,
)


class ActionModule(TimedAction):
    """model_verify."""

    def call(self, args: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        """Return the module's result, or a failure that names the models whose signature is not valid."""
        try:
            key = read_public_key(str(args.get("public_key_file") or ""))
        except FleetError as error:
            return {"failed": True, "changed": False, "msg": str(error)}
        found = super().call(args, facts)
        if found.get("failed") or found.get("unreachable") or "models" not in found:
            return found
        models, problems = [], []
        for model in found["models"]:
            try:
                models.append(_verified(model, key))
            except (signature.BadSignature, FleetError) as error:
                problems.append(f"{model['path']}: {error}.")
        if problems:
            msg = f"{' '.join(problems)} Nothing was started from it. docs/quantize.md says how models are signed."
            return {**found, "models": models, "failed": True, "msg": msg}
        return {**found, "models": models}


def _verified(model: Mapping[str, Any], key: bytes) -> dict[str, Any]:
    """Return what is reported of a model. Raise BadSignature if a key is given that did not sign it."""
    mark = signed_by(key, model["signature"], model["statement"])
    return {"path": model["path"], "files": model["files"], "bytes": model["bytes"], "key": mark}
