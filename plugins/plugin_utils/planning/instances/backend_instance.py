# SPDX-License-Identifier: Apache-2.0
"""Describe an instance for load balancers."""

from __future__ import annotations

from collections.abc import Mapping

from ....module_utils.service.generations import BackendInstance
from ..desired.deployment import Deployment
from ..tuning.companion_models import adapter_of
from .compose import Instance

# Requests sent to an instance at once if its max_num_seqs is unknown: vLLM's default with 70 GiB and more. Source:
# vllm/engine/arg_utils.py, get_batch_defaults.
REQUESTS = 1024


def backend_instance(instance: Instance) -> BackendInstance:
    """Return the description of an instance for load balancers."""
    return BackendInstance(
        name=instance.name,
        deployment=instance.deployment.name,
        models=models_of(instance),
        listen=instance.listen,
        port=instance.slot.port,
        ports=instance.slot.ports,
        limit=request_limit(instance),
        headless=instance.headless,
        endpoint=instance.deployment.endpoint,
        path=instance.deployment.path,
        weight=instance.deployment.weight,
    )


def models_of(instance: Instance) -> tuple[str, ...]:
    """Return the model names that clients may request from an instance: the served names and its LoRA adapters."""
    return tuple(served_models(instance.deployment))


def served_models(deployment: Deployment) -> dict[str, tuple[str, str]]:
    """Return what serves each model name that clients may request: the model, and a LoRA adapter or ""."""
    names = (deployment.served_model_name, *deployment.other_names)
    found = dict.fromkeys(names, (deployment.model, ""))
    modules = dict(deployment.engine_args).get("lora_modules")
    for item in modules if isinstance(modules, (list, tuple)) else [modules] if modules else []:
        name = item.get("name") if isinstance(item, Mapping) else str(item).partition("=")[0]
        if name:
            found.setdefault(str(name), (deployment.model, adapter_of(item)))
    return found


def request_limit(item: Instance) -> int:
    """Return how many requests an instance processes at once; others wait in the balancer for a free instance."""
    value = item.tuned.args.get("--max-num-seqs")
    ranks = item.deployment.data_parallel_size if item.deployment.data_parallel_balancing == "internal" else 1
    return (value if isinstance(value, int) and value > 0 else REQUESTS) * ranks
