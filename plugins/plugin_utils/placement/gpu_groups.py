# SPDX-License-Identifier: Apache-2.0
"""Which GPUs go together: a tensor parallel group talks at every layer, and wants the shortest way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..desired.topology import LogicalGpu

ISLAND = 8
"""Physical GPUs that XGMI joins, each with each: the eight of one baseboard (AMD Instinct platform data)."""

Gpus = tuple[LogicalGpu, ...]
_Key = Callable[[LogicalGpu], tuple[int, ...]]


def island(gpu: LogicalGpu) -> int:
    """The number of the GPU's XGMI island."""
    return gpu.gpu // ISLAND


def _numa(gpu: LogicalGpu) -> tuple[int, ...]:
    return island(gpu), -1 if gpu.numa is None else gpu.numa


# From the shortest way to the longest: within a GPU, its socket, its island.
_DOMAINS: tuple[_Key, ...] = (lambda gpu: (*_numa(gpu), gpu.gpu), _numa, lambda gpu: (island(gpu),))


def pack(gpus: Sequence[LogicalGpu], size: int, tensor: int, wanted: int = 0) -> tuple[Gpus, ...]:
    """As many instances of `size` GPUs as wanted (0: as many as fit), in groups of `tensor` GPUs.

    A group never leaves its XGMI island, and its NUMA node or its physical GPU only when fewer instances than
    wanted would fit otherwise. The groups of an instance may be anywhere. Fewer are returned when no more fit.
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
    count = len(found) // per
    return tuple(
        tuple(gpu for group in found[index * per : (index + 1) * per] for gpu in group)
        for index in range(min(wanted or count, count))
    )


def _groups(gpus: Sequence[LogicalGpu], size: int, domain: _Key) -> list[Gpus]:
    """Groups that lie in one domain each; GPUs of a domain that are too few for one more are left over."""
    # In this order a group that has to cross a smaller border crosses as few as it can.
    ordered = sorted(gpus, key=lambda gpu: (*_numa(gpu), gpu.index))
    domains: dict[tuple[int, ...], list[LogicalGpu]] = {}
    for gpu in ordered:
        domains.setdefault(domain(gpu), []).append(gpu)
    return [
        tuple(members[start : start + size])
        for members in domains.values()
        for start in range(0, len(members) - size + 1, size)
    ]
