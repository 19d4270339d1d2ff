# SPDX-License-Identifier: Apache-2.0
"""Group GPUs: a tensor parallel group communicates in every layer, so its GPUs should be close to each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..observed.topology import LogicalGpu

ISLAND = 8
"""Physical GPUs of an XGMI domain, fully connected: the eight of one baseboard (AMD Instinct platform data)."""

Gpus = tuple[LogicalGpu, ...]
_Key = Callable[[LogicalGpu], tuple[int, ...]]


def xgmi_domain(gpu: LogicalGpu) -> int:
    """Return the number of the GPU's XGMI domain."""
    return gpu.gpu // ISLAND


def _numa(gpu: LogicalGpu) -> tuple[int, ...]:
    return xgmi_domain(gpu), -1 if gpu.numa is None else gpu.numa


# From closest to farthest: within one GPU, one socket, one XGMI domain.
_DOMAINS: tuple[_Key, ...] = (lambda gpu: (*_numa(gpu), gpu.gpu), _numa, lambda gpu: (xgmi_domain(gpu),))


def group_gpus(gpus: Sequence[LogicalGpu], size: int, tensor: int, wanted: int = 0) -> tuple[Gpus, ...]:
    """Return the GPUs of the wanted number of instances (0: as many as fit), `size` each, in groups of `tensor` GPUs.

    A group never crosses its XGMI domain, and crosses its NUMA node or physical GPU only if fewer instances than wanted
    would fit otherwise. The groups of one instance may be anywhere. If not all instances fit, fewer are returned.
    Instances on partitions share a GPU or a NUMA node only when each has as many as the others.
    """
    tensor = min(tensor, size)
    per = size // tensor
    found: list[Gpus]
    if tensor == 1:
        found = [(gpu,) for gpu in gpus]
    else:
        most = len(_groups(gpus, tensor, _DOMAINS[-1])) // per
        goal = min(wanted or most, most)
        tries = (_groups(gpus, tensor, domain) for domain in _DOMAINS)
        found = next(groups for groups in tries if len(groups) // per >= goal)
    instances = [
        tuple(gpu for group in found[start : start + per] for gpu in group)
        for start in range(0, len(found) - per + 1, per)
    ]
    if wanted and wanted < len(instances) and not all(gpu.whole for gpu in gpus):
        instances = _spread(instances)
    return tuple(instances[: wanted or None])


def _spread(instances: Sequence[Gpus]) -> list[Gpus]:
    """Return instances in the order in which the first ones are farthest from each other.

    The next one is always on the NUMA node with the fewest, and there on the GPU with the fewest: so a larger number
    moves no running instance.
    """
    waiting: dict[tuple[int, ...], dict[int, list[Gpus]]] = {}
    for item in instances:
        waiting.setdefault(_numa(item[0]), {}).setdefault(item[0].gpu, []).append(item)
    return _interleave([_interleave(list(gpus.values())) for _node, gpus in sorted(waiting.items())])


def _interleave(queues: Sequence[Sequence[Gpus]]) -> list[Gpus]:
    """Return the first of each queue, then the second of each, and so on."""
    longest = max(map(len, queues))
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _groups(gpus: Sequence[LogicalGpu], size: int, domain: _Key) -> list[Gpus]:
    """Return groups within one domain each; remaining GPUs of a domain that cannot form a group are not used."""
    # Sorted this way, a group that must cross smaller domains crosses as few as possible.
    ordered = sorted(gpus, key=lambda gpu: (*_numa(gpu), gpu.index))
    domains: dict[tuple[int, ...], list[LogicalGpu]] = {}
    for gpu in ordered:
        domains.setdefault(domain(gpu), []).append(gpu)
    return [
        tuple(members[start : start + size])
        for members in domains.values()
        for start in range(0, len(members) - size + 1, size)
    ]
