# SPDX-License-Identifier: Apache-2.0
"""What a report of benchmarks takes from hosts' variables: results, the plan, and the secrets to mask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ....module_utils.common.redact import MIN_LENGTH
from .summary import BATCHES, REGISTERED, STATES

SECRETS = ("hf_model_token", "hf_model_token_file", "vllm_image_registries")
VARIABLES = (*REGISTERED, BATCHES, *STATES, "fleet_plan_result", *SECRETS)
"""Variables of hosts that a report takes into account."""


def last_plan(hosts: Iterable[Mapping[str, Any]]) -> Any:
    """Return the last plan that fleet_plan registered; None when there is none.

    Hosts that were not planned again have the first plan, a partial one.
    """
    plans = (own["fleet_plan_result"].get("plan") for own in hosts if own.get("fleet_plan_result"))
    return min(
        (plan for plan in plans if plan), key=lambda plan: len(plan.get("partial") or ()), default=None
    )


def inventory_secrets(hosts: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return secrets of the inventory by value, so that no result can carry one wherever it turns up."""
    found: set[str] = set()
    for own in hosts:
        found.add(str(own.get("hf_model_token") or ""))
        registries = own.get("vllm_image_registries") or {}
        found |= {str(item.get("password") or "") for item in registries.values()}
        if own.get("hf_model_token_file"):
            try:
                found.add(Path(str(own["hf_model_token_file"])).expanduser().read_text("utf-8"))
            except OSError:
                continue  # if so, nobody could use it either
    return {secret.strip() for secret in found if len(secret.strip()) >= MIN_LENGTH}
