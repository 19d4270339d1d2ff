# SPDX-License-Identifier: Apache-2.0
"""A measured fleet with GPUs of known speed: rows of a summary, the hosts' facts, and what the sensors showed.

Machines differ by 1 % (standard deviation), runs of one machine by their CV; every random number comes from a seed.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HEALTHY: dict[str, Any] = {
    "vbios": "022.040.003.043.000001",
    "power_cap_w": 750,
    "power_w": 640.0,
    "gfx_clock_mhz": 2000.0,
    "hotspot_c": 78.0,
    "memory_c": 66.0,
    "link_width": 16,
    "link_width_max": 16,
    "throttled": {"ppt": 0.4, "prochot": 0.0, "socket_thermal": 0.0, "vr_thermal": 0.0, "hbm_thermal": 0.0},
    "ecc_uncorrectable": 0,
    "ecc_uncorrectable_new": 0,
}


@dataclass
class GpuFleet:
    """A fleet of `nodes` hosts with `per_node` GPUs, one instance on each.

    Attributes:
        slower: share of speed that a GPU lacks, by (node, GPU); (node, None) is the whole node
        telemetry, gpu_facts, host_facts: what differs from a healthy one, by the same keys
    """

    nodes: int = 8
    per_node: int = 8
    runs: int = 5
    cv: float = 0.01
    spread: float = 0.01
    seed: int = 1
    slower: Mapping[tuple[int, int | None], float] = field(default_factory=dict)
    telemetry: Mapping[tuple[int, int], Mapping[str, Any]] = field(default_factory=dict)
    gpu_facts: Mapping[tuple[int, int], Mapping[str, Any]] = field(default_factory=dict)
    host_facts: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    def machines(self) -> dict[tuple[int, int], float]:
        """The true log speed of each GPU: the same for every measurement of the fleet."""
        rng = random.Random(f"machines {self.seed}")
        return {
            (node, gpu): rng.gauss(0, self.spread)
            for node in range(self.nodes)
            for gpu in range(self.per_node)
        }

    def rows(self, session: int = 0, ill: bool = True) -> list[dict[str, Any]]:
        """The cell summaries of one measurement; `ill` false: before anything was slower."""
        rng = random.Random(f"runs {self.seed} {session}")
        drift = 0.02 * session  # what a release changes for all
        rows = []
        for (node, gpu), machine in self.machines().items():
            lacks = self.slower.get((node, gpu), 0.0) + self.slower.get((node, None), 0.0) if ill else 0.0
            speed = machine + math.log(1 - lacks) + drift
            output = sorted(3000 * math.exp(rng.gauss(speed, self.cv)) for _unused in range(self.runs))
            tpot = [31.2 * math.exp(-rng.gauss(speed, self.cv)) for _unused in range(self.runs)]
            seen = {"bdf": bdf(gpu), **HEALTHY, **(self.telemetry.get((node, gpu), {}) if ill else {})}
            rows.append(row(node, gpu, output, statistics.median(tpot), [seen]))
        return rows

    def hosts(self) -> dict[str, Any]:
        """The facts of the hosts, as in summary.json."""
        return {f"n{node + 1}": self._host(node) for node in range(self.nodes)}

    def _host(self, node: int) -> dict[str, Any]:
        gpus = [
            {
                "index": gpu,
                "bdf": bdf(gpu),
                "unique_id": f"{node:04x}{gpu:04x}",
                "numa_node": gpu * 2 // self.per_node,
                "link_speed": "32.0 GT/s PCIe",
                "link_width": 16,
                "compute_partition": "SPX",
                "memory_partition": "NPS1",
                "partitions": 1,
                **self.gpu_facts.get((node, gpu), {}),
            }
            for gpu in range(self.per_node)
        ]
        facts = {"driver": "6.14.14", "rocm": "7.0.0", "kernel": "5.15.0-143-generic", "numa_balancing": 0}
        return {**facts, "gpus": gpus, **self.host_facts.get(node, {})}


def bdf(gpu: int) -> str:
    """The PCI address of a GPU."""
    return f"0000:{5 + 16 * gpu:02x}:00.0"


def row(
    node: int,
    gpu: int,
    output: list[float],
    tpot: float | None,
    telemetry: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """The cell summary of an instance from the output throughput of its runs."""
    return {
        "host": f"n{node + 1}",
        "instance": f"llama-{gpu}",
        "deployment": "llama",
        "kind": "serve",
        "cell": "in1024-out1024-c128",
        "gpus": [gpu],
        "num_prompts": 640,
        "max_concurrency": 128,
        "request_rate": "inf",
        "output_throughput": statistics.median(output),
        "median_tpot_ms": tpot,
        "median_e2el_ms": None,
        "total_token_throughput": None,
        "mean_batch_latency_ms": None,
        "runs": len(output),
        "interval": [min(output), max(output)] if len(output) >= 3 else None,
        "gpu_telemetry": telemetry or [],
    }
