# SPDX-License-Identifier: Apache-2.0
"""How instances divide the memory of a GPU that they share, and where it is not enough for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ....module_utils.common.errors import Problem
from ..desired.deployment import Deployment
from ..observed.topology import LogicalGpu
from .slots import Slot

SHARED_PART = 0.9
"""Share of a GPU's memory for all instances on it together; AMD gives each of two 0.45."""
UTILIZATION = "gpu_memory_utilization"


def utilization(deployment: Deployment) -> float | None:
    """Return the operator's part of a GPU's memory for each instance, if that is a valid number."""
    given = {key.lstrip("-").replace("-", "_"): value for key, value in deployment.engine_args}
    value = given.get(UTILIZATION, dict(deployment.settings).get(UTILIZATION))
    try:
        found = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else 0.0
    except ValueError:
        return None
    return found if 0 < found <= 1 else None


def own_instances_per_gpu(deployment: Deployment) -> int:
    """Return how many of its own instances a deployment has on one GPU."""
    return min(deployment.instances_per_gpu, deployment.instances_per_host or deployment.instances_per_gpu)


def assign_shares(slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots with their shares of the GPUs that several of them use.

    A deployment that names its GPUs and its part of their memory agrees to share them, as one with instances_per_gpu
    does.
    """
    users: dict[int, int] = defaultdict(int)
    for slot in slots:
        for gpu in slot.gpus:
            users[gpu.index] += 1
    found = []
    for slot in slots:
        wanted = slot.deployment
        part = utilization(wanted)
        agreed = wanted.gpus is not None or wanted.instances_per_gpu > 1
        shares = agreed and any(users[gpu.index] > 1 for gpu in slot.gpus)
        found.append(replace(slot, share=part) if shares and part else slot)
    return found


def overcommitment_problems(slots: Sequence[Slot], gpus: Sequence[LogicalGpu]) -> list[Problem]:
    """Return a problem for each pair of deployments that want more than a whole GPU, reported at the later one."""
    there: dict[int, list[Slot]] = defaultdict(list)
    pairs: dict[tuple[int, int], Problem] = {}
    used = {gpu.index for slot in slots for gpu in slot.gpus}
    free = ranges([gpu.index for gpu in gpus if gpu.index not in used])
    for slot in sorted(slots, key=lambda item: (item.deployment.index, item.index)):
        for gpu in slot.gpus:
            present = there[gpu.index]
            present.append(slot)
            other = present[0]
            key = (other.deployment.index, slot.deployment.index)
            own = (
                len({one.deployment.index for one in present}) == 1
            )  # tuning compares these with the default, too
            if not own and sum(one.share for one in present) > 1 + 1e-9:
                what = (
                    f"instances {other.name} and {slot.name} would both use GPU {gpu.index}{_parts(present)}."
                )
                fix = _fix(present, free)
                pairs.setdefault(key, Problem((*slot.deployment.path, "gpus"), what, fix))
    return list(pairs.values())


def _parts(present: Sequence[Slot]) -> str:
    """Return what the instances on a GPU want of it, where all of them say so."""
    if any(slot.share == 1 for slot in present):
        return ""
    total = sum(slot.share for slot in present)
    return f", and want {total:.0%} of its memory ({' + '.join(f'{slot.share:g}' for slot in present)})"


def _fix(present: Sequence[Slot], free: str) -> str:
    count = len(present)
    fix = f"Name other GPUs in gpus; {'free: ' + free if free else 'none is free'}."
    equal = (
        f"instances_per_gpu: {count} in each, or "
        if all(one.deployment.world_size == 1 for one in present)
        else ""
    )
    return (
        f"{fix} To share it, name it in the gpus of all, and set {equal}{UTILIZATION} in each, at most 1 together "
        f"(without it each takes about {SHARED_PART:g})."
    )


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers as ranges: [0, 1, 2, 5] → "0-2, 5"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
