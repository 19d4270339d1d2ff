# SPDX-License-Identifier: Apache-2.0
"""The columns of a row that come from the telemetry of its GPUs (module_utils/bench/telemetry.py). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Gpu = Mapping[str, Any]


def telemetry_columns(run: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns for a run of vllm_bench with its metrics; null where something was not measured.

    Power is the sum of the instance's GPUs over the requests' window. It is valid only if every GPU's energy is, and no
    other instance ran on them (`power_valid`; null without any sensor).
    """
    telemetry = run.get("telemetry")
    telemetry = telemetry if isinstance(telemetry, Mapping) else {}
    gpus: Sequence[Gpu] = telemetry.get("gpus") or []
    joules = [gpu["energy_j"] for gpu in gpus if gpu.get("energy_j") is not None]
    sensed = [gpu for gpu in gpus if gpu.get("power_w") is not None]
    valid = len(joules) == len(gpus) and not telemetry.get("shared")
    energy = sum(joules) if joules and valid else None
    seconds, tokens = metrics.get("duration_s"), metrics.get("total_output_tokens")
    return {
        "gpu_telemetry": [dict(gpu) for gpu in gpus],
        "power_w": energy / seconds if energy is not None and seconds else None,
        "joules_per_output_token": energy / tokens if energy is not None and tokens else None,
        "power_valid": valid if sensed else None,
        "throttled": most_throttled(gpus),
        "ecc": _errors(gpus),
    }


def most_throttled(items: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Return the largest share of the time by cause, of GPUs or of rows; None if none has such counters."""
    shares: dict[str, float] = {}
    for item in items:
        for cause, share in (item.get("throttled") or {}).items():
            shares[cause] = max(share, shares.get(cause, 0.0))
    return shares or None


def _errors(gpus: Sequence[Gpu]) -> int | None:
    """Return the uncorrectable memory errors of the GPUs; None if no GPU has counted them."""
    known = [gpu["ecc_uncorrectable"] for gpu in gpus if gpu.get("ecc_uncorrectable") is not None]
    return int(sum(known)) if known else None
