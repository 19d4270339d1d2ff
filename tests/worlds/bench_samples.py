# SPDX-License-Identifier: Apache-2.0
"""Realistic results of a fleet, the same ones every time: for the tests of the report, and to look at it.

`python -m tests.worlds.bench_samples DIRECTORY` writes the reports of several fleets there.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

COMMIT = "1605565b47bb9346c5515c34102e054115b4f98b"
DIGEST = "sha256:" + "4f2a9c" * 10 + "beef"
IMAGE = "rocm/vllm:rocm7.0.0_vllm_0.10.1_20250915"
MODEL = "meta-llama/Llama-3.1-70B-Instruct"
GPU_MODELS = {"1002:74a1": "MI300X"}


def serve_result(
    rng: random.Random, speed: float = 1.0, failed: int = 0, prompts: int = 640
) -> dict[str, Any]:
    """JSON of `vllm bench serve` 0.11.1 with --metric-percentiles 50,90,95,99 and all four metrics."""
    speed *= rng.gauss(1, 0.008)
    completed = prompts - failed
    duration = 168.4 / speed
    result: dict[str, Any] = {
        "date": "20260131-101502",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": MODEL,
        "tokenizer_id": MODEL,
        "num_prompts": prompts,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 128,
        "duration": duration,
        "completed": completed,
        "failed": failed,
        "total_input_tokens": completed * 1024,
        "total_output_tokens": completed * 1024,
        "request_throughput": completed / duration,
        "request_goodput": None,
        "output_throughput": completed * 1024 / duration,
        "total_token_throughput": completed * 2048 / duration,
        "max_output_tokens_per_s": completed * 1300 / duration,
        "max_concurrent_requests": 141,
    }
    shapes = {"ttft": (410, 2.4), "tpot": (31.2, 1.12), "itl": (29.8, 1.9), "e2el": (32300, 1.07)}
    for name, (median, typical) in shapes.items():
        middle = median / speed * rng.gauss(1, 0.01)
        tail = max(1.02, typical * rng.gauss(1, 0.04))
        result[f"mean_{name}_ms"] = middle * (1 + (tail - 1) / 5)
        result[f"median_{name}_ms"] = middle
        result[f"std_{name}_ms"] = middle * (tail - 1) / 2.3
        for percentile, share in (("50", 0.0), ("90", 0.45), ("95", 0.62), ("99", 1.0)):
            result[f"p{percentile}_{name}_ms"] = middle * (1 + (tail - 1) * share)
    return result


def latency_result() -> dict[str, Any]:
    """JSON of `vllm bench latency`: seconds."""
    times = [17.31, 17.28, 17.35, 17.30, 17.29]
    percentiles = {"10": 17.284, "25": 17.29, "50": 17.30, "75": 17.31, "90": 17.334, "99": 17.3484}
    return {"avg_latency": sum(times) / len(times), "latencies": times, "percentiles": percentiles}


def throughput_result() -> dict[str, Any]:
    """JSON of `vllm bench throughput`."""
    return {
        "elapsed_time": 300.0,
        "num_requests": 1500,
        "total_num_tokens": 3264000,
        "requests_per_second": 5.0,
        "tokens_per_second": 10880.0,
    }


def instance_plan(deployment: str, index: int, gpus: list[int], **more: Any) -> dict[str, Any]:
    """An INSTANCE of the plan."""
    argv = f"vllm serve {MODEL} --revision {COMMIT} --host 0.0.0.0 --port {8000 + index}"
    argv += f" --tensor-parallel-size {len(gpus)} --max-model-len 32768 --max-num-seqs 512"
    argv += " --max-num-batched-tokens 131072 --gpu-memory-utilization 0.92 --no-enable-prefix-caching"
    nodes = [f"renderD{128 + 8 * gpu}" for gpu in gpus]
    return {
        "name": f"{deployment}-{index}",
        "deployment": deployment,
        "index": index,
        "model": MODEL,
        "served_model": "llama-3.1-70b",
        "revision": "main",
        "commit": COMMIT,
        "image": IMAGE,
        "vllm": "0.10.1",
        "port": 8000 + index,
        "gpus": gpus,
        "render_nodes": nodes,
        "argv": argv.split(),
        "env": {
            "HIP_VISIBLE_DEVICES": ",".join(map(str, gpus)),
            "HF_HUB_OFFLINE": "1",
            "VLLM_ROCM_USE_AITER": "1",
            "NCCL_MIN_NCHANNELS": "112",
        },
        "devices": ["/dev/kfd", *(f"/dev/dri/{node}" for node in nodes)],
        "spec_hash": "ab" * 32,
        "reasons": [
            {
                "setting": "--max-num-batched-tokens",
                "value": 131072,
                "reason": "prefill in large steps keeps the matrix cores busy",
                "source": "ROCm/vllm docs/dev-docker/README.md",
            },
            {
                "setting": "NCCL_MIN_NCHANNELS",
                "value": 112,
                "reason": "RCCL on MI300X uses all channels between 8 GPUs",
                "source": "rocm.docs.amd.com, MI300X workload optimization",
            },
        ],
        **more,
    }


def entry(
    host: str, deployment: str = "llama", index: int = 0, gpus: tuple[int, ...] = (0,), **more: Any
) -> dict[str, Any]:
    """A benchmark of one run as vllm_bench returns it; `result`, `started`, `seconds` and `log` are the run's."""
    base = f"http://127.0.0.1:{8000 + index}"
    result = more.pop("result", serve_result(random.Random(f"{host}/{deployment}/{index}")))
    started = more.pop("started", 1769854502.25)
    return {
        "instance": f"{deployment}-{index}",
        "deployment": deployment,
        "kind": "serve",
        "model": MODEL,
        "commit": COMMIT,
        "image": IMAGE,
        "digest": DIGEST,
        "command": f"vllm bench serve --base-url {base} --model {MODEL} --dataset-name random"
        " --random-input-len 1024 --random-output-len 1024 --num-prompts 640 --max-concurrency 128"
        " --ignore-eos --temperature 0"
        " --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,95,99",
        "runs": [] if result is None else [run(result, started=started)],
        "log": "",
        "error": None,
        "instance_plan": instance_plan(deployment, index, list(gpus)),
        **more,
    }


def run(result: Any, block: int = 1, **more: Any) -> dict[str, Any]:
    """A run of an entry."""
    return {
        "block": block,
        "order": 1,
        "seed": 40 + block,
        "started": 1769854502.25 + 200 * (block - 1),
        "seconds": 191.5,
        "client_cpu_share": 0.25,
        "result": result,
        "detail": None,
        "log": "",
        "error": None,
        **more,
    }


def with_result(of: dict[str, Any], *results: Any) -> dict[str, Any]:
    """An entry with these results of its runs."""
    return {**of, "runs": [run(result, block) for block, result in enumerate(results, 1)]}


def suite_entries(
    host: str, repeats: int = 3, index: int = 0, gpus: tuple[int, ...] = (0,)
) -> list[dict[str, Any]]:
    """The entries of an instance that was measured at three concurrencies and one rate, several times."""
    entries = []
    for load, speed in (("c16", 0.3), ("c64", 0.7), ("c256", 1.0), ("r4", 0.4)):
        rng = random.Random(f"{host}/{index}/{load}")
        results = [serve_result(rng, speed) for _block in range(repeats)]
        value = int(load[1:])
        limits = {"max_concurrency": value if load[0] == "c" else None}
        limits |= {"request_rate": value} if load[0] == "r" else {}
        results = [{**result, **limits} for result in results]
        kind, metric = ("concurrency", "output_throughput") if load[0] == "c" else ("rate", "median_tpot_ms")
        cell = {
            "cell": f"in1024-out1024-{load}",
            "shape": {"input": 1024, "output": 1024},
            "load": {"kind": kind, "value": value},
            "metric": metric,
        }
        entries.append(with_result(entry(host, index=index, gpus=gpus, **cell), *results))
    return entries


def node_state(hostname: str, gpus: int = 8, **more: Any) -> dict[str, Any]:
    """What node_state says of a node with 8 MI300X."""
    gib = 1 << 30
    return {
        "schema": 1,
        "hostname": hostname,
        "os": {"id": "ubuntu", "version_id": "22.04", "pretty_name": "Ubuntu 22.04.5 LTS"},
        "kernel": "5.15.0-143-generic",
        "cmdline": ["BOOT_IMAGE=/vmlinuz", f"root=UUID={hostname}", "ro", "pci=realloc=off", "iommu=pt"],
        "numa_balancing": {"runtime": 0, "persisted": 0, "file": "/etc/sysctl.d/60-instinct-fleet.conf"},
        "cpu": {"model": "AMD EPYC 9654 96-Core Processor", "sockets": 2, "threads": 384},
        "numa_nodes": [{"id": node, "cpus": "", "memory_bytes": 1} for node in range(2)],
        "memory_bytes": 2267 * gib,
        "virtual_machine": False,
        "driver": {"loaded": True, "version": "6.14.14"},
        "rocm": {"version": "7.0.0", "tools": {}},
        "docker": {"available": True, "version": "27.5.1"},
        "gpus": [
            {
                "index": index,
                "bdf": f"0000:{5 + 16 * index:02x}:00.0",
                "vendor_id": 0x1002,
                "device_id": 0x74A1,
                "gfx": "gfx942",
                "unique_id": f"{hostname}-{index}",
                "vram_total": 206141652992,
                "numa_node": index // 4,
                "compute_partition": "SPX",
                "memory_partition": "NPS1",
                "link_speed": "32.0 GT/s PCIe",
                "link_width": 16,
                "partitions": [{"id": 0}],
            }
            for index in range(gpus)
        ],
        **more,
    }


def variables(
    host: str, entries: list[dict[str, Any]], state: dict[str, Any] | None = None
) -> dict[str, Any]:
    """hostvars of a measured host."""
    return {
        "node_state_result": {"changed": False, "node_state": state or node_state(host)},
        "__benchmark_serve": {"changed": False, "benchmarks": entries},
    }


def small_fleet(failures: bool = False) -> dict[str, dict[str, Any]]:
    """Two nodes with one instance each on 8 GPUs; with `failures`, four nodes of which two are in trouble."""
    all_gpus = tuple(range(8))
    fleet = {host: variables(host, [entry(host, gpus=all_gpus)]) for host in ("mi300x-01", "mi300x-02")}
    if failures:
        result = serve_result(random.Random(3), speed=0.78, failed=7)
        slow = entry("mi300x-03", gpus=all_gpus, result=result)
        fleet["mi300x-03"] = variables(
            "mi300x-03", [slow], node_state("mi300x-03", kernel="5.15.0-91-generic")
        )
        broken = entry("mi300x-04", gpus=all_gpus, result=None)
        broken["error"] = "vllm bench serve ended with 1: ConnectionRefusedError: 127.0.0.1:8000"
        fleet["mi300x-04"] = variables("mi300x-04", [broken])
        message = "Failed to connect to the host via ssh: connect to host mi300x-05 port 22: No route to host"
        fleet["mi300x-05"] = {"node_state_result": {"unreachable": True, "msg": message}}
    return fleet


def large_fleet(nodes: int = 64, per_node: int = 8) -> dict[str, dict[str, Any]]:
    """Many nodes with an instance on each GPU: one slow node, one slow GPU, an old driver, two failures."""
    fleet: dict[str, dict[str, Any]] = {}
    for number in range(1, nodes + 1):
        host = f"gpu{number:03d}"
        if number == 33:
            fleet[host] = {"node_state_result": {"unreachable": True, "msg": "Connection timed out"}}
            continue
        entries = []
        for index in range(per_node):
            speed = 0.84 if number == 17 else 0.71 if (number, index) == (41, 5) else 1.0
            failed = 12 if (number, index) == (52, 2) else 0
            result = serve_result(random.Random(f"{host}{index}"), speed, failed)
            entries.append(entry(host, "llama8b", index, (index,), result=result))
        driver = {"loaded": True, "version": "6.12.12" if number == 17 else "6.14.14"}
        fleet[host] = variables(host, entries, node_state(host, driver=driver))
    return fleet


def mixed_fleet() -> dict[str, dict[str, Any]]:
    """Three nodes, two deployments, and the offline benchmarks."""
    fleet = {}
    for host in ("n1", "n2", "n10"):
        own = variables(
            host,
            [
                entry(host, "llama", 0, (0, 1, 2, 3)),
                entry(host, "qwen", 1, (4, 5), model="Qwen/Qwen3-32B"),
                entry(host, "qwen", 2, (6, 7), model="Qwen/Qwen3-32B"),
            ],
        )
        offline = []
        for kind, result in (("latency", latency_result()), ("throughput", throughput_result())):
            command = f"vllm bench {kind} --model {MODEL}"
            command += " --input-len 128 --output-len 2048"
            offline.append(entry(host, gpus=(0, 1, 2, 3), kind=kind, result=result, command=command))
        own["__benchmark_offline"] = {"changed": False, "benchmarks": offline}
        fleet[host] = own
    return fleet


def suite_fleet() -> dict[str, dict[str, Any]]:
    """Two nodes, measured with a suite of four cells."""
    return {host: variables(host, suite_entries(host)) for host in ("n1", "n2")}


def summary_of(fleet: dict[str, dict[str, Any]], run: str = "20260131T101500Z") -> dict[str, Any]:
    """The summary of a fleet."""
    from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import Redactor
    from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.summary import (
        build_summary,
        collect,
    )

    return build_summary(run, "2026-01-31T10:18:41Z", collect(list(fleet), fleet, Redactor(), GPU_MODELS))


def main(directory: Path) -> None:
    """Write the reports."""
    from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.report import render_report

    directory.mkdir(parents=True, exist_ok=True)
    fleets = {
        "small": small_fleet(),
        "failures": small_fleet(failures=True),
        "large": large_fleet(),
        "wide": large_fleet(64, 1),
        "eight": large_fleet(8, 8),
        "mixed": mixed_fleet(),
        "suite": suite_fleet(),
    }
    for name, fleet in fleets.items():
        (directory / f"{name}.html").write_text(render_report(summary_of(fleet)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
