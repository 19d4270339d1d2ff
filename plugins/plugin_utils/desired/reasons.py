# SPDX-License-Identifier: Apache-2.0
"""Why a setting has its value, and who says so."""

from __future__ import annotations

from dataclasses import dataclass

from .deployment import Deployment

VLLM_CLI = "vllm-cli"
VLLM_ENV = "vllm-env-docs"
VLLM_ROCM = "vllm-docs-rocm"
HUB_ENV = "hub-env-docs"
ISOLATION = "rocm-gpu-isolation"
"""Sources of what the toolkit itself decides; keys of catalog/sources.yml."""


@dataclass(frozen=True)
class Reason:
    """Why a setting has its value.

    source: a key of catalog/sources.yml, with what to look for behind a "#"; or a key of the inventory, or
    fleet.lock.json.
    """

    setting: str
    value: str
    reason: str
    source: str

    def to_json(self) -> dict[str, str]:
        """Return an entry of `reasons` in plan.json."""
        return {
            "setting": self.setting,
            "value": self.value,
            "reason": self.reason,
            "source": self.source,
        }


def deployment_key(deployment: Deployment, *keys: str) -> str:
    """A key of a deployment as a source.

    By name, not by place in the list: a plan does not depend on the order of its input.
    """
    return f"deployment {deployment.name}: {'.'.join(keys)}"
