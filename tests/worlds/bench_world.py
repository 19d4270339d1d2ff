# SPDX-License-Identifier: Apache-2.0
"""A benchmark of an instance on a fake Docker engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.programs.bench_client import ClientRun
from ansible_collections.instinct.fleet.plugins.module_utils.programs.bench_job import Job

from tests.worlds.fake_docker import FakeContainer, FakeDocker, Program

IMAGE = "registry.example/vllm@sha256:" + "a" * 64
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CANARY = "sk-canary-Zq81-secret"
RESULT = {
    "date": "20260101-000000",
    "model_id": "lab/tiny-llama",
    "num_prompts": 10,
    "request_rate": "inf",
    "duration": 2.0,
    "completed": 10,
    "failed": 0,
    "total_input_tokens": 100,
    "total_output_tokens": 200,
    "request_throughput": 5.0,
    "output_throughput": 100.0,
    "mean_ttft_ms": 1.0,
}


def instance(name: str = "llama-0", **more: Any) -> dict[str, Any]:
    """INSTANCE of a plan."""
    return {
        "name": name,
        "deployment": "llama",
        "model": "lab/tiny-llama",
        "commit": COMMIT,
        "served_model": "tiny",
        "image": IMAGE,
        "vllm": "0.11.0",
        "port": 8000,
        "argv": [
            "vllm", "serve", "lab/tiny-llama", "--revision", COMMIT, "--served-model-name", "tiny",
            "--host", "0.0.0.0", "--port", "8000", "--tensor-parallel-size", "2", "--trust-remote-code",
            "--no-enable-log-requests", "--compilation-config", '{"mode":3}',
        ],
        "env": {"A": "b"},
        "server": {
            "name": name,
            "files": {"env": {"text": f"VLLM_API_KEY='{CANARY}'\n", "mode": "0600"}},
            "container": {
                "Image": IMAGE,
                "Entrypoint": ["/bin/bash", "/instinct/serve.sh"],
                "Labels": {"instinct-fleet.instance": name},
                "StopTimeout": 120,
                "HostConfig": {
                    "Binds": [f"/etc/instinct-fleet/instances/{name}:/instinct:ro", "/var/hf:/hf:ro"],
                    "Devices": [{"PathOnHost": "/dev/kfd"}],
                    "NetworkMode": "host",
                    "RestartPolicy": {"Name": "unless-stopped"},
                },
            },
        },
        **more,
    }  # fmt: skip


def result_dir(container: FakeContainer) -> Path:
    bind = next(bind for bind in container.body["HostConfig"]["Binds"] if bind.endswith(":/bench:rw"))
    return Path(bind.split(":")[0])


class Stopped(BaseException):
    """Docker stopped the container in the middle of a run."""


def client(result: Any = RESULT, code: int = 0, log: str = "", seconds: float = 0.0) -> Program:
    """programs/bench_job.py itself, with a client of vLLM that writes its JSON and ends.

    `result` may be a function of the cell and the client's words. `seconds`: of each run.
    """

    def program(container: FakeContainer) -> int:
        directory = result_dir(container)

        def run(cell: Mapping[str, Any], words: Sequence[str]) -> ClientRun:
            if container.stopping.wait(seconds):
                raise Stopped
            found = result(cell, words) if callable(result) else result
            if found is not None:
                text = found if isinstance(found, str) else json.dumps(found)
                (directory / "result.json").write_text(text)
            said = log or "  0%|\r100%|done\n============ Serving Benchmark Result ============\n"
            return ClientRun(code, said, ((0.0, 0.0), (4.0, 1.0)))

        try:
            data = json.loads((directory / "job.json").read_text())
            return 0 if Job(data, str(directory), run, container_says(container)).perform() else 1
        except Stopped:
            return 143

    return program


def container_says(container: FakeContainer) -> Callable[[str], None]:
    """Print to the container's log."""

    def say(text: str) -> None:
        container.log += f"{text}\n"

    return say


def job(kind: str = "serve", *cells: str, **more: Any) -> dict[str, Any]:
    """What the action plugin composes; the command lines are not what is looked at."""
    names = cells or ("in8-out8-c2",)
    metric = {
        "serve": "output_throughput",
        "latency": "mean_batch_latency_ms",
        "throughput": "total_token_throughput",
    }
    made = [
        {"cell": name, "kind": kind, "argv": ["vllm", "bench", kind, "--x"], "shape": {"input": 8, "output": 8},
         "load": {"kind": "concurrency", "value": 2}, "metric": metric.get(kind)}
        for name in names
    ]  # fmt: skip
    numbers = {"blocks": 1, "most": 1, "half_width": 0.02, "warmups": 0, "seed": 7, **more}
    return {"cells": made, "order": [list(names)] * numbers["most"], **numbers}


def args(
    docker: FakeDocker, *targets: dict[str, Any], work: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """The module's parameters; `work` is the job of each target."""
    each = work or job(more.get("kind", "serve"))
    jobs = {item["name"]: each for item in targets}
    given = {"run": "r1", "targets": list(targets), "jobs": jobs, "docker_socket": docker.path}
    return {**given, "program": "p", **more}
