# SPDX-License-Identifier: Apache-2.0
"""Find the model to quantize: a path of the host, or a commit of the hub as the role hf_model downloads it.

Documentation: plugins/modules/quantize_source.py (`ansible-doc -t module instinct.fleet.quantize_source`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError, Problem
from ansible_collections.instinct.fleet.plugins.module_utils.common.paths import HF_CACHE
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import ControllerAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.source import find_source
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import InventoryReader
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving.registry import (
    ResolveError,
    model_pin,
)

VARIABLES = ("hf_model_cache_dir", "hf_model_endpoint")


class ActionModule(ControllerAction):
    """quantize_source."""

    options: ClassVar = {
        "source": {"type": "str", "required": True},
        "revision": {"type": "str", "default": "main"},
        "image": {"type": "str", "required": True},
        "include": {"type": "list", "elements": "str", "default": []},
    }

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return path and models."""
        host, reader = str(facts["inventory_hostname"]), InventoryReader(facts)
        own = reader.values(host, VARIABLES)
        wrong = list(reader.clear_text_tokens([host]))
        if wrong:
            raise FleetError(wrong)

        def ask(repo: str, revision: str, endpoint: str) -> Any:
            path = ("quantize_source",)
            try:
                return model_pin(repo, revision, path, endpoint, reader.token(host))
            except ResolveError as error:
                raise FleetError([error.problem]) from None

        if not options["image"]:
            what = "no instance of the plan is on this host, so no image is known."
            raise FleetError([Problem(("quantize_image",), what, "Name an image that is there.")])
        return find_source(
            options,
            str(own.get("hf_model_cache_dir") or HF_CACHE),
            str(own.get("hf_model_endpoint") or ""),
            ask,
            reader.registered(host, "node_state_result").get("node_state", {}).get("models") or (),
        )
