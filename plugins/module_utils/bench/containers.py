# SPDX-License-Identifier: Apache-2.0
"""The containers of vLLM's own benchmarks. Pure; run.py runs them."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..common.module_main import NodeError
from ..common.paths import container_name
from ..docker.client import DockerClient, Json, NotFound
from ..docker.containers import remove_container
from ..docker.lifecycle import stop_gracefully
from ..engines.mounts import BENCH_MOUNT, INSTANCE_MOUNT, KEYS_MOUNT
from ..generation_store.store import GenerationStore
from .jobs import BenchmarkJob, parse_job

LABEL = "instinct-fleet.bench"
CLIENT_ENV, CLIENT_CA = "client.env", "client.pem"

_STOP_SECONDS = 30

# The Python that runs vLLM need not be the first in PATH.
START = f"""\
set -eu
set -o allexport
. {INSTANCE_MOUNT}/env
if [ -f {KEYS_MOUNT}/instances ]; then . {KEYS_MOUNT}/instances; fi
set +o allexport
export HF_HUB_OFFLINE=1
if [ -n "${{VLLM_API_KEY:-}}" ]; then export OPENAI_API_KEY="$VLLM_API_KEY"; fi
if [ -f {BENCH_MOUNT}/{CLIENT_ENV} ]; then . {BENCH_MOUNT}/{CLIENT_ENV}; fi
python=
vllm=$(command -v vllm) && read -r python < "$vllm"
python=${{python#\\#!}}
case $python in */python*) ;; *) python=python3;; esac
program=$(mktemp -d)/bench_job.py
printf %s "$1" > "$program"
shift
exec $python "$program" "$@"
"""
"""Passes the instance's environment and API key to the client; neither appears in the container's spec.

Its first argument is the text of programs/bench_job.py, the others are that program's.
"""


@dataclass(frozen=True)
class BenchmarkTarget:
    """An instance to measure, from the plan's INSTANCE.

    Attributes:
        body: create body of the instance's container
        client: image of the benchmark client, if it differs from the instance's
        job: what is measured
        endpoint: load balancer to measure in place of the instance: url, key and ca (certificates), "" where unused
    """

    name: str
    deployment: str
    model: str
    commit: str
    image: str
    body: Json
    plan: Mapping[str, Any]
    job: BenchmarkJob
    client: str = ""
    endpoint: Mapping[str, str] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Return whether requests go through a load balancer, together with those of users."""
        return bool(self.endpoint)

    def client_files(self) -> dict[str, str]:
        """Return the files that the client needs for the load balancer: its key, and whom to trust."""
        values = {}
        if self.endpoint.get("key"):
            values["OPENAI_API_KEY"] = self.endpoint["key"]
        if self.endpoint.get("ca"):
            values["SSL_CERT_FILE"] = f"{BENCH_MOUNT}/{CLIENT_CA}"
        if not values:
            return {}
        text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
        return {CLIENT_ENV: text, **({CLIENT_CA: self.endpoint["ca"]} if self.endpoint.get("ca") else {})}

    @property
    def server(self) -> str:
        """Return the name of the instance's own container."""
        return container_name(self.name)

    @property
    def container(self) -> str:
        """Return the benchmark's container name, the same in every run, so that a left-over one is found."""
        return f"instinct-bench-{self.name}"


def complete_target(target: Mapping[str, Any], store: GenerationStore) -> Mapping[str, Any]:
    """Return a target's INSTANCE; if it refers to a stored generation, read it from the node's store.

    A stored server's files may contain secrets. Raise NodeError if the generation is not stored.
    """
    server = target.get("server") or {}
    stands_for = server if server.get("generation") else target
    if server.get("container") or not stands_for.get("generation"):
        return target
    found = store.instance({"name": target.get("name"), "deployment": target.get("deployment"), **stands_for})
    return {**found, "client": target.get("client") or {}, "endpoint": target.get("endpoint") or {}}


def parse_target(data: Mapping[str, Any], job: object) -> BenchmarkTarget:
    """Build a target from an INSTANCE and its job. Raise NodeError if parts are missing."""
    name = str(data.get("name") or "")
    server = data.get("server")
    missing = [key for key in ("name", "model", "image", "server") if not data.get(key)]
    if missing or not isinstance(server, Mapping) or not server.get("container"):
        what = ", ".join(missing) or "server.container"
        raise NodeError(f"targets[{name or '?'}]: {what} is missing. Pass the instances from the plan.")
    endpoint = {key: str(value or "") for key, value in (data.get("endpoint") or {}).items()}
    return BenchmarkTarget(
        name=name,
        deployment=endpoint.get("deployments") or str(data.get("deployment") or ""),
        model=str(data["model"]),
        commit=str(data.get("commit") or ""),
        image=str(data["image"]),
        body=dict(server["container"]),
        plan={key: value for key, value in data.items() if key != "endpoint"},
        job=parse_job(name, job),
        client=str((data.get("client") or {}).get("image") or ""),
        endpoint=endpoint,
    )


def container_body(target: BenchmarkTarget, run: str, directory: str, program: str) -> Json:
    """Return the instance's own container with another command: same image, devices, limits and mounts.

    `program` is the text of programs/bench_job.py, and `directory` is where its job is. The client of a served instance
    gets the devices too: vLLM's command line detects its platform before it parses its arguments, and fails without one
    (vllm-project/vllm#23967).
    """
    host = {
        key: value for key, value in (target.body.get("HostConfig") or {}).items() if key != "RestartPolicy"
    }
    binds = [*(host.get("Binds") or []), *target.job.data.get("binds", ())]
    host["Binds"] = [*binds, f"{directory}:{BENCH_MOUNT}:rw"]
    entrypoint = ["/bin/bash", "-c", START, "vllm-bench", program]
    return {
        **target.body,
        "Image": target.client or target.body["Image"],
        "Entrypoint": entrypoint,
        "Cmd": [BENCH_MOUNT],
        "Labels": {LABEL: run, f"{LABEL}.instance": target.name},
        "HostConfig": host,
    }


def stop_and_remove(client: DockerClient, container: str) -> None:
    """Stop a benchmark (gracefully: an offline one holds GPUs) and remove it; do nothing if it does not exist."""
    with contextlib.suppress(NotFound):
        stop_gracefully(client, container, _STOP_SECONDS)
        remove_container(client, container)
