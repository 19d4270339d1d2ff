# SPDX-License-Identifier: Apache-2.0
"""A benchmark of an instance on a fake Docker engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def client(result: Any = RESULT, code: int = 0, log: str = "", seconds: float = 0.0) -> Program:
    """vllm bench: writes its JSON and ends."""

    def program(container: FakeContainer) -> int:
        container.log = log or "  0%|\r100%|done\n============ Serving Benchmark Result ============\n"
        if container.stopping.wait(seconds):
            return 143
        if result is not None:
            text = result if isinstance(result, str) else json.dumps(result)
            (result_dir(container) / "result.json").write_text(text)
        return code

    return program


def args(docker: FakeDocker, *targets: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The module's parameters; the command lines are not what is looked at."""
    commands = {item["name"]: ["vllm", "bench", more.get("kind", "serve"), "--x"] for item in targets}
    given = {"run": "r1", "targets": list(targets), "commands": commands, "docker_socket": docker.path}
    return {**given, "program": "p", **more}
