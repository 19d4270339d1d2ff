# SPDX-License-Identifier: Apache-2.0
"""Decide which hosts cannot be planned, so that a run leaves them out and continues with the others. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ....module_utils.common.errors import Problem
from ....module_utils.service.generations import DEPLOY, STOP
from ..observed.gpu_health import quarantine_reason
from ..observed.node_state import NodeState
from .actions import DEBIAN
from .deployment import Deployment
from .fleet import Fleet, Host

PARTS = {
    "gpus": "its GPUs",
    "users of GPUs": "the processes on its GPUs",
    "device_gids": "the owners of its devices",
    "numa_nodes": "its NUMA nodes",
    "numa_balancing": "its NUMA balancing",
    "interfaces": "its network interfaces",
    "rdma": "its RDMA devices",
    "models": "its weights",
    "images": "its images",
    "instances": "its instances",
    "generations": "its records of generations",
}
"""Parts of node_state without which a plan would be wrong: a part that could not be read is empty."""
MEMORY = ("gpu_partition_memory",)
STOPPED_BY = ("instances",)
"""Parts without which instances cannot be stopped."""


def without_excluded(fleet: Fleet, operation: str) -> Fleet:
    """Return the fleet without the hosts that cannot take part in an operation."""
    reasons = {host.name: exclusion_reason(host, operation) for host in fleet.hosts}
    return fleet.without({name: why for name, why in reasons.items() if why})


def exclusion_reason(host: Host, operation: str = DEPLOY) -> str:
    """Return why a host cannot take part in an operation, and the next step; "" if it can.

    Instances can be stopped wherever Docker works, whatever is wrong with GPUs or records.
    """
    state = host.state
    if state is None or state.euid != 0:  # without root little can be read; check_host reports that
        return ""
    found = [_unread(state, STOPPED_BY if operation == STOP else tuple(PARTS)), _docker(host, state)]
    if operation != STOP:
        found += [_records(state), _partition_change(host, state, operation), _no_gpu(host, state)]
        found.append(quarantine_reason(state, host.settings.clean))
    return " ".join(" ".join(found).split())


def missing_gpu_reasons(fleet: Fleet, problems: Iterable[Problem]) -> dict[str, str]:
    """Return the hosts that a layout's problems concern and that have too few GPUs, each with the reason.

    A host has too few GPUs if it has fewer than it declares, or than another host of the same deployments. problems: of
    the fleet's layouts.
    """
    named = {name for problem in problems for name in problem.hosts}
    for hosts in fleet.spans.values():  # the problem may name another host of the group
        named.update(hosts if hosts and named & set(hosts) else ())
    concerned = [host for host in fleet.hosts if host.state and host.name in named]
    kinds, most = _Kinds(), dict[int, int]()
    for host in fleet.hosts if concerned else ():
        if host.state:
            kind = kinds.number(host.deployments)
            most[kind] = max(most.get(kind, 0), len(host.state.gpus))
    found = {}
    for host in concerned:
        there = len(host.state.gpus) if host.state else 0
        wanted = host.settings.gpu_count or most[kinds.number(host.deployments)]
        if there < wanted:
            found[host.name] = (
                f"the driver shows {there} of its {wanted} GPUs, too few for its deployments. Look for the missing "
                "ones with lspci -d 1002: and dmesg; reboot the host if they are gone."
            )
    return found


def host_specific_reasons(fleet: Fleet, problems: Iterable[Problem]) -> dict[str, str]:
    """Return the hosts with layout problems that another host with the same variables does not have, with the reasons.

    Such a problem comes from the host, not from the inventory. If the memory mode is not set, the operator must set it
    on all of these hosts; that is not a reason to exclude one.
    """
    found: dict[str, list[Problem]] = {}
    for problem in problems:
        for name in problem.hosts:
            found.setdefault(name, []).append(problem)
    if not found:
        return {}
    kinds = _Kinds()
    fine = {
        (kinds.number(host.deployments), host.settings)
        for host in fleet.hosts
        if host.state and host.name not in found
    }
    return {
        host.name: joined_text(found[host.name])
        for host in fleet.hosts
        if host.name in found
        and (kinds.number(host.deployments), host.settings) in fine
        and not (host.settings.memory is None and any(item.path == MEMORY for item in found[host.name]))
    }


def joined_text(problems: Iterable[Problem]) -> str:
    """Return a host's problems as one text, the reason why it is excluded."""
    return " ".join(replace(problem, hosts=()).text() for problem in problems)


class _Kinds:
    """Number equal deployments. They may contain maps, so they cannot be keys; most hosts of a kind share them."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        self._named: dict[tuple[str, ...], list[tuple[tuple[Deployment, ...], int]]] = {}

    def number(self, deployments: tuple[Deployment, ...]) -> int:
        """Return the same number for equal deployments."""
        same = tuple(map(id, deployments))
        if same not in self._numbers:
            there = self._named.setdefault(tuple(item.name for item in deployments), [])
            known = next((number for one, number in there if one == deployments), None)
            self._numbers[same] = len(self._numbers) if known is None else known
            there += [(deployments, self._numbers[same])] if known is None else []
        return self._numbers[same]


def _unread(state: NodeState, parts: Iterable[str]) -> str:
    found = {item.what: item.error for item in state.problems if item.what in parts}
    if not found:
        return ""
    text = ", ".join(f"{PARTS[what]} ({error})" for what, error in found.items())
    return f"cannot read {text}. See its dmesg and journalctl -p err, and run again."


def _docker(host: Host, state: NodeState) -> str:
    used = host.deployments or any(item.kept for item in state.generations)
    if state.docker_available or not used:
        return ""
    why = f" ({state.docker_error})" if state.docker_error else ""
    if state.docker_installed:
        fix = "Start it (systemctl start docker); if it stops again, see journalctl -u docker."
        return f"its Docker engine does not answer{why}. {fix}"
    if host.deployments and state.os_id not in DEBIAN:
        what = f"has no Docker engine, and the toolkit cannot install one on {state.os_name}."
        return f"{what} Install Docker Engine 20.10 or newer, and run again."
    return ""


def _records(state: NodeState) -> str:
    broken = [
        f"its record of {item.deployment}'s generations cannot be read ({item.broken})."
        for item in state.generations
        if item.broken
    ]
    fix = "Delete the named file. Only that record is lost; running instances are not affected."
    return " ".join([*broken, fix]) if broken else ""


def _partition_change(host: Host, state: NodeState, operation: str) -> str:
    """Return the reason if a change of partition modes is unfinished and this run does not finish it; else ""."""
    step = state.partition_change
    if not step:
        return ""
    what = f"an earlier partition change was interrupted (step {step})."
    if step == UNREADABLE:
        return (
            "/var/lib/instinct-fleet/partition.json is the journal of an earlier partition change, and cannot be read. "
            "Compare the modes with the inventory, delete it, and run partition.yml."
        )
    if not (host.settings.compute or host.settings.memory):
        return f"{what} Set gpu_partition_compute to the mode you want, and run partition.yml."
    return (
        "" if operation == DEPLOY else f"{what} partition.yml --limit {host.name},load_balancer finishes it."
    )


UNREADABLE = "unknown"
"""The step that node_state reports for a journal that it could not read."""


def _no_gpu(host: Host, state: NodeState) -> str:
    if state.gpus or not (host.deployments or host.settings.compute or host.settings.memory):
        return ""
    what = "the amdgpu driver shows no GPU." if state.driver_loaded else "amdgpu is not loaded."
    return f"{what} Check dmesg and lspci -d 1002:, load the driver (modprobe amdgpu), and run again."
