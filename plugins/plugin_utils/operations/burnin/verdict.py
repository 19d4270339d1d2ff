# SPDX-License-Identifier: Apache-2.0
"""Judge the GPUs that gpu_burnin tested: against a healthy GPU of the model, and against the fleet's median. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....module_utils.common.errors import natural
from ...base.json_record import JsonRecord
from ...measuring.outliers.compare import MIN_PEERS, ONE_METRIC
from ...measuring.outliers.evidence import faults
from ...measuring.outliers.robust import deviations

Result = Mapping[str, Any]
"""`burnin` of gpu_burnin, of one host."""
Acceptance = Mapping[str, Any]
"""catalog/gpu_acceptance.yml."""

_LABELS = {
    "gemm_fp16": ("GEMM fp16", "TFLOPS"),
    "gemm_bf16": ("GEMM bf16", "TFLOPS"),
    "gemm_fp8": ("GEMM fp8", "TFLOPS"),
    "copy_gbps": ("memory copy", "GB/s"),
    "peer_gbps": ("copies to the other GPUs", "GB/s"),
    "reduce_gbps": ("all-reduce of the node", "GB/s"),
}
# That a GPU does not compute a type is not a fault if the image or the model does not support it: its neighbours show.
_OPTIONAL = ("fp8",)
_STEPS = {
    "wrong": "Take {host} out of service (playbooks/stop.yml --limit {host},load_balancer): the GPU computes wrong "
    "results. Test it once more; if it repeats, replace the GPU, and give the vendor this result.",
    "error": "Look at the kernel log (dmesg | grep -i amdgpu), reboot {host}, test it again, and replace the GPU "
    "if it fails again.",
    "fault": "See docs/runbooks/slow-gpu.md for ECC errors, a narrow link and heat; test it again afterwards.",
    "slow": "Compare power cap, clocks, temperature and VBIOS with its neighbours (amd-smi metric, amd-smi static), "
    "reseat it if the link is narrow, test it again, and ask the vendor if it stays slow.",
}


@dataclass(frozen=True)
class BurninVerdict(JsonRecord):
    """The verdict about one device: ok, slow or bad; None if nothing was tested that could be judged."""

    host: str
    gpu: int
    bdf: str | None
    verdict: str | None
    measured: Mapping[str, float]
    reasons: tuple[str, ...]
    next_step: str | None

    def to_json(self) -> dict[str, Any]:
        """Return an entry of `verdicts` in burnin.json."""
        measured = {key: round(value, 3) for key, value in self.measured.items()}
        return {**super().to_json(), "measured": measured}


@dataclass(frozen=True)
class _Device:
    host: str
    model: str
    data: Mapping[str, Any]
    measured: Mapping[str, float]


def burnin_verdicts(
    results: Mapping[str, Result], acceptance: Acceptance, models: Mapping[str, str]
) -> list[BurninVerdict]:
    """Judge all devices, by host and number.

    results: by host. models: names by PCI id ("1002:74a1": "MI300X").
    """
    devices = [
        _Device(host, _model(data, models), data, device_speeds(data, result))
        for host, result in sorted(results.items(), key=lambda item: natural(item[0]))
        if result["device"] == "gpu"
        for data in result["gpus"]
    ]
    tried = [
        BurninVerdict(
            host,
            data["gpu"],
            None,
            None,
            device_speeds(data, result),
            ("tried on the CPU: not judged",),
            None,
        )
        for host, result in sorted(results.items(), key=lambda item: natural(item[0]))
        if result["device"] != "gpu"
        for data in result["gpus"]
    ]
    slow = _slow(devices, acceptance)
    can = {(device.host, device.model, metric) for device in devices for metric in device.measured}
    return [
        _judge(
            device,
            slow[number],
            [kind for kind in _OPTIONAL if (device.host, device.model, f"gemm_{kind}") not in can],
        )
        for number, device in enumerate(devices)
    ] + tried


def device_speeds(data: Mapping[str, Any], result: Result) -> dict[str, float]:
    """Return the speeds of a device by metric, without those that were not measured."""
    found: dict[str, float] = {}
    for kind, product in (data.get("gemm") or {}).items():
        if "tflops" in product:
            found[f"gemm_{kind}"] = product["tflops"]
    if isinstance(data.get("copy_gbps"), (int, float)):
        found["copy_gbps"] = data["copy_gbps"]
    peers = [rate for rate in (data.get("peer_gbps") or {}).values() if isinstance(rate, (int, float))]
    if peers:
        found["peer_gbps"] = statistics.median(peers)
    # Of the largest size, by the slowest rank: if all of them are there, the ring is as fast as its slowest member.
    rates = [rank.get("rates") or {} for rank in result["reduce"]]
    if rates and all(rates):
        largest = max(rates[0], key=int)
        found["reduce_gbps"] = min(rank[largest] for rank in rates)
    return found


def between_error(result: Result) -> str:
    """Return why the test between the GPUs of a host has no result; "" if it has a result."""
    errors = [result["peers_error"], *(rank.get("error") for rank in result["reduce"])]
    return next((f"test between GPUs: {error}" for error in errors if error), "")


def _model(data: Mapping[str, Any], models: Mapping[str, str]) -> str:
    vendor, device = data.get("vendor_id"), data.get("device_id")
    if vendor is None or device is None:
        return str(data.get("name") or "")
    return models.get(f"{vendor:04x}:{device:04x}", str(data.get("name") or ""))


def _slow(devices: Sequence[_Device], acceptance: Acceptance) -> list[list[str]]:
    """Return why each device is slow: below the value of a healthy one, or an outlier among those of its model.

    Each metric is a chance of a false alarm: an outlier in only one metric must be a large one.
    """
    found: list[list[str]] = [[] for _unused in devices]
    outliers: list[list[tuple[float, str]]] = [[] for _unused in devices]
    for metric, (label, unit) in _LABELS.items():
        for number, device in enumerate(devices):
            limit = acceptance["models"].get(device.model, {}).get(metric)
            value = device.measured.get(metric)
            if limit and value is not None and value < limit["value"] * acceptance["share"]:
                share = acceptance["share"] * 100
                found[number].append(
                    f"{label} {value:,.1f} {unit}, below {share:.0f}% of {limit['value']:,g} ({limit['what']})"
                )
        for model in {device.model for device in devices}:
            alike = [
                (number, device.measured[metric])
                for number, device in enumerate(devices)
                if device.model == model and device.measured.get(metric, 0) > 0
            ]
            if len(alike) < MIN_PEERS:
                continue
            off = deviations([math.log(value) for _unused, value in alike])
            for (number, value), deviation in zip(alike, off):
                if deviation.slow:
                    below = f"{deviation.slower * 100:.0f}% below the median of the fleet's {model or 'GPUs'}"
                    outliers[number].append((deviation.slower, f"{label} {value:,.1f} {unit}, {below}"))
    for texts, own in zip(found, outliers, strict=True):
        if len(own) > 1 or any(slower >= ONE_METRIC for slower, _text in own):
            texts += [text for _slower, text in own]
    return found


def _judge(device: _Device, slow: Sequence[str], unsupported: Collection[str]) -> BurninVerdict:
    """Judge a device; unsupported: types that no device of its model on its host computes."""
    found = _wrong(device.data, unsupported)
    kind = found[0][0] if found else "slow" if slow else ""
    reasons = [text for _unused, text in found] + list(slow)
    verdict = "bad" if found else "slow" if slow else "ok" if device.measured else None
    return BurninVerdict(
        host=device.host,
        gpu=device.data["gpu"],
        bdf=device.data.get("bdf"),
        verdict=verdict,
        measured=device.measured,
        reasons=tuple(reasons),
        next_step=_STEPS[kind].format(host=device.host) if kind else None,
    )


def _wrong(data: Mapping[str, Any], unsupported: Collection[str]) -> list[tuple[str, str]]:
    """Return what makes a device bad, the most serious first."""
    found: list[tuple[str, str]] = []
    for kind, product in (data.get("gemm") or {}).items():
        if product.get("wrong_elements"):
            text = f"GEMM {kind}: {product['wrong_elements']:,} wrong elements in {product['products']:,} products"
            found.append(("wrong", text))
        elif product.get("rows_right") is False:
            found.append(("wrong", f"GEMM {kind}: the product differs from that of the CPU"))
    errors = {f"GEMM {kind}": product.get("error") for kind, product in (data.get("gemm") or {}).items()}
    errors = {name: error for name, error in errors.items() if name.split()[1] not in unsupported}
    copies = data.get("copy_gbps")
    errors["memory copy"] = copies.get("error") if isinstance(copies, Mapping) else None
    errors["test"] = data.get("error")
    for target, rate in (data.get("peer_gbps") or {}).items():
        errors[f"copy to GPU {target}"] = rate.get("error") if isinstance(rate, Mapping) else None
    for name, error in errors.items():
        if error:
            found.append(("wrong" if "differs from what was sent" in error else "error", f"{name}: {error}"))
    telemetry = data.get("telemetry")
    found += [("fault", text) for _unused, text in faults([telemetry] if telemetry else [])]
    return sorted(found, key=lambda item: ("wrong", "error", "fault").index(item[0]))
