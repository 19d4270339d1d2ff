# SPDX-License-Identifier: Apache-2.0
"""A fleet measured by a suite of many loads, and what lies beside its report: for tests, and to look at.

`python -m tests.worlds.report_fleet DIRECTORY` writes the reports of 2, 16 and 64 nodes there.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import Redactor
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import (
    load_baselines,
    load_gpus,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.decode import decode_step
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.cells import Side
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.published import (
    read_published,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.report import render_report
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.run_context import RunContext
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.node_facts import host_facts
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.rows import MeasuredRun
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.summary import (
    MeasuredRuns,
    MeasurementFailure,
    build_summary,
    collect,
)

from tests.worlds.bench_samples import (
    COMMIT,
    DIGEST,
    GPU_MODELS,
    IMAGE,
    entry,
    instance_plan,
    node_state,
    run,
    serve_result,
    variables,
)
from tests.worlds.fit_world import engine, model

MODEL = "amd/Llama-3.3-70B-Instruct-FP8-KV"
SHAPES = ((8192, 1024, 1.5), (1024, 1024, 1.0))
LOADS = (*(("concurrency", value) for value in (4, 8, 16, 32, 64, 128, 256)), ("rate", 2), ("rate", 6))
SLOS = [
    {"name": "server", "ttft_ms": 2000, "tpot_ms": 100, "e2el_ms": None},
    {"name": "interactive", "ttft_ms": 500, "tpot_ms": 30, "e2el_ms": None},
]


def llama_step(width: int) -> dict[str, Any]:
    """INSTANCE.decode_step of the model on MI300X."""
    shape = model(
        "meta-llama/Llama-3.1-70B", quantization_config={"quant_method": "fp8", "ignore": ["lm_head"]}
    )
    gpu = load_gpus().by_name("MI300X")
    assert gpu
    step = decode_step(shape, engine(tp=width, kv_cache_dtype="fp8"), gpu.peak_of("SPX"))
    assert step
    return step.to_json()


@cache
def pattern(width: int) -> tuple[MeasuredRun, ...]:
    """The runs of one instance on `width` GPUs under every load: the others are made from them."""
    gpus = tuple(range(width))
    entries = []
    step = llama_step(width)
    for length_in, length_out, work in SHAPES:
        for kind, value in LOADS:
            runs = [
                run(result(length_in, length_out, work, kind, value, width), block) for block in (1, 2, 3)
            ]
            entries.append(
                entry(
                    "n", "llama", 0, gpus, runs=runs, slos=SLOS, suite="inferencex", model=MODEL,
                    cell=f"in{length_in}-out{length_out}-{kind[0]}{value}",
                    shape={"input": length_in, "output": length_out}, load={"kind": kind, "value": value},
                    metric="output_throughput" if kind == "concurrency" else "median_tpot_ms",
                    instance_plan=instance_plan("llama", 0, list(gpus), decode_step=step),
                )
            )  # fmt: skip
    return collect(["n"], {"n": variables("n", entries)}, Redactor(), GPU_MODELS).runs


def result(length_in: int, length_out: int, work: float, kind: str, value: int, width: int) -> dict[str, Any]:
    """JSON of the client for an engine whose time per token grows with the requests in flight."""
    flight = value if kind == "concurrency" else 12 * value
    tpot = (7.5 + 0.24 * work * flight) * (1.0 if width > 1 else 1.4)
    output = 930 * flight / tpot
    found = serve_result(random.Random(1), prompts=10 * flight)
    middles = {"tpot": tpot, "itl": tpot * 0.97, "ttft": 60 * work + 3 * flight, "e2el": tpot * length_out}
    for name, middle in middles.items():
        factor = middle / found[f"median_{name}_ms"]
        found |= {key: found[key] * factor for key in found if key.endswith(f"_{name}_ms")}
    count = found["num_prompts"]
    return found | {
        "max_concurrency": flight if kind == "concurrency" else None,
        "request_rate": value if kind == "rate" else "inf",
        "output_throughput": output,
        "total_token_throughput": output * (1 + length_in / length_out),
        "request_throughput": output / length_out,
        "duration": count * length_out / output,
        "total_input_tokens": count * length_in,
        "total_output_tokens": count * length_out,
    }


def reading(rng: random.Random, gpu: int, flight: float, lacks: float) -> dict[str, Any]:
    """What the sensors of a GPU showed."""
    watts = min(745, 330 + 70 * flight**0.36) * rng.gauss(1, 0.012)
    return {
        "bdf": f"0000:{5 + 16 * gpu:02x}:00.0",
        "power_w": watts,
        "energy_invalid": None,
        "gfx_clock_mhz": (2080 - 0.4 * flight) * (1 - lacks) * rng.gauss(1, 0.004),
        "hotspot_c": 62 + watts / 40 + 2 * (gpu % 4) + rng.gauss(0, 1.2) + 130 * lacks,
        "memory_c": 55 + watts / 50 + rng.gauss(0, 1.0),
        "throttled": {"ppt": 0.3 if flight > 100 else 0.0, "socket_thermal": 0.4 if lacks > 0.1 else 0.0},
        "ecc_uncorrectable": 0,
    }


def measured_run(of: MeasuredRun, host: str, index: int, width: int, lacks: float, day: int) -> MeasuredRun:
    """The same run on another instance: with other GPUs, noise of 0.6 %, and slower by `lacks`."""
    row = of.row
    rng = random.Random(f"{host} {index} {row['cell']} {row['block']} {day}")
    speed = (1 - lacks) * rng.gauss(1, 0.006)
    flight = row["load"]["value"] * (12 if row["load"]["kind"] == "rate" else 1)
    gpus = list(range(index * width, (index + 1) * width))
    readings = [reading(rng, gpu, flight, lacks) for gpu in gpus]
    scaled = {key: row[key] * speed for key in row if key.endswith("_throughput") and row[key]}
    scaled |= {key: row[key] / speed for key in row if key.endswith("_ms") and row[key]}
    watts = sum(item["power_w"] for item in readings)
    started = f"2026-01-{31 - day}T1{row['block']}:00:00Z"
    own = {
        **row, **scaled, "host": host, "instance": f"llama-{index}", "gpus": gpus, "port": 8000 + index,
        "started": started, "gpu_telemetry": readings, "power_w": watts, "power_valid": True,
        "joules_per_output_token": watts / scaled["output_throughput"],
        "goodput": {slo["name"]: scaled["request_throughput"] * (scaled["median_tpot_ms"] < slo["tpot_ms"])
                    for slo in SLOS},
    }  # fmt: skip
    return MeasuredRun(own, {}, None, None)


def measured(
    nodes: int, width: int, ill: bool, day: int = 0, gain: float = 0.0, driver: str = "6.14.14"
) -> MeasuredRuns:
    """A fleet with an instance on each `width` GPUs; if `ill`, some are slow, and one host is not reached."""
    runs, hosts, failures = [], {}, []
    for number in range(1, nodes + 1):
        host = f"mi300x-{number:02d}"
        if ill and number == 13:
            failures.append(MeasurementFailure(host, "connection", "Connection timed out"))
            continue
        state = node_state(host, driver={"loaded": True, "version": driver})
        hosts[host] = host_facts(state, GPU_MODELS)
        for index in range(8 // width):
            lacks = 0.14 if ill and (number, index) in ((5, 3 % (8 // width)), (41, 0)) else 0.0
            runs += [measured_run(of, host, index, width, lacks - gain, day) for of in pattern(width)]
    shared = {"model": MODEL, "revision": "main", "commit": COMMIT, "image": IMAGE, "digest": DIGEST,
              "served_model": "llama", "slos": SLOS, "reasons_of": "llama-0", "reasons": []}  # fmt: skip
    return MeasuredRuns(tuple(runs), hosts, tuple(failures), {"llama": shared})


def accuracy(digest: str = DIGEST, problems: tuple[str, ...] = ()) -> dict[str, Any]:
    """The content of accuracy.json of the deployment."""
    score = {
        "score": 0.9833,
        "interval": [0.9616, 0.9929],
        "n": 300,
        "right": 295,
        "failed": [],
        "published": [],
    }
    against = {"verdict": "pass", "loss_points": 0.3}
    grade = {
        "score": 0.9371,
        "interval": [0.9226, 0.9490],
        "n": 1319,
        "right": 1236,
        "why": "",
        "against": None,
    }
    published = [{"state": "within", "decides": False, "score": 0.942, "differs": ["chat template"]}]
    entry_of = {
        "tasks": {
            "sanity": {**score, "against": against, "why": ""},
            "gsm8k": {**grade, "why": "no earlier run to compare with", "published": published},
        },
        "nll": 1.8123,
        "replicas": [{}] * 2,
        "problems": list(problems),
        "run": {
            "identity": {"model": MODEL, "commit": COMMIT, "image": f"{IMAGE.partition(':')[0]}@{digest}"}
        },
    }
    return {"schema": 1, "finished": "2026-01-31T09:02:11Z", "deployments": {"llama": entry_of}}


def page(
    nodes: int, width: int = 8, ill: bool = True, previous: bool = True
) -> tuple[dict[str, Any], RunContext]:
    """The summary of a fleet and what lies beside it: a run before it that was faster, and its accuracy."""
    own = measured(nodes, width, ill)
    summary = build_summary("20260131T101500Z", "2026-01-31T11:18:41Z", own)
    around = RunContext(
        runs=own.rows, published=read_published(load_baselines()), plan=True,
        accuracy={"accuracy-20260131T090000Z": accuracy()},
    )  # fmt: skip
    if previous:
        before = measured(nodes, width, ill, 4, 0.14 if ill else 0.0, "6.12.12")
        older = tuple({**row, "digest": "sha256:" + "77" * 32} for row in before.rows)
        around = replace(around, previous=Side("20260127T101500Z", older, before.hosts))
    return summary, around


def main(directory: Path) -> None:
    """Write the reports."""
    directory.mkdir(parents=True, exist_ok=True)
    for nodes, width in ((2, 8), (16, 4), (64, 1)):
        html = render_report(*page(nodes, width))
        (directory / f"nodes-{nodes}.html").write_text(html, encoding="utf-8")
    (directory / "healthy-2.html").write_text(render_report(*page(2, 8, ill=False)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
