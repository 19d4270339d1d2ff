# SPDX-License-Identifier: Apache-2.0
"""List what a plan made offline assumes: facts that only the host knows, and the actions that depend on them."""

from __future__ import annotations

from dataclasses import dataclass

from ...base.json_record import JsonRecord
from ...knowledge.catalog.gpus import GpuCatalog
from ..desired.fleet import Host


@dataclass(frozen=True)
class Assumption(JsonRecord):
    """A fact that is assumed of a host, and the kinds of actions that are added or left out if it does not hold."""

    fact: str
    actions: tuple[str, ...]


def factory_modes(host: Host, catalog: GpuCatalog) -> tuple[str, str]:
    """Return the compute and memory modes in which the declared GPUs leave the factory; "" if they are unknown."""
    model = catalog.by_name(host.settings.gpu_model or "")
    if model is None:
        return "", ""
    compute = model.modes[0]
    return compute, next(iter(model.memory_for(compute)), "")


def assumptions(host: Host, catalog: GpuCatalog) -> tuple[Assumption, ...]:
    """Return what is assumed of a host that was not contacted; nothing for a host that was."""
    if host.state is not None:
        return ()
    found = [_modes(host, catalog)]
    if host.settings.clean:
        found.append(Assumption("no GPU has memory in use that no process holds", ("gpu_clean",)))
    if host.settings.numa_balancing is not None:
        found.append(Assumption("automatic NUMA balancing is on, the kernel's default", ("numa_balancing",)))
    if host.deployments:
        found += [
            Assumption("no Docker engine is installed", ("docker_engine", "build_tools")),
            Assumption("no image and no weights are present", ("image", "push", "model", "verify_model")),
        ]
    found.append(
        Assumption(
            "nothing of this toolkit is present: no instance, no key, no record of a generation",
            (
                "server",
                "stop_server",
                "remove_server",
                "restart_policy",
                "generation",
                "hold",
                "instance_key",
            ),
        )
    )
    if host.deployments:
        fact = (
            "half of the GPUs are on each of two sockets, and device files have the numbers that a newly loaded "
            "driver gives them; an online run fills in the CPUs of each socket and the groups of the devices"
        )
        found.append(Assumption(fact, ("server",)))
    return tuple(found)


def _modes(host: Host, catalog: GpuCatalog) -> Assumption:
    modes = " and ".join(mode for mode in factory_modes(host, catalog) if mode) or "their first mode"
    text = f"{host.settings.gpu_count} {host.settings.gpu_model or 'GPUs'} are present, in {modes} as from the factory"
    kinds: tuple[str, ...] = ("partition_change",)
    if host.settings.compute or host.settings.memory:
        text += "; with other modes, changing the memory mode reloads the driver, and instances are stopped for either"
        kinds = ("memory_partition", "compute_partition", "stop_server", *kinds)
    return Assumption(text, kinds)
