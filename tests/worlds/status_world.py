# SPDX-License-Identifier: Apache-2.0
"""What the instances of a host report of themselves."""

from __future__ import annotations

from typing import Any

NOW = 10_000.0

LOAD = {
    "running": 3, "waiting": 1, "kv": 0.125, "tokens_per_second": 210.5, "prompt_tokens_per_second": 9.0,
    "generated": 500,
}  # fmt: skip


def instance(name: str = "llama-0", **keys: Any) -> dict[str, Any]:
    """One that serves; keys replace."""
    found = {
        "name": name, "deployment": name.rpartition("-")[0], "status": "running", "exit_code": 0, "oom_killed": False,
        "started": NOW - 500, "finished": None, "restarts": 0, "spec_hash": "aa", "image": "r@sha256:1",
        "vllm": "0.11.2+rocm700", "endpoint": {"host": "127.0.0.1", "port": 8000}, "ready": True, "health": 200,
        "supervisor": {"state": "running", "since": NOW - 400, "why": "", "failures": []}, "metrics": LOAD,
        "failure": None, "attention": {"planned": "aiter_fa", "running": ["aiter_fa"]},
    }  # fmt: skip
    return {**found, **keys}


def host(*instances: dict[str, Any], servers: Any = None, **keys: Any) -> dict[str, Any]:
    balancer = None if servers is None else {"error": "", "servers": servers}
    return {"now": NOW, "instances": list(instances), "balancer": balancer, "problems": [], **keys}


def server(host: str, instance: str = "llama-0", **keys: Any) -> dict[str, Any]:
    found = {
        "name": f"llama/{host}.{instance}:8000", "host": host, "instance": instance, "deployment": "llama",
        "state": "ready", "up": True, "check": "L7OK", "requests": 0, "out": None,
    }  # fmt: skip
    return {**found, **keys}
