# SPDX-License-Identifier: Apache-2.0
"""Assign GPUs, ports and CPUs to the instances of a fleet, and report what is impossible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ....module_utils.common.errors import Problem
from ...knowledge.catalog.gpus import GpuCatalog
from ..desired.deployment import Deployment
from ..desired.fleet import Fleet, Host
from ..observed.gpu_health import needs_reload
from ..observed.node_state import NumaNode
from .gpu_groups import Gpus, group_gpus, xgmi_domain
from .gpu_shares import assign_shares, overcommitment_problems
from .host_gpus import HostGpus, host_gpus
from .network_checks import Networks, check_networks
from .ranks import HostGroup, group_port, host_groups, rank_of, rendezvous_port, servers_per_host
from .size_limits import size_problems, too_many_gpus
from .slots import Slot

SYSTEM_PORTS = 1024
"""Ports below this are for the system's own services; RFC 6335, section 6."""


@dataclass(frozen=True)
class Layout:
    """A host's logical GPUs after the run, and its instances on them.

    unplaced: names of desired instances that cannot run now because another host of their group is missing; they are
    neither started nor removed.
    """

    gpus: Gpus
    slots: tuple[Slot, ...]
    repartition: bool
    warnings: tuple[str, ...]
    unplaced: tuple[str, ...] = ()


def lay_out_fleet(fleet: Fleet) -> tuple[dict[str, Layout], tuple[Problem, ...]]:
    """Place the instances of every host. Return the layouts by host name, and problems that name key and host.

    The layout is computed once for hosts of the same kind.
    """
    groups, wrong = host_groups(fleet)
    problems = list(wrong)
    layouts: dict[str, Layout] = {}
    networks = check_networks(fleet, groups)
    problems.extend(networks.problems)
    known: dict[tuple[object, ...], tuple[Layout, tuple[Problem, ...]]] = {}
    for host in fleet.hosts:
        key = _kind(host)
        placed = known.get(key)  # one look-up: it hashes and compares all GPUs
        if placed is None:
            placed = known[key] = lay_out(host, fleet.catalog)
        layout, found = placed
        problems.extend(replace(item, hosts=(host.name,)) for item in found)
        layouts[host.name] = _ranked(layout, host.name, groups, networks)
    problems.extend(_unequal(fleet, groups, layouts))
    return layouts, tuple(problems)


def _kind(host: Host) -> tuple[object, ...]:
    """Return everything that a host's layout depends on. Equal lists of deployments are parsed once."""
    settings, state = host.settings, host.state
    modes = settings.compute, settings.memory, settings.clean and needs_reload(state)
    wanted = (*map(id, host.deployments), *modes, settings.gpu_model, settings.gpu_count)
    if state is None:
        return wanted
    known = state.gpus, state.numa_nodes, state.driver_loaded, state.virtual_machine, state.partition_change
    return (*wanted, *known)


def lay_out(host: Host, catalog: GpuCatalog) -> tuple[Layout, tuple[Problem, ...]]:
    """Return a host's layout without the ranks of groups of hosts."""
    there, problems = host_gpus(host, catalog)
    numa = {node.id: node for node in host.state.numa_nodes} if host.state else {}
    slots: list[Slot] = []
    warnings = list(there.warnings)
    if not problems:
        for deployment in host.deployments:
            placed, found = _place(deployment, there)
            slots.extend(_slot(deployment, index, gpus, numa) for index, gpus in enumerate(placed))
            problems.extend(found)
            warnings.extend(_far_apart(deployment, placed))
            warnings.extend(_low_port(deployment))
        slots = assign_shares(slots)
        problems.extend(_port_conflicts(slots))
        problems.extend(overcommitment_problems(slots, there.gpus))
    named = tuple(replace(item, hosts=(host.name,)) for item in problems)
    return Layout(there.gpus, tuple(slots), there.repartition, tuple(warnings)), named


def _slot(deployment: Deployment, index: int, gpus: Gpus, numa: Mapping[int, NumaNode]) -> Slot:
    nodes = {gpu.numa for gpu in gpus}
    node = numa.get(nodes.pop() or 0) if len(nodes) == 1 and None not in nodes else None
    pinned = node is not None and len(numa) > 1 and deployment.runtime.numa == "local" and node.cpus
    return Slot(
        deployment,
        index,
        gpus,
        cpus=node.cpus if node and pinned else "",
        share=1 / deployment.instances_per_gpu,
        rank=rank_of(deployment, index, None, "") if deployment.nodes == 1 else None,
    )


def _ranked(
    layout: Layout, host: str, groups: Mapping[tuple[str, str], HostGroup], networks: Networks
) -> Layout:
    """Return the layout with the ranks of instances that span hosts, without those whose group is incomplete."""
    if not any(slot.deployment.nodes > 1 for slot in layout.slots):
        return layout
    slots: list[Slot] = []
    unplaced: list[str] = []
    warnings: dict[str, None] = {}
    for slot in layout.slots:
        group = groups.get((slot.deployment.name, host))
        if slot.deployment.nodes == 1:
            slots.append(slot)
        elif group is None or group.missing:
            unplaced.append(slot.name)
            if group is not None:
                warnings[_incomplete(slot.deployment, group)] = None
        else:
            rank = rank_of(slot.deployment, slot.index, group, host)
            slots.append(replace(slot, rank=rank, network=networks.of.get(host)))
    return replace(
        layout,
        slots=tuple(slots),
        unplaced=tuple(unplaced),
        warnings=(*layout.warnings, *warnings, *networks.warnings.get(host, ())),
    )


def _incomplete(deployment: Deployment, group: HostGroup) -> str:
    return (
        f"deployment {deployment.name} spans {', '.join(group.hosts)}, but this run does not have "
        f"{', '.join(group.missing)}; it is left as it is"
    )


def _unequal(
    fleet: Fleet, groups: Mapping[tuple[str, str], HostGroup], layouts: Mapping[str, Layout]
) -> list[Problem]:
    """Return a problem for each host whose GPUs differ from those of the first host of its group."""
    if not groups:
        return []
    kinds = {host.name: _gpus_text(host, layouts[host.name], fleet.catalog) for host in fleet.hosts}
    found = []
    for (name, host), group in groups.items():
        first = group.hosts[0]
        if host in kinds and first in kinds and kinds[host] != kinds[first] and not group.missing:
            what = f"deployment {name} spans {first} with {kinds[first]} and {host} with {kinds[host]}."
            found.append(
                Problem((), what, "Hosts that run an engine together must have the same GPUs.", (host,))
            )
    return found


def _gpus_text(host: Host, layout: Layout, catalog: GpuCatalog) -> str:
    if host.state is None:
        names = {host.settings.gpu_model or "unknown GPUs"}
    else:
        models = {gpu.pci_id: catalog.by_pci_id(gpu.pci_id) for gpu in host.state.gpus}
        names = {model.name if model else pci_id for pci_id, model in models.items()}
    return f"{len(layout.gpus)} {' and '.join(sorted(names))}"


def _place(deployment: Deployment, there: HostGpus) -> tuple[tuple[Gpus, ...], list[Problem]]:
    """Return the GPUs of each of a deployment's servers on a host."""
    path, given, gpus = deployment.path, deployment.gpus, there.gpus
    problems = size_problems(deployment)
    problems += [
        Problem((*path, "gpus", position), f"GPU {gpu} does not exist: the host has {there.text}.")
        for position, gpu in enumerate(given or ())
        if gpu >= len(gpus)
    ]
    if problems:
        return (), problems
    size, shared = deployment.gpus_per_node, deployment.instances_per_gpu
    wanted = -(-deployment.instances_per_host // shared)
    if given is None:
        engines = group_gpus(gpus, size, deployment.tensor_parallel_size, wanted)
    else:  # the operator's order is the order of instances
        count = min(len(given) // size, wanted or len(given))
        engines = tuple(
            tuple(gpus[number] for number in given[index * size : (index + 1) * size])
            for index in range(count)
        )
    if len(engines) < max(wanted, 1):
        return (), [too_many_gpus(deployment, there)]
    servers = servers_per_host(deployment)
    part = size // servers
    placed = [engine[number * part : (number + 1) * part] for engine in engines for number in range(servers)]
    placed = [gpus for gpus in placed for _unused in range(shared)]
    if deployment.instances_per_host:
        placed = placed[: deployment.instances_per_host * servers]
    if deployment.port + len(placed) - 1 > 65535:
        what = f"{len(placed)} instances from port {deployment.port} on would need ports beyond 65535."
        return (), [Problem((*path, "port"), what, "Choose a lower port.")]
    return tuple(placed), []


def _far_apart(deployment: Deployment, placed: Sequence[Gpus]) -> list[str]:
    """Return a warning if the operator configured a tensor parallel group that XGMI does not connect."""
    size = deployment.tensor_parallel_size
    groups = (gpus[start : start + size] for gpus in placed for start in range(0, len(gpus), size))
    if all(len({xgmi_domain(gpu) for gpu in group}) == 1 for group in groups):
        return []
    return [f"deployment {deployment.name}: a tensor parallel group has GPUs that XGMI does not join"]


def _low_port(deployment: Deployment) -> list[str]:
    """Return a warning if the port is in the range of the host's own services."""
    if deployment.port >= SYSTEM_PORTS:
        return []
    return [
        f"deployment {deployment.name}: port {deployment.port} is below {SYSTEM_PORTS}, where the host's own "
        "services listen (22 is SSH); use a higher one, such as 8000"
    ]


def _port_conflicts(slots: Sequence[Slot]) -> list[Problem]:
    """Return at most one problem per pair of deployments, reported at the later one.

    A group's ports are reserved on all its hosts, whichever host is the first.
    """
    problems: dict[tuple[int, int], Problem] = {}
    ports: dict[int, Slot] = {}
    for slot in sorted(slots, key=lambda item: (item.deployment.index, item.index)):
        meeting = rendezvous_port(slot.deployment, slot.index)
        first = slot.index % servers_per_host(slot.deployment) == 0
        for port in (slot.port, *((meeting, group_port(meeting)) if meeting and first else ())):
            other = ports.setdefault(port, slot)
            if other is not slot:
                what = f"instances {other.name} and {slot.name} would both listen on port {port}."
                fix = "Choose another port; instance i of a deployment uses port + i"
                fix += (
                    ", and engines of several servers meet at 20000 + its last four digits, and 5000 from there."
                    if meeting
                    else "."
                )
                key = (other.deployment.index, slot.deployment.index)
                problems.setdefault(key, Problem((*slot.deployment.path, "port"), what, fix))
    return list(problems.values())
