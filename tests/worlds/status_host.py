# SPDX-License-Identifier: Apache-2.0
"""A host whose instances' status is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.host import status as status_node
from ansible_collections.instinct.fleet.plugins.module_utils.host.status import StatusPaths

from tests.helpers.eventually import GENEROUS
from tests.worlds.fake_docker import FakeDocker

KEY = "sk-secret-of-an-instance"
V0 = 'vllm:num_requests_running{model_name="a}b"} 2.0\nvllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'
BOTH = V0 + 'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.75\n'


class Host:
    """A node in a directory."""

    def __init__(self, tmp: Path, docker: FakeDocker) -> None:
        self.tmp, self.docker = tmp, docker
        self.node = StatusPaths(str(tmp / "etc"), str(tmp / "var"), docker.path, 0.2)

    def add(self, name: str, status: str = "running", **keys: Any) -> Any:
        """An instance with its files; keys: port, supervisor (state.json), container (its name)."""
        directory = self.tmp / "etc/instances" / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "serve.sh").write_text(f"exec vllm serve m --port {keys.get('port', 1)}\n")
        (directory / "env").write_text(f"VLLM_API_KEY={KEY}\n")
        if "supervisor" in keys:
            place = self.tmp / "var/cache" / name / "supervise"
            place.mkdir(parents=True)
            (place / "state.json").write_text(keys["supervisor"])
        labels = {"instance": name, "deployment": name.rpartition("-")[0], "spec": "aa"}
        body = {"Image": "r@x", "Labels": {f"instinct-fleet.{key}": value for key, value in labels.items()}}
        return self.docker.add_container(keys.get("container", f"instinct-{name}"), body, status)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(status_node, "TIMEOUT", GENEROUS)
    with FakeDocker(tmp_path) as docker:
        yield Host(tmp_path, docker)
