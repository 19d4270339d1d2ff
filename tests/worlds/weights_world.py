# SPDX-License-Identifier: Apache-2.0
"""A download of weights on a fake Docker engine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.weights import download as fetch_on_node
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import script

from tests.worlds.fake_docker import FakeContainer, FakeDocker, Program

COMMIT = "0123456789abcdef0123456789abcdef01234567"
IMAGE = "registry.example/vllm@sha256:" + "a" * 64
FILES = {"config.json": 11, "model-00001-of-00002.safetensors": 2000, "sub/tokenizer.json": 30}
CANARY = "hf-canary-Zq81-secret"


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDocker]:
    monkeypatch.setattr(fetch_on_node, "SECRETS_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "lock"))
    with FakeDocker(tmp_path) as fake:
        fake.add_image(IMAGE)
        fake.programs["instinct-fetch-"] = download()
        yield fake


@pytest.fixture
def args(docker: FakeDocker, tmp_path: Path) -> dict[str, Any]:
    return {
        "repo": "lab/tiny-llama",
        "commit": COMMIT,
        "image": IMAGE,
        "files": FILES,
        "exclude": ["original/*"],
        "cache_dir": str(tmp_path / "hf"),
        "docker_socket": docker.path,
        "program": script("download"),
    }


def config_of(container: FakeContainer) -> dict[str, Any]:
    return json.loads(container.body["Entrypoint"][3])


def mounts_of(container: FakeContainer) -> dict[str, str]:
    return {mount["Target"]: mount["Source"] for mount in container.body["HostConfig"]["Mounts"]}


def put(cache: Path | str, name: str, size: int, blob: str = "", fill: bytes = b"x") -> None:
    """A file as the hub's client leaves it: a blob, and a link to it in the snapshot."""
    repo = Path(cache) / "hub/models--lab--tiny-llama"
    blob = blob or name.replace("/", "-")
    (repo / "blobs").mkdir(parents=True, exist_ok=True)
    (repo / "blobs" / blob).write_bytes(fill * size)
    (repo / "blobs" / blob).chmod(0o600)
    link = repo / "snapshots" / COMMIT / name
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(os.path.relpath(repo / "blobs" / blob, link.parent))


def download(files: dict[str, int] = FILES, seconds: float = 0.0) -> Program:
    """A download that works."""

    def program(container: FakeContainer) -> int:
        if container.stopping.wait(seconds):
            return 143
        cache = mounts_of(container)["/hf"]
        for name, size in files.items():
            put(cache, name, size)
        container.log = 'some warning\nINSTINCT-FETCH {"ok": true, "path": "/hf/hub/x"}\n'
        return 0

    return program


def failing(*causes: dict[str, Any], log: str = "", code: int = 1) -> Program:
    """A download that ends with these causes, outermost first."""

    def program(container: FakeContainer) -> int:
        chain = [{"status": None, "errno": None, "text": "x", **cause} for cause in causes]
        container.log = log or f"INSTINCT-FETCH {json.dumps({'ok': False, 'causes': chain})}\n"
        return code

    return program
