# SPDX-License-Identifier: Apache-2.0
"""Judge every GPU of a measurement: ok, slow, suspect or bad, with the cause and the operator's next step. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ....module_utils.common.errors import natural
from .causes import Cause, causes
from .compare import SpeedComparison, compare
from .evidence import GpuEvidence, add_reading_factors, gather, gpus_of
from .failed_requests import mark_failed_requests
from .samples import CellSpeed, InstanceKey, Row, cell_speeds

Earlier = Mapping[str, Mapping[str, Sequence[float]]]
"""Medians of earlier runs: by unique id of a GPU, then by cell (`cell_name`), in the metric's unit."""

_BURNIN = "playbooks/burnin.yml --limit {host},load_balancer"
_BAD_STEPS = {
    "ecc": "Drain {host} (playbooks/drain.yml --limit {host}), save amd-smi metric --ecc and bad-pages, reboot it, "
    f"test it with {_BURNIN}, and replace the GPU if the errors return.",
    "link": "Drain {host} (playbooks/drain.yml --limit {host}), power it off and reseat the GPU or its riser; "
    "lspci -vv -s {bdf} must show LnkSta equal to LnkCap afterwards.",
    "thermal": "Drain {host} (playbooks/drain.yml --limit {host}) and check fans, air flow, inlet temperature and the "
    f"heat sink of the GPU; then {_BURNIN}.",
}
# What to do about a cause, by its factor. Without an entry: test the GPU.
_CAUSE_STEPS = {
    "driver": "Install the driver of the other hosts on {host}: drain it, install the driver, reboot, measure again.",
    "VBIOS": "Update the GPU's VBIOS to the version of the other GPUs, with the vendor's tool.",
    "kernel": "Boot {host} with the kernel of the other hosts and measure again.",
    "ROCm": "Install the ROCm release of the other hosts on {host}.",
    "power cap, W": "Set the power cap of the other GPUs (amd-smi set --power-cap WATTS --gpu {gpu}).",
    "partition mode": "Set the partition mode of the other GPUs: playbooks/partition.yml --limit {host},load_balancer.",
    "NUMA balancing": "Turn NUMA balancing off: playbooks/prepare.yml --limit {host}.",
    "hotspot temperature": "Check fans, air flow and the heat sink of GPU {gpu} on {host}.",
    "memory temperature": "Check fans, air flow and the heat sink of GPU {gpu} on {host}.",
}


@dataclass(frozen=True)
class GpuVerdict:
    """The verdict about one GPU.

    Attributes:
        verdict: ok, slow, suspect or bad; None if there was nothing to compare it with
        speed: the verdict of the comparison alone: a bad GPU may be as fast as the others
        scope: what is slow: gpu, node, instance (its GPUs together), or pair (one of two); None for others
        relative: speed of its instance as a share of the median; None if not compared
    """

    gpu: GpuEvidence
    verdict: str | None
    speed: str | None
    scope: str | None
    relative: float | None
    z: float | None
    runs: int
    reasons: tuple[str, ...]
    causes: tuple[Cause, ...]
    next_step: str | None

    @property
    def name(self) -> str:
        """Return the GPU as messages name it: "n1 GPU 3 (0000:35:00.0)"."""
        return f"{self.gpu.host} GPU {self.gpu.index}" + (f" ({self.gpu.bdf})" if self.gpu.bdf else "")

    def to_json(self) -> dict[str, Any]:
        """Return an entry of `gpu_verdicts` in summary.json."""
        return {
            "host": self.gpu.host,
            "gpu": self.gpu.index,
            "bdf": self.gpu.bdf,
            "unique_id": self.gpu.unique_id,
            "instances": list(self.gpu.instances),
            "verdict": self.verdict,
            "speed": self.speed,
            "scope": self.scope,
            "relative": None if self.relative is None else round(self.relative, 4),
            "z": None if self.z is None else round(self.z, 2),
            "runs": self.runs,
            "reasons": list(self.reasons),
            "causes": [cause.to_json() for cause in self.causes],
            "next_step": self.next_step,
        }


def gpu_verdicts(
    rows: Sequence[Row], hosts: Mapping[str, Mapping[str, Any]], earlier: Earlier | None = None
) -> list[GpuVerdict]:
    """Judge the GPUs of `rows` (`benchmarks` or runs of a measurement), by host and index.

    hosts: `hosts` of summary.json. earlier: the GPUs' own earlier medians.
    """
    rows = [row for row in rows if not row.get("live")]
    cells = cell_speeds(rows)
    outcomes = mark_failed_requests(
        compare(rows, _changes(cells, gpus_of(rows, hosts), hosts, earlier or {})), rows
    )
    gpus = add_reading_factors(gather(rows, hosts))
    drafts = [(gpu, _worst([outcomes[gpu.host, name] for name in gpu.instances])) for gpu in gpus]
    slow = [gpu.factors for gpu, outcome in drafts if outcome.verdict == "slow"]
    others = [gpu.factors for gpu, outcome in drafts if outcome.verdict == "ok" and not gpu.faults]
    widths = {key: len(indices) for key, indices in gpus_of(rows, hosts).items()}

    @cache  # the GPUs of a slow node have the same factors
    def causes_of(factors: tuple[tuple[str, str], ...]) -> tuple[Cause, ...]:
        return causes(dict(factors), slow, others)

    judged = [
        _judge(
            gpu, outcome, causes_of(tuple(gpu.factors.items())) if outcome.verdict == "slow" else (), widths
        )
        for gpu, outcome in drafts
    ]
    return sorted(judged, key=lambda item: (natural(item.gpu.host), item.gpu.index or 0))


def cell_name(cell: Sequence[Any]) -> str:
    """Return the name of a cell (its comparison key) by which earlier medians are found."""
    return "/".join("" if part is None else str(part) for part in cell)


def _changes(
    cells: Sequence[CellSpeed],
    gpus: Mapping[InstanceKey, Sequence[int]],
    hosts: Mapping[str, Mapping[str, Any]],
    earlier: Earlier,
) -> dict[InstanceKey, float]:
    """Return the change of each instance's log speed since the earlier runs of its GPUs."""
    found: dict[InstanceKey, list[float]] = {}
    for cell in cells:
        facts = hosts.get(cell.instance[0], {}).get("gpus") or []
        ids = [gpu.get("unique_id") for gpu in facts if gpu["index"] in gpus[cell.instance]]
        medians = [earlier.get(one or "", {}).get(cell_name(cell.cell), ()) for one in ids]
        past = [math.log(value) for own in medians for value in own if value > 0]
        speed = cell.speeds[0]
        if past and speed is not None:
            sign = 1 if cell.metrics[0].higher else -1
            found.setdefault(cell.instance, []).append(speed - sign * statistics.median(past))
    return {instance: statistics.median(changes) for instance, changes in found.items()}


def _worst(outcomes: Sequence[SpeedComparison]) -> SpeedComparison:
    order = {"slow": 0, "suspect": 1, None: 3, "ok": 2}
    return min(outcomes, key=lambda outcome: (order[outcome.verdict], outcome.relative or 1.0))


def _judge(
    gpu: GpuEvidence,
    outcome: SpeedComparison,
    named: tuple[Cause, ...],
    widths: Mapping[InstanceKey, int],
) -> GpuVerdict:
    reasons = [text for _unused, text in gpu.faults]
    if outcome.reason:
        reasons.append(outcome.reason)
    scope = outcome.scope if outcome.verdict in ("slow", "suspect") else None
    if scope == "gpu" and any(widths[gpu.host, name] > 1 for name in gpu.instances):
        scope = "instance"
    verdict = "bad" if gpu.faults else outcome.verdict
    return GpuVerdict(
        gpu=gpu,
        verdict=verdict,
        speed=outcome.verdict,
        scope=scope,
        relative=outcome.relative,
        z=outcome.z,
        runs=outcome.runs,
        reasons=tuple(reasons),
        causes=named,
        next_step=_next_step(gpu, verdict, scope, named),
    )


def _next_step(
    gpu: GpuEvidence, verdict: str | None, scope: str | None, named: Sequence[Cause]
) -> str | None:
    if verdict in ("ok", None):
        return None
    if verdict == "bad":
        step = _BAD_STEPS[gpu.faults[0][0]]
    elif verdict == "suspect":
        step = f"Measure again with at least 3 runs, and test it with {_BURNIN}."
    else:
        step = next((_CAUSE_STEPS[cause.factor] for cause in named if cause.factor in _CAUSE_STEPS), "")
        step = step or f"Test it with {_BURNIN}, which drains what it tests."
    return step.format(host=gpu.host, gpu=gpu.index, bdf=gpu.bdf or "BDF")
