# SPDX-License-Identifier: Apache-2.0
"""Classes of failures that say nothing about a release: something around it failed. Pure."""

from __future__ import annotations

from ...module_utils.service.endpoint import BALANCER, NOT_IN_SERVICE

STEP = "step"
"""The class of a failed step that says nothing about instances: a time-out, a lost connection, a module's own error."""

CLASSES = frozenset(
    (
        "infrastructure",  # a canary whose state could not be determined
        STEP,
        BALANCER,
        NOT_IN_SERVICE,  # of an instance that answers when it is asked directly (rollout_run/failures.py)
        "waiting",  # for GPU memory or other hosts: vLLM was not started
        "gpu_not_clean",
        "peer_lost",
        "docker",
        "cannot_stop",
        "cannot_remove",
        "files",
        "disk_full",
        "port_in_use",
        "image_missing",
        "no_device",
        "supervisor_missing",
        "secrets_missing",
        "removed",
        "other_run",
        "stale_plan",
        "record",
    )
)
"""Classes of instances (`servers[].class` of vllm_server), of other modules, and of a run that gives way to another.

What a release may have caused itself is not among them, such as missing weights, which its patterns may exclude.
"""
