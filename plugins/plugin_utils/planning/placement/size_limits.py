# SPDX-License-Identifier: Apache-2.0
"""Find deployments whose sizes no host can serve, and suggest sizes that work."""

from __future__ import annotations

from ....module_utils.common.errors import Problem
from ..desired.deployment import Deployment
from .host_gpus import HostGpus


def size_problems(deployment: Deployment) -> list[Problem]:
    """Return a problem for sizes that no host can serve."""
    path, nodes, size = deployment.path, deployment.nodes, deployment.gpus_per_node
    tensor, data = deployment.tensor_parallel_size, deployment.data_parallel_size
    if data > 1 and data % nodes:
        what = (
            f"{data} data parallel ranks cannot be divided over {nodes} nodes, and none may span two hosts."
        )
        return [Problem((*path, "data_parallel_size"), what, f"Make it a multiple of {nodes}.")]
    if size % tensor and tensor % size:
        what = (
            f"tensor parallel groups of {tensor} would be split unevenly across hosts: each has {size} GPUs."
        )
        return [Problem((*path, "tensor_parallel_size"), what, "Make one a multiple of the other.")]
    return []


def too_many_gpus(deployment: Deployment, there: HostGpus) -> Problem:
    """Return the problem of a deployment that needs more GPUs than the host has, or than XGMI connects.

    The problem suggests what would fit.
    """
    count, given = deployment.instances_per_host or 1, deployment.gpus
    size = deployment.gpus_per_node
    need, have = -(-count // deployment.instances_per_gpu) * size, len(given or there.gpus)
    sizes = [
        f"{key} {value}"
        for key, value in (
            ("tensor_parallel_size", deployment.tensor_parallel_size),
            ("pipeline_parallel_size", deployment.pipeline_parallel_size),
            ("data_parallel_size", deployment.data_parallel_size),
        )
        if value > 1
    ]
    product = " x ".join(sizes) or "tensor_parallel_size 1"
    if deployment.nodes > 1:
        product += f" over {deployment.nodes} nodes"
    key = "instances_per_host" if count > 1 else sizes[0].split()[0] if sizes else "instances_per_host"
    subject = f"{count} instances with {product} need" if count > 1 else f"{product} needs"
    source = f"gpus names {have}" if given is not None else f"the host has {there.text}"
    ways = [f"Lower {key}"]
    ways += ["name more GPUs"] if given is not None else []
    if need <= have:
        source += ", too few of them joined by XGMI"
    elif given is None and count == deployment.nodes == 1:
        ways += _over_hosts(deployment, have)
    fix = f"{', or '.join(ways)}."
    return Problem((*deployment.path, key), f"{subject} {need} GPUs, and {source}.", fix)


def _over_hosts(deployment: Deployment, have: int) -> list[str]:
    """Suggest how to divide an instance that is too large for one host over the fewest hosts with as many GPUs."""
    world, tensor = deployment.world_size, deployment.tensor_parallel_size
    ranks = deployment.data_parallel_size
    fitting = (
        nodes
        for nodes in range(2, world + 1)
        if world % nodes == 0 and world // nodes <= have and (ranks == 1 or ranks % nodes == 0)
    )
    nodes = next(fitting, None)
    if nodes is None:
        return []
    if tensor == world and tensor // nodes > 1:  # tensor parallel groups must stay within a host
        keys = f"nodes: {nodes}, tensor_parallel_size: {tensor // nodes}, pipeline_parallel_size: {nodes}"
        return [f"divide it over hosts ({keys})"]
    return [f"divide it over hosts (nodes: {nodes})"]
