# SPDX-License-Identifier: Apache-2.0
"""Which GPUs and ports the instances of a host get, and what cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .catalog import GpuCatalog
from .deployment import Deployment
from .errors import Problem
from .fleet import Fleet, Host
from .ranks import Rank
from .topology import LogicalGpu, declared_gpus, observed_gpus, partition_count


@dataclass(frozen=True)
class Slot:
    """Where one instance goes.

    cpus, mems: the CPUs and the memory of its GPUs' NUMA node, as lists in the kernel's form; "": any. share:
    the part of each GPU's memory that is this instance's. rank: its place in an engine of several servers.
    """

    deployment: Deployment = field(hash=False)  # it may hold maps
    index: int
    gpus: tuple[LogicalGpu, ...]
    cpus: str = ""
    mems: str = ""
    share: float = 1.0
    rank: Rank | None = None

    @property
    def name(self) -> str:
        """The instance's name."""
        return f"{self.deployment.name}-{self.index}"

    @property
    def port(self) -> int:
        """The instance's port."""
        return self.deployment.port + self.index


@dataclass(frozen=True)
class Layout:
    """A host's logical GPUs as they will be, and its instances on them."""

    gpus: tuple[LogicalGpu, ...]
    slots: tuple[Slot, ...]
    repartition: bool
    warnings: tuple[str, ...]


def lay_out(host: Host, catalog: GpuCatalog) -> tuple[Layout, tuple[Problem, ...]]:
    """Place every instance of a host. Problems name the deployment's key and carry the host."""
    gpus, repartition, warnings, problems = _gpus(host, catalog)
    slots: list[Slot] = []
    if not problems:
        for deployment in host.deployments:
            placed, found = _slots(deployment, gpus, _mode(host))
            slots.extend(placed)
            problems.extend(found)
        problems.extend(_conflicts(slots, gpus))
    named = tuple(Problem(item.path, item.what, item.fix, (host.name,)) for item in problems)
    return Layout(gpus, tuple(slots), repartition, tuple(warnings)), named


def lay_out_fleet(fleet: Fleet) -> tuple[dict[str, Layout], tuple[Problem, ...]]:
    """Place every instance of every host, by the host's name; with what is wrong."""
    layouts: dict[str, Layout] = {}
    problems: list[Problem] = []
    for host in fleet.hosts:
        layouts[host.name], found = lay_out(host, fleet.catalog)
        problems.extend(found)
    return layouts, tuple(problems)


def _mode(host: Host) -> str:
    if host.settings.compute:
        return host.settings.compute
    modes = {gpu.compute for gpu in host.state.gpus} if host.state else set()
    return (modes.pop() or "") if len(modes) == 1 else ""


def _gpus(host: Host, catalog: GpuCatalog) -> tuple[tuple[LogicalGpu, ...], bool, list[str], list[Problem]]:
    if host.state is None:
        return _declared(host, catalog)
    gpus, compute = host.state.gpus, host.settings.compute
    warnings: list[str] = []
    problems: list[Problem] = []
    if host.settings.gpu_count and len(gpus) != host.settings.gpu_count:
        warnings.append(
            f"instinct_gpus declares {host.settings.gpu_count} GPUs, and the driver shows {len(gpus)}: "
            "look for the missing ones with lspci -d 1002: and dmesg"
        )
    if not gpus:
        if host.deployments or compute:
            what = "the amdgpu driver shows no GPU." if host.state.driver_loaded else "amdgpu is not loaded."
            fix = "Look at dmesg and lspci -d 1002:, load the driver (modprobe amdgpu), and run again."
            problems.append(Problem((), what, fix))
        return (), False, warnings, problems
    repartition = compute is not None and any(gpu.compute != compute for gpu in gpus)
    if compute is not None:
        for gpu in gpus:
            # A GPU in the wanted mode is proof enough that the mode exists.
            if gpu.compute == compute or problems:
                continue
            problems.extend(_refusal(host, gpu.index, gpu.available_compute, compute))
            if not problems and not partition_count(gpu, compute, catalog):
                what = f"GPU {gpu.index} ({gpu.pci_id}) is not in the catalogue with {compute}."
                problems.append(Problem(("gpu_partition_compute",), what, "Add it to catalog/gpus.yml."))
        warnings.extend(_validation(host, catalog))
    if problems:
        return (), repartition, warnings, problems
    return observed_gpus(gpus, compute, catalog), repartition, warnings, []


def _refusal(host: Host, gpu: int, available: Sequence[str], compute: str) -> list[Problem]:
    path = ("gpu_partition_compute",)
    if host.state is not None and host.state.virtual_machine and compute not in available:
        what = f"this is a virtual machine, and GPU {gpu} is not in {compute}."
        return [
            Problem(path, what, "Set the mode on the machine that it runs on, or leave the variable out.")
        ]
    if not available:
        what = f"GPU {gpu} offers no compute partition modes."
        fix = (
            "Partitioning needs a driver that has them (amdgpu 6.12.12 or newer); or leave the variable out."
        )
        return [Problem(path, what, fix)]
    if compute not in available:
        return [Problem(path, f"GPU {gpu} does not offer {compute}.", f"It offers {', '.join(available)}.")]
    return []


def _validation(host: Host, catalog: GpuCatalog) -> list[str]:
    compute = host.settings.compute
    gpu = host.state.gpus[0] if host.state else None
    model = catalog.by_pci_id(gpu.pci_id) if gpu else None
    if compute is None or gpu is None or model is None or gpu.memory is None:
        return []
    if not model.validated or model.is_validated(compute, gpu.memory):
        return []
    pairs = ", ".join(f"{item.compute} with {item.memory}" for item in model.validated)
    return [f"{compute} with {gpu.memory} works, but AMD lists only {pairs} as validated for {model.name}"]


def _declared(
    host: Host, catalog: GpuCatalog
) -> tuple[tuple[LogicalGpu, ...], bool, list[str], list[Problem]]:
    settings = host.settings
    model = catalog.by_name(settings.gpu_model or "")
    if model is None:
        what = "is not set, and without looking at the host its GPUs are unknown."
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
    gpus = declared_gpus(model, settings.gpu_count, settings.compute, catalog)
    repartition = settings.compute is not None and settings.compute != model.modes[0]
    return gpus, repartition, [], []


def _slots(
    deployment: Deployment, gpus: Sequence[LogicalGpu], mode: str
) -> tuple[tuple[Slot, ...], list[Problem]]:
    path, size, count = deployment.path, deployment.tensor_parallel_size, deployment.instances_per_host
    shape = f"{len(gpus)} GPUs (0 to {len(gpus) - 1}){f' in {mode}' if mode else ''}"
    given = deployment.gpus
    problems = [
        Problem((*path, "gpus", position), f"GPU {gpu} does not exist: the host has {shape}.")
        for position, gpu in enumerate(given or ())
        if gpu >= len(gpus)
    ]
    need, have = size * count, len(given) if given is not None else len(gpus)
    if need > have:
        key = "instances_per_host" if count > 1 else "tensor_parallel_size"
        product = (
            f"{count} instances with tensor_parallel_size {size} need {need}"
            if count > 1
            else (f"tensor_parallel_size {size} needs {need}")
        )
        source = f"gpus names {have}" if given is not None else f"the host has {shape}"
        fix = f"Lower {key}" + (", or name more GPUs." if given is not None else ".")
        problems.append(Problem((*path, key), f"{product} GPUs, and {source}.", fix))
    if deployment.port + count - 1 > 65535:
        what = f"{count} instances from port {deployment.port} go beyond 65535."
        problems.append(Problem((*path, "port"), what, "Choose a lower port."))
    if problems:
        return (), problems
    chosen = [gpus[index] for index in given] if given is not None else list(gpus)
    return tuple(
        Slot(deployment, index, tuple(chosen[index * size : (index + 1) * size])) for index in range(count)
    ), []


def _conflicts(slots: Sequence[Slot], gpus: Sequence[LogicalGpu]) -> list[Problem]:
    """At most one problem of each sort per pair of deployments; it stands at the later one."""
    problems: dict[tuple[str, int, int], Problem] = {}
    ports: dict[int, Slot] = {}
    used: dict[int, Slot] = {}
    for slot in sorted(slots, key=lambda item: (item.deployment.index, item.index)):
        other = ports.setdefault(slot.port, slot)
        if other is not slot:
            what = f"instances {other.name} and {slot.name} would both listen on port {slot.port}."
            fix = "Choose another port; instance i of a deployment takes port + i."
            key = ("port", other.deployment.index, slot.deployment.index)
            problems.setdefault(key, Problem((*slot.deployment.path, "port"), what, fix))
        for gpu in slot.gpus:
            other = used.setdefault(gpu.index, slot)
            if other is not slot:
                what = f"instances {other.name} and {slot.name} would both use GPU {gpu.index}."
                key = ("gpus", other.deployment.index, slot.deployment.index)
                problems.setdefault(key, Problem((*slot.deployment.path, "gpus"), what, ""))
    free = ranges([gpu.index for gpu in gpus if gpu.index not in used])
    fix = f"Name others in gpus; {'free: ' + free if free else 'none is free'}."
    return [item if item.fix else Problem(item.path, item.what, fix) for item in problems.values()]


def ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] → "0-2, 5"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
