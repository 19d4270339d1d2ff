# SPDX-License-Identifier: Apache-2.0
"""Record why a setting has its value, and the source."""

from __future__ import annotations

from dataclasses import dataclass

from ...base.json_record import JsonRecord, Text
from .deployment import Deployment

VLLM_CLI = "vllm-cli"
VLLM_ENV = "vllm-env-docs"
VLLM_ROCM = "vllm-docs-rocm"
VLLM_COMPILE = "vllm-compile-cache"
VLLM_STARTUP_PLAN = "vllm-startup-plan"
VLLM_LOADER = "vllm-weight-loader"
HUB_ENV = "hub-env-docs"
ISOLATION = "rocm-gpu-isolation"
"""Sources of the toolkit's own decisions; keys of catalog/sources.yml."""


@dataclass(frozen=True)
class Reason(JsonRecord):
    """Why a setting has its value.

    source: a key of catalog/sources.yml, with text to search for after a "#"; or a key of the inventory, or
    fleet.lock.json.
    """

    setting: str
    value: str
    reason: Text
    source: Text


def deployment_key(deployment: Deployment, *keys: str) -> str:
    """Return a deployment's key as a source.

    It has the deployment's name instead of its list index, so that a plan does not depend on the order of its input.
    """
    return f"deployment {deployment.name}: {'.'.join(keys)}"
