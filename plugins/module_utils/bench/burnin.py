# SPDX-License-Identifier: Apache-2.0
"""Test a node's GPUs from a vLLM image: one container runs programs/burnin.py on all of them, if nothing uses them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.abandoned import leave_if_abandoned
from ..common.module_main import NodeError
from ..docker.client import DockerClient, DockerError, Json
from ..docker.containers import create_container, wait_container
from ..docker.image_api import image
from ..docker.logs import container_log
from ..engines.failures import tail
from ..leases.run_lock import run_lock
from ..observe.gpu_users import read_users
from ..observe.gpus import kfd_processes, read_gpus
from ..observe.source import Source
from .containers import stop_and_remove
from .telemetry import Recorder

CONTAINER = "instinct-burnin"
MARK = "instinct-burnin: "  # programs/burnin.py begins its result with it
TOOLS = ("rvs", "all_reduce_perf", "TransferBench")
_PLACES = ("/opt/rocm/bin", "/opt/rocm/rvs", "/usr/local/bin", "/usr/bin")
_LOCK_SECONDS = 60.0
_WAIT_SLICE = 5.0
# The Python that runs vLLM need not be the first in PATH. $1 is the program's text, $2 its options.
_SCRIPT = """
python=
vllm=$(command -v vllm) && read -r python < "$vllm"
python=${python#\\#!}
case $python in */python*) ;; *) python=python3;; esac
program=$(mktemp -d)/burnin.py
printf %s "$1" > "$program"
exec $python "$program" "$2"
"""


@dataclass(frozen=True)
class BurninRequest:
    """What to test, and with what.

    Attributes:
        image: an image with PyTorch that is on the node
        program: the text of programs/burnin.py
        options: its options
        timeout: seconds until it is stopped
    """

    image: str
    program: str
    options: Mapping[str, Any]
    timeout: int

    @property
    def on_gpus(self) -> bool:
        """Return whether GPUs are tested: on a CPU, the program itself is tried."""
        return bool(self.options.get("device", "gpu") == "gpu")


def burn_in(
    connect: Callable[[], DockerClient], request: BurninRequest, check: bool, root: str = "/"
) -> Json:
    """Test all GPUs of the node and return what was measured. Raise NodeError if it cannot be done."""
    source = Source(root)
    gpus = read_gpus(source)
    if request.on_gpus:
        _check_free(source, gpus)
    client = connect()
    body = container_body(request, _devices(gpus, root) if request.on_gpus else [], root)
    actions = [
        f"POST /containers/create?name={CONTAINER} ({request.image})",
        f"POST /containers/{CONTAINER}/start",
    ]
    if image(client, request.image) is None:
        raise NodeError(
            f"Image {request.image} is not on this node. Run site.yml, which pulls it, or name another one "
            "with burnin_image."
        )
    if check:
        return {"changed": False, "actions": actions, "burnin": None}
    with run_lock("gpu_burnin", _LOCK_SECONDS):
        recorder = Recorder(root)
        run: Json = {"started": time.time(), "seconds": None, "telemetry": None}
        whole = {"instance": CONTAINER, "live": False, "runs": [run], "instance_plan": _whole(gpus)}
        try:
            found = _run(client, request, body)
        finally:
            stop_and_remove(client, CONTAINER)
            run["seconds"] = time.time() - run["started"]
            recorder.finish([whole])
    return {"changed": False, "actions": actions, "burnin": result(found, gpus, run, tools(root))}


def container_body(request: BurninRequest, devices: Sequence[str], root: str = "/") -> Json:
    """Return the spec of the container: all GPUs, no network, nothing of the host but shared memory."""
    groups = sorted({os.stat(os.path.join(root, device.lstrip("/"))).st_gid for device in devices})
    return {
        "Image": request.image,
        "User": "0:0",
        "WorkingDir": "/",
        "Entrypoint": [
            "/bin/bash",
            "-c",
            _SCRIPT,
            "burnin",
            request.program,
            json.dumps(dict(request.options)),
        ],
        "Cmd": [],
        "Env": [
            "HOME=/tmp",
            "PYTHONDONTWRITEBYTECODE=1",
            # The processes of one test talk over the loopback interface, the only one.
            "NCCL_SOCKET_IFNAME=lo",
            "GLOO_SOCKET_IFNAME=lo",
        ],
        "Labels": {"instinct-fleet.burnin": "1"},
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": "none",
            "IpcMode": "host",
            "Devices": [
                {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in devices
            ],
            "GroupAdd": [str(group) for group in groups],
            "SecurityOpt": ["seccomp=unconfined"],
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "1"}},
        },
    }


def result(found: Mapping[str, Any], gpus: Sequence[Json], run: Mapping[str, Any], present: Json) -> Json:
    """Return the result of the node: what the program measured, by device, with the GPU that each of them is."""
    # Without an address the devices are the partitions in PCI order, as KFD numbers them.
    order = [gpu for gpu in gpus for _unused in gpu["partitions"]]
    seen = {gpu["bdf"]: gpu for gpu in (run["telemetry"] or {}).get("gpus", [])}
    rates: Json = next(iter(found.get("peers", [])), {})
    devices = []
    for device in found.get("alone", []):
        number, bdf = device["gpu"], device.get("bdf")
        known = next((gpu for gpu in gpus if bdf and gpu["bdf"] == bdf.lower()), None)
        if known is None and len(order) == found["count"]:
            known = order[number]
        known = known or {}
        devices.append(
            {
                **device,
                "bdf": known.get("bdf", bdf),
                "index": known.get("index"),
                "unique_id": known.get("unique_id"),
                "vendor_id": known.get("vendor_id"),
                "device_id": known.get("device_id"),
                "peer_gbps": rates.get("rates", {}).get(str(number)),
                "telemetry": seen.get(known.get("bdf")),
            }
        )
    return {
        "device": found["device"],
        "torch": found["torch"],
        "started": run["started"],
        "seconds": run["seconds"],
        "gpus": devices,
        "peers_error": rates.get("error"),
        "reduce": found.get("reduce", []),
        "tools": present,
    }


def tools(root: str = "/") -> Json:
    """Return the paths of AMD's own test programs on the host; null for what is not installed."""
    found: Json = {}
    for tool in TOOLS:
        paths = [f"{place}/{tool}" for place in _PLACES]
        found[tool] = next((path for path in paths if os.access(os.path.join(root, path[1:]), os.X_OK)), None)
    return found


def _check_free(source: Source, gpus: list[Json]) -> None:
    if not gpus:
        raise NodeError("No GPU of AMD's driver is on this node, so there is nothing to test.")
    read_users(source, gpus, kfd_processes(source))
    used = [gpu for gpu in gpus if gpu["users"]]
    if used:
        pids = sorted({pid for gpu in used for pid in gpu["users"]})
        raise NodeError(
            f"GPU {', '.join(str(gpu['index']) for gpu in used)} is in use (pid {', '.join(map(str, pids))}). "
            "Nothing was tested: a test would disturb what runs there, and be disturbed by it. Run "
            "playbooks/burnin.yml, which "
            "drains and stops instances; stop other programs yourself (amd-smi process)."
        )


def _devices(gpus: Sequence[Json], root: str) -> list[str]:
    nodes = [part["render_node"] for gpu in gpus for part in gpu["partitions"] if part["render_node"]]
    paths = ["/dev/kfd", *(f"/dev/dri/{node}" for node in nodes)]
    missing = [path for path in paths if not os.path.exists(os.path.join(root, path[1:]))]
    if missing:
        raise NodeError(
            f"{', '.join(missing)} is missing: the driver does not show these GPUs. Run playbooks/audit.yml."
        )
    return paths


def _whole(gpus: Sequence[Json]) -> Json:
    return {"render_nodes": [part["render_node"] for gpu in gpus for part in gpu["partitions"]]}


def _run(client: DockerClient, request: BurninRequest, body: Json) -> Json:
    try:
        stop_and_remove(client, CONTAINER)  # left by a run that was killed
        create_container(client, CONTAINER, body)
        client.start(CONTAINER)
        code = _wait(client, request.timeout)
        log = container_log(client, CONTAINER)
    except DockerError as error:
        raise NodeError(f"The container of the test could not be run: {error}") from error
    lines = [line for line in log.splitlines() if line.startswith(MARK)]
    found: Json = json.loads(lines[-1][len(MARK) :]) if lines else {}
    if code is None:
        raise NodeError(
            f"The test did not finish within {request.timeout} s and was stopped. Raise burnin_timeout."
        )
    if found.get("error") or not lines:
        last = found.get("error") or " ".join(tail(log, 1)) or "it printed nothing"
        raise NodeError(f"The test ended with exit code {code}: {last}", log=tail(log, 20))
    return found


def _wait(client: DockerClient, timeout: int) -> int | None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        leave_if_abandoned()
        code = wait_container(client, CONTAINER, min(_WAIT_SLICE, max(0.1, deadline - time.monotonic())))
        if code is not None:
            return code
    return None
