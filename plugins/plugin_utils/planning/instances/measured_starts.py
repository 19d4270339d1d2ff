# SPDX-License-Identifier: Apache-2.0
"""Match what vLLM measured when it started to the instances that are planned.

A node records the lines of a start under the key of what they depend on (serving/start_lines.py), so one start corrects
the plan of every host that runs the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ....module_utils.common.hashing import canonical, text_hash
from ...knowledge.sizing.estimates import MeasuredStart
from ...knowledge.sizing.start_log import read_start_log
from ..desired.deployment import Deployment
from ..desired.fleet import Host
from ..observed.node_state import RecordedStart
from ..tuning.tune import TargetGpu, TunedSettings

LENGTH = "--max-model-len"
"""Not part of the key: another length divides the same cache among longer requests."""


@dataclass(frozen=True)
class StartRecord:
    """A recorded start, and the host on which it was measured."""

    host: str
    start: RecordedStart


def start_key(
    deployment: Deployment, image: str, commit: str, machine: TargetGpu, tuned: TunedSettings
) -> str:
    """Return the key of everything that the memory of a start depends on. image, commit: as pinned, else as written."""
    build = str(deployment.build) if deployment.build else ""
    return text_hash(
        canonical({
            "software": [image, build, tuned.release.name],
            "model": [deployment.model, commit],
            "gpu": [machine.gfx, machine.name, machine.compute, machine.memory, machine.memory_bytes],
            "parallel": [
                deployment.tensor_parallel_size,
                deployment.pipeline_parallel_size,
                deployment.data_parallel_size,
                deployment.nodes,
                deployment.instances_per_gpu,
            ],
            "args": {name: value for name, value in tuned.args.items() if name != LENGTH},
            "env": dict(tuned.env),
        })
    )[:32]  # fmt: skip


def recorded_starts(hosts: Iterable[Host]) -> dict[str, StartRecord]:
    """Return the newest recorded start for each key."""
    found: dict[str, StartRecord] = {}
    for host in hosts:
        for instance in host.state.instances if host.state else ():
            start = instance.start
            if start and (start.key not in found or found[start.key].start.at < start.at):
                found[start.key] = StartRecord(host.name, start)
    return found


def measured_start(starts: Mapping[str, StartRecord], key: str, block_size: object) -> MeasuredStart | None:
    """Return what was measured at a start with this key; None if there was none, or its log does not say."""
    record = starts.get(key)
    if record is None:
        return None
    log = read_start_log(record.start.lines, block_size if isinstance(block_size, int) else 16)
    return MeasuredStart(log, record.host, record.start.at) if log else None
