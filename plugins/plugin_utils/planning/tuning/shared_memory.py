# SPDX-License-Identifier: Apache-2.0
"""Warn of a container's shared memory that is too small for its workers, or is not its own. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...knowledge.catalog.recipes import Recipe, statement
from ..desired.actions import size
from ..desired.deployment import Deployment
from ..desired.deployment_parts import Runtime

ENOUGH = Runtime.shm_size


def shared_memory(deployment: Deployment, recipes: Sequence[Recipe]) -> tuple[str, ...]:
    """Return the warning about runtime.shm_size, if there is one."""
    runtime = deployment.runtime
    if runtime.shm_size == ENOUGH:
        return ()
    key = f"runtime.shm_size: {size(runtime.shm_size)}"
    if runtime.ipc == "host":
        what = "has no effect with ipc: host, where the container has the host's /dev/shm"
        return (f"{key} {what}. Remove it, or set ipc: private.",)
    if deployment.gpus_per_node == 1 or runtime.shm_size > ENOUGH:
        return ()
    said = statement(recipes, "shared-memory")
    fix = f"Set it to {size(ENOUGH)}, or leave it out"
    return (
        f"{key} may be too little for {deployment.gpus_per_node} workers. {said.text} {fix}. [{said.source}]",
    )
