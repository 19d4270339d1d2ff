# SPDX-License-Identifier: Apache-2.0
"""Containers of the vLLM image that install packages, or quantize: none of them serves."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..common.abandoned import leave_if_abandoned
from ..common.module_main import NodeError
from ..docker.client import DockerClient, DockerError, Json, NotFound
from ..docker.containers import create_container, remove_container, wait_container
from ..docker.lifecycle import stop_gracefully
from ..docker.logs import container_log
from ..engines.failures import tail

LABEL = "instinct-fleet.quantize"
_WAIT_SLICE = 5.0
_STOP_SECONDS = 10
_LINES = 400


@dataclass(frozen=True)
class ContainerRun:
    """A container to run to its end.

    script: for bash; arguments: $0, $1 and so on. readable, writable: paths on the node by their names inside.
    devices: GPUs' files. memory: bytes that it may use, 0 for no limit; instances that serve have priority.
    label: says which work it does, so that another run finds it.
    """

    name: str
    image: str
    script: str
    arguments: Sequence[str] = ()
    readable: Mapping[str, str] = field(default_factory=dict)
    writable: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[str] = ()
    network: str = "none"
    memory: int = 0
    label: str = ""

    def body(self, root: str = "/") -> Json:
        """Return the container's spec."""
        groups = sorted({os.stat(os.path.join(root, path.lstrip("/"))).st_gid for path in self.devices})
        mounts = [
            *(
                {"Type": "bind", "Source": path, "Target": inside, "ReadOnly": True}
                for inside, path in self.readable.items()
            ),
            *({"Type": "bind", "Source": path, "Target": inside} for inside, path in self.writable.items()),
        ]
        return {
            "Image": self.image,
            "User": "0:0",
            "WorkingDir": "/",
            "Entrypoint": ["/bin/bash", "-c", self.script, *self.arguments],
            "Cmd": [],
            "Env": [f"{name}={value}" for name, value in sorted(self.env.items())],
            "Labels": {LABEL: self.label},
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {
                "Mounts": mounts,
                "NetworkMode": self.network,
                "UsernsMode": "host",
                "Init": True,
                "IpcMode": "private",
                "ShmSize": 16 * 2**30 if self.devices else 64 * 2**20,
                "Devices": [
                    {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}
                    for path in self.devices
                ],
                "GroupAdd": [str(group) for group in groups],
                "CapDrop": ["ALL"],
                "CapAdd": ["CHOWN", "DAC_OVERRIDE", "FOWNER"],
                # HIP sets memory policies, which Docker's own filter forbids.
                "SecurityOpt": ["no-new-privileges", *(["seccomp=unconfined"] if self.devices else [])],
                "CpuShares": 2,  # instances have 1024
                "OomScoreAdj": 1000,
                **({"Memory": self.memory} if self.memory else {}),
                "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "1"}},
            },
        }


def is_running(client: DockerClient, run: ContainerRun) -> bool:
    """Return whether the container of an earlier call does this very work."""
    found = client.container(run.name)
    label = (found["Config"].get("Labels") or {}).get(LABEL) if found else None
    return bool(found and label == run.label and found["State"]["Running"])


def run_container(client: DockerClient, run: ContainerRun, timeout: int) -> tuple[int | None, list[str], str]:
    """Run a container, or continue to wait for it. Return its exit code, the last lines, and the whole log.

    The code is None when the time is over: the container keeps running, and the next call finds it.
    """
    if not is_running(client, run):
        stop_and_remove(client, run.name)
        try:
            create_container(client, run.name, run.body())
            client.start(run.name)
        except DockerError as error:
            remove_container(client, run.name)
            raise NodeError(f"The container {run.name} could not be started: {error}") from error
    deadline = time.monotonic() + timeout
    code = None
    while code is None:
        leave_if_abandoned()
        left = deadline - time.monotonic()
        if left <= 0:
            return None, tail(container_log(client, run.name), 20), ""
        try:
            code = wait_container(client, run.name, min(left, _WAIT_SLICE))
        except NotFound as error:
            raise NodeError(
                f"The container {run.name} was removed while it ran. Run again.", changed=True
            ) from error
    log = container_log(client, run.name)
    remove_container(client, run.name)
    return code, tail(log, _LINES), log


def stop_and_remove(client: DockerClient, name: str) -> None:
    """Stop a container and remove it; do nothing if it does not exist."""
    try:
        stop_gracefully(client, name, _STOP_SECONDS)
    except NotFound:
        return
    remove_container(client, name)
