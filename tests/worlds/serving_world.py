# SPDX-License-Identifier: Apache-2.0
"""Instances on a fake Docker engine, and the module that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.serving import converge, readiness
from ansible_collections.instinct.fleet.plugins.modules import vllm_server
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import bundle

from tests.helpers.eventually import GENEROUS
from tests.helpers.ports import free_port
from tests.worlds.fake_docker import FakeDocker
from tests.worlds.fake_vllm import vllm

SUPERVISOR = bundle("supervisor")

IMAGE = "registry.example/vllm@sha256:" + "a" * 64


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDocker]:
    monkeypatch.setattr(paths, "STATE_DIR", str(tmp_path / "etc"))
    monkeypatch.setattr(paths, "DATA_DIR", str(tmp_path / "var"))
    monkeypatch.setattr(readiness, "_BROKEN_SECONDS", 0.3)
    monkeypatch.setattr(readiness, "_STEADY_SECONDS", 0.3)
    monkeypatch.setattr(converge, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "run"))
    with FakeDocker(tmp_path) as fake:
        fake.add_image(IMAGE)
        yield fake


def spec(name: str = "llama-0", port: int = 0, spec_hash: str = "1" * 64, **more: Any) -> dict[str, Any]:
    """SERVER of a plan."""
    return {
        "name": name,
        "deployment": name.rsplit("-", 1)[0],
        "container_name": f"instinct-{name}",
        "directory": f"{paths.STATE_DIR}/instances/{name}",
        "cache_directory": f"{paths.DATA_DIR}/cache/{name}",
        "files": {
            "serve.sh": {"text": "#!/bin/bash\nexec vllm serve\n", "mode": "0755"},
            "env": {"text": "A='b'\n", "mode": "0600"},
            "container.json": {"text": "{}\n", "mode": "0600"},
        },
        "spec_hash": spec_hash,
        "container": {
            "Image": IMAGE,
            "Labels": {"instinct-fleet.instance": name},
            "StopTimeout": 7,
            "HostConfig": {},
        },
        "image": IMAGE,
        "port": port or free_port(),
        "host": "127.0.0.1",
        "served_model": "lab/tiny-llama",
        "ready_timeout": GENEROUS,
        "stop_timeout": 7,
        **more,
    }


def args(docker: FakeDocker, *servers_: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "servers": list(servers_),
        "docker_socket": docker.path,
        "program": SUPERVISOR.files,
        **more,
    }


def statuses(docker: FakeDocker) -> dict[str, str]:
    return {name: container.status for name, container in docker.containers.items()}


def deployed(docker: FakeDocker, run_module: Any, **more: Any) -> dict[str, Any]:
    server = spec(**more)
    docker.programs["instinct-"] = vllm(server["port"])
    result, failed = run_module(vllm_server.main, args(docker, server))
    assert not failed, result["msg"]
    docker.requests.clear()
    return server


def new_spec(server: dict[str, Any]) -> None:
    server["spec_hash"] = "2" * 64
    server["files"]["serve.sh"]["text"] += "# more\n"


def with_lib(server: dict[str, Any], version: str) -> dict[str, Any]:
    bind = f"{paths.lib_dir(version)}:/instinct-lib:ro"
    server["container"] = {**server["container"], "HostConfig": {"Binds": [bind]}}
    return server
