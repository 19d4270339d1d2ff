# SPDX-License-Identifier: Apache-2.0
"""What a load balancer needs to know of an instance."""

from __future__ import annotations

from collections.abc import Mapping

from ...module_utils.common.generations import Offered
from .compose import Instance

# Requests that an instance gets at once when its max_num_seqs is not known: vLLM's default with 70 GiB and more.
# Source: vllm/engine/arg_utils.py, get_batch_defaults.
REQUESTS = 1024


def offered(instance: Instance) -> Offered:
    """What a balancer needs to know of an instance."""
    return Offered(
        name=instance.name,
        deployment=instance.deployment.name,
        models=models_of(instance),
        listen=instance.listen,
        port=instance.slot.port,
        ports=instance.slot.ports,
        limit=limit_of(instance),
        headless=instance.headless,
        endpoint=instance.deployment.endpoint,
        path=instance.deployment.path,
    )


def models_of(instance: Instance) -> tuple[str, ...]:
    """The names that clients ask an instance for: the served name and its LoRA adapters."""
    names = [instance.deployment.served_model_name]
    modules = dict(instance.deployment.engine_args).get("lora_modules")
    for item in modules if isinstance(modules, (list, tuple)) else [modules] if modules else []:
        name = item.get("name") if isinstance(item, Mapping) else str(item).partition("=")[0]
        if name and name not in names and not str(name).startswith("{"):
            names.append(str(name))
    return tuple(names)


def limit_of(item: Instance) -> int:
    """Requests that an instance can work on at once; more of them wait in the balancer, for whichever is free first."""
    value = item.tuned.args.get("max_num_seqs")
    ranks = item.deployment.data_parallel_size if item.deployment.data_parallel_balancing == "internal" else 1
    return (value if isinstance(value, int) and value > 0 else REQUESTS) * ranks
