# SPDX-License-Identifier: Apache-2.0
"""Determine a host's logical GPUs after a run: from the observed state, or from the inventory's declaration."""

from __future__ import annotations

from dataclasses import dataclass

from ....module_utils.common.errors import Problem
from ...knowledge.catalog.gpus import GpuCatalog, GpuModel
from ..desired.fleet import Host
from ..observed.gpu_health import needs_reload
from ..observed.node_state import ObservedGpu
from ..observed.topology import LogicalGpu, declared_gpus, observed_gpus, partition_count


@dataclass(frozen=True)
class HostGpus:
    """The logical GPUs in the desired mode ("" if GPUs differ or have none), and whether that is a change."""

    gpus: tuple[LogicalGpu, ...]
    mode: str
    repartition: bool
    warnings: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return a text such as "8 GPUs (0 to 7) in SPX"."""
        mode = f" in {self.mode}" if self.mode else ""
        return f"{len(self.gpus)} GPUs (0 to {len(self.gpus) - 1}){mode}"


def host_gpus(host: Host, catalog: GpuCatalog) -> tuple[HostGpus, list[Problem]]:
    """Return the GPUs of a host, and why its partition mode is impossible."""
    gpus, repartition, warnings, problems = _gpus(host, catalog)
    return HostGpus(gpus, _mode(host), repartition, tuple(warnings)), problems


def _mode(host: Host) -> str:
    if host.settings.compute:
        return host.settings.compute
    modes = {gpu.compute for gpu in host.state.gpus} if host.state else set()
    return (modes.pop() or "") if len(modes) == 1 else ""


def _gpus(host: Host, catalog: GpuCatalog) -> tuple[tuple[LogicalGpu, ...], bool, list[str], list[Problem]]:
    if host.state is None:
        return _declared(host, catalog)
    gpus, compute, memory = host.state.gpus, host.settings.compute, host.settings.memory
    warnings: list[str] = []
    problems: list[Problem] = []
    if host.settings.gpu_count and len(gpus) != host.settings.gpu_count:
        warnings.append(
            f"instinct_gpus declares {host.settings.gpu_count} GPUs, but the driver shows {len(gpus)}: "
            "look for the missing ones with lspci -d 1002: and dmesg"
        )
    if not gpus:
        return (), False, warnings, problems
    reload = memory is not None and any(gpu.memory != memory for gpu in gpus)
    repartition = reload or (compute is not None and any(gpu.compute != compute for gpu in gpus))
    if memory is not None:
        problems.extend(_memory_refusal(host, memory, catalog))
    if compute is not None:
        for gpu in gpus:
            # A GPU that is in the desired mode proves that the mode exists.
            if gpu.compute == compute or problems:
                continue
            if not reload:  # the modes on offer depend on the memory mode
                problems.extend(_refusal(host, gpu, compute, catalog))
            if not problems and not partition_count(gpu, compute, catalog):
                what = f"GPU {gpu.index} ({gpu.pci_id}) is not in the catalogue with {compute}."
                problems.append(Problem(("gpu_partition_compute",), what, "Add it to catalog/gpus.yml."))
        warnings.extend(_validation(host, catalog))
    if problems:
        return (), repartition, warnings, problems
    repartition = repartition or bool(host.state.partition_change and (compute or memory))
    repartition = repartition or (host.settings.clean and needs_reload(host.state))
    return observed_gpus(gpus, compute, catalog), repartition, warnings, []


def _memory_refusal(host: Host, memory: str, catalog: GpuCatalog) -> list[Problem]:
    """Return why a memory mode is impossible; at most one reason."""
    path = ("gpu_partition_memory",)
    for gpu in host.state.gpus if host.state else ():
        if gpu.memory != memory and memory not in gpu.available_memory:
            offered = ", ".join(gpu.available_memory) or gpu.memory or "none"
            return [Problem(path, f"GPU {gpu.index} does not offer {memory}.", f"It offers {offered}.")]
        model, compute = catalog.by_pci_id(gpu.pci_id), host.settings.compute or gpu.compute or ""
        if model and memory not in model.memory_for(compute):
            return [_mismatch(model, compute, memory)]
    return []


def _mismatch(model: GpuModel, compute: str, memory: str) -> Problem:
    fitting = [mode for mode in model.modes if memory in model.memory_for(mode)]
    what = f"{model.name} in {compute or 'no compute mode'} cannot be combined with {memory}."
    fix = f"Set gpu_partition_compute to {' or '.join(fitting)}." if fitting else "No compute mode can."
    return Problem(("gpu_partition_memory",), what, fix)


def _kept_memory(gpu: ObservedGpu, compute: str, catalog: GpuCatalog) -> list[Problem]:
    """Return the problem of a compute mode that needs another memory mode than the one that stays."""
    model = catalog.by_pci_id(gpu.pci_id)
    needed = model.memory_for(compute) if model else ()
    reachable = [mode for mode in needed if mode in gpu.available_memory]
    if not reachable or not gpu.memory or gpu.memory in needed:
        return []
    what = (
        f"is not set, so GPU {gpu.index} keeps {gpu.memory}, and with that it offers "
        f"{', '.join(gpu.available_compute)}, not {compute}."
    )
    fix = f"Write gpu_partition_memory: {' or '.join(reachable)} next to gpu_partition_compute: {compute}."
    return [Problem(("gpu_partition_memory",), what, fix)]


def _refusal(host: Host, found: ObservedGpu, compute: str, catalog: GpuCatalog) -> list[Problem]:
    path, gpu, available = ("gpu_partition_compute",), found.index, found.available_compute
    if host.state is not None and host.state.virtual_machine and compute not in available:
        what = f"this is a virtual machine, and GPU {gpu} is not in {compute}."
        return [Problem(path, what, "Set the mode on the hypervisor's host, or leave the variable out.")]
    if not available:
        what = f"GPU {gpu} offers no compute partition modes."
        fix = "Partitioning needs a driver that offers them (amdgpu 6.12.12 or newer); or leave the variable out."
        return [Problem(path, what, fix)]
    if compute not in available:
        kept = _kept_memory(found, compute, catalog) if host.settings.memory is None else []
        return kept or [
            Problem(path, f"GPU {gpu} does not offer {compute}.", f"It offers {', '.join(available)}.")
        ]
    return []


def _validation(host: Host, catalog: GpuCatalog) -> list[str]:
    compute, memory = host.settings.compute, host.settings.memory
    if host.state is not None:
        gpu = host.state.gpus[0]
        model, memory = catalog.by_pci_id(gpu.pci_id), memory or gpu.memory
    else:
        model = catalog.by_name(host.settings.gpu_model or "")
        memory = memory or (model.memory_for(model.modes[0])[0] if model else None)
    if compute is None or model is None or memory is None:
        return []
    if not model.validated or model.is_validated(compute, memory):
        return []
    pairs = ", ".join(f"{item.compute} with {item.memory}" for item in model.validated)
    return [f"{compute} with {memory} works, but AMD lists only {pairs} as validated for {model.name}"]


def _declared(
    host: Host, catalog: GpuCatalog
) -> tuple[tuple[LogicalGpu, ...], bool, list[str], list[Problem]]:
    settings = host.settings
    model = catalog.by_name(settings.gpu_model or "")
    if model is None:
        what = "is not set, and the host was not contacted, so its GPUs are unknown."
        return (
            (),
            False,
            [],
            [Problem(("instinct_gpus",), what, "Add instinct_gpus: {model: MI300X, count: 8}.")],
        )
    if settings.compute is not None and model.count(settings.compute) is None:
        what = f"{model.name} has no {settings.compute}."
        fix = f"It has {', '.join(model.modes)}."
        return (), False, [], [Problem(("gpu_partition_compute",), what, fix)]
    mode = settings.compute or model.modes[0]
    if settings.memory is not None and settings.memory not in model.memory_for(mode):
        return (), False, [], [_mismatch(model, mode, settings.memory)]
    gpus = declared_gpus(model, settings.gpu_count, settings.compute, catalog)
    # A host that was not observed is assumed to have the modes with which it leaves the factory.
    factory = model.modes[0]
    repartition = settings.compute not in (None, factory)
    repartition = repartition or settings.memory not in (None, *model.memory_for(factory)[:1])
    return gpus, repartition, _validation(host, catalog), []
