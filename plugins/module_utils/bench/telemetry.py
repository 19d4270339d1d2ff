# SPDX-License-Identifier: Apache-2.0
"""Record what a node's GPUs do while they are measured, so that a slow one has a cause.

Power, clocks and temperatures are sampled from sysfs once a second, which costs a few small reads per GPU. amd-smi
opens every device and runs before and after only: throttle counters, ECC counts and energy are differences.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.processes import Program, run_program
from ..observe.driver import read_rocm
from ..observe.gpus import read_gpus
from ..observe.source import Source
from .power import Energy, agrees, energy
from .smi_metrics import parse_metric, parse_static, throttle_shares

INTERVAL = 1.0
_TOOL_SECONDS = 30
# hwmon's inputs by their label: key here, divisor of the file's unit (microwatt, millidegree, hertz).
_LABELS = {
    "ppt": ("power_w", 1e6),
    "junction": ("hotspot_c", 1e3),
    "mem": ("memory_c", 1e3),
    "sclk": ("gfx_clock_mhz", 1e6),
    "mclk": ("memory_clock_mhz", 1e6),
}
Json = dict[str, Any]


class Recorder:
    """Records a node's GPUs from its creation until `finish`. Nothing here fails a measurement: problems are listed."""

    def __init__(self, root: str = "/") -> None:
        self._source = Source(root)
        self.problems: list[str] = []
        self._gpus = read_gpus(self._source)
        self._inputs = {gpu["bdf"]: hwmon_inputs(self._source, gpu["sysfs_path"]) for gpu in self._gpus}
        self._samples: dict[str, list[tuple[float, dict[str, float]]]] = {bdf: [] for bdf in self._inputs}
        self._tool = read_rocm(self._source)["tools"].get("amd-smi") if self._gpus else None
        static = self._ask("static")
        self._numbers = {number: reading.get("bdf") for number, reading in static.items()}
        self._static = self._by_bdf(static)
        self._before = self._by_bdf(self._ask("metric"))
        self._read_at = time.time()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        if self._gpus:
            self._thread.start()

    def finish(self, entries: Sequence[Json]) -> None:
        """Stop, and fill `telemetry` of each run of entries of vllm_bench: of the instance's GPUs, in the run's window.

        It stays None without GPUs, for runs of an earlier call, and for a load balancer: other GPUs answer as well.
        """
        if not self._gpus:
            return
        self._stopped.set()
        self._thread.join(_TOOL_SECONDS)
        after, ended = self._by_bdf(self._ask("metric")), time.time()
        users: dict[str, set[str]] = {bdf: set() for bdf in self._inputs}
        for entry in entries:
            for gpu in self._gpus_of(entry):
                users[gpu["bdf"]].add(entry["instance"])
        for entry in entries:
            own = [] if entry["live"] else self._gpus_of(entry)
            shared = any(len(users[gpu["bdf"]]) > 1 for gpu in own)
            for run in entry["runs"]:
                if own and run["started"] >= self._read_at:
                    gpus = [self._gpu(gpu, after, window(run), ended) for gpu in own]
                    run["telemetry"] = {"gpus": gpus, "problems": list(self.problems), "shared": shared}

    def _sample(self) -> None:
        while True:
            for bdf, inputs in self._inputs.items():
                values = {key: self._source.peek(path) for key, (path, _unused) in inputs.items()}
                reading = {
                    key: int(text) / inputs[key][1] for key, text in values.items() if text and text.isdigit()
                }
                self._samples[bdf].append((time.time(), reading))
            if self._stopped.wait(INTERVAL):
                return

    def _gpu(self, gpu: Json, after: Mapping[str, Json], span: tuple[float, float], ended: float) -> Json:
        bdf, path = gpu["bdf"], gpu["sysfs_path"]
        first, last, static = self._before.get(bdf, {}), after.get(bdf, {}), self._static.get(bdf, {})
        samples = list(self._samples[bdf])
        inside = [reading for at, reading in samples if span[0] <= at <= span[1]]
        used = self._energy(samples, span, ended, _difference(first, last, "energy_j"))
        errors = last.get("ecc_uncorrectable")
        return {
            "bdf": bdf,
            **{key: _mean(inside, key) for key, _unused in _LABELS.values()},
            "energy_j": used.joules,
            "energy_invalid": used.why or None,
            "throttled": throttle_shares(first, last),
            "ecc_uncorrectable": gpu["ecc_uncorrectable"] if errors is None else errors,
            "ecc_uncorrectable_new": _difference(first, last, "ecc_uncorrectable"),
            "ecc_correctable_new": _difference(first, last, "ecc_correctable"),
            "link_width": self._source.number(f"{path}/current_link_width"),
            "link_width_max": self._source.number(f"{path}/max_link_width"),
            "link_speed": self._source.text(f"{path}/current_link_speed"),
            "link_speed_max": self._source.text(f"{path}/max_link_speed"),
            "vbios": static.get("vbios") or self._source.text(f"{path}/vbios_version"),
            "power_cap_w": static.get("power_cap_w"),
        }

    def _energy(
        self,
        samples: Sequence[tuple[float, dict[str, float]]],
        span: tuple[float, float],
        ended: float,
        counted: float | None,
    ) -> Energy:
        power = [(at, reading["power_w"]) for at, reading in samples if "power_w" in reading]
        # The counter is of the whole time, so it is compared with the trapezoid of the whole time.
        whole = agrees(energy(power, self._read_at, ended), counted)
        return whole if whole.joules is None and counted else energy(power, *span)

    def _gpus_of(self, entry: Json) -> list[Json]:
        nodes = set((entry.get("instance_plan") or {}).get("render_nodes") or ())
        return [gpu for gpu in self._gpus if any(part["render_node"] in nodes for part in gpu["partitions"])]

    def _by_bdf(self, found: Mapping[int, Json]) -> dict[str, Json]:
        """Return what amd-smi says by PCI address. Its numbers are those of `static`, else in PCI order."""
        addresses = [gpu["bdf"] for gpu in self._gpus for _unused in gpu["partitions"]]
        by_bdf: dict[str, Json] = {}
        for number, reading in sorted(found.items()):
            bdf = self._numbers.get(number) or (addresses[number] if number < len(addresses) else None)
            # Partitions are numbered devices with a function of their own; only the first one has readings.
            primary = next(
                (own for own in self._inputs if bdf and own.split(".")[0] == bdf.split(".")[0]), None
            )
            if primary:
                by_bdf.setdefault(primary, reading)
        return by_bdf

    def _ask(self, what: str) -> dict[int, Json]:
        if not self._tool:
            return {}
        parse = parse_static if what == "static" else parse_metric
        try:
            done = run_program(Program([self._source.root + self._tool, what, "--json"]), _TOOL_SECONDS)
            if done.code is None:
                raise ValueError(f"did not finish within {_TOOL_SECONDS} s")
            return parse(done.out)
        except (OSError, ValueError) as error:
            self.problems.append(f"amd-smi {what} --json: {error}")
            return {}


def hwmon_inputs(source: Source, device: str) -> dict[str, tuple[str, float]]:
    """Return the sensors of a GPU's hwmon directory by key: path and divisor. Empty if the driver shows none."""
    found = {}
    for name in source.names(f"{device}/hwmon"):
        place = f"{device}/hwmon/{name}"
        for file in source.names(place):
            if not file.endswith("_label"):
                continue
            key = _LABELS.get((source.peek(f"{place}/{file}") or "").lower())
            stem = file[: -len("_label")]
            # Power is an average or a momentary value, by the model.
            inputs = [f"{place}/{stem}_{kind}" for kind in ("average", "input")]
            path = next((path for path in inputs if source.exists(path)), None)
            if key and path:
                found[key[0]] = (path, key[1])
    return found


def window(run: Mapping[str, Any]) -> tuple[float, float]:
    """Return start and end of the requests of a run, without the client's start."""
    start = float(run["started"])
    end = start + float(run["seconds"] or 0.0)
    duration = (run.get("result") or {}).get("duration")
    if isinstance(duration, (int, float)) and 0 < duration < end - start:
        start = end - duration
    return start, end


def _mean(readings: Sequence[Mapping[str, float]], key: str) -> float | None:
    known = [reading[key] for reading in readings if key in reading]
    return statistics.fmean(known) if known else None


def _difference(first: Mapping[str, Any], last: Mapping[str, Any], key: str) -> float | None:
    start, end = first.get(key), last.get(key)
    return end - start if start is not None and end is not None and end >= start else None
