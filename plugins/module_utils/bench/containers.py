# SPDX-License-Identifier: Apache-2.0
"""The containers of vLLM's own benchmarks. Pure; run.py runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.module_main import NodeError
from ..common.mounts import BENCH_MOUNT, BENCH_RESULT, INSTANCE_MOUNT, KEYS_MOUNT
from ..common.paths import container_name
from ..docker.client import Json

LABEL = "instinct-fleet.bench"

_ENVIRONMENT = f"""\
set -eu
set -o allexport
. {INSTANCE_MOUNT}/env
if [ -f {KEYS_MOUNT}/instances ]; then . {KEYS_MOUNT}/instances; fi
set +o allexport
export HF_HUB_OFFLINE=1
if [ -n "${{VLLM_API_KEY:-}}" ]; then export OPENAI_API_KEY="$VLLM_API_KEY"; fi
"""
WRAPPER = _ENVIRONMENT + 'exec "$@"\n'
"""Passes the instance's environment and API key to the client; neither appears in the container's spec."""
# The Python that runs vLLM need not be the first in PATH.
REPEATER = (
    _ENVIRONMENT
    + """\
python=
vllm=$(command -v vllm) && read -r python < "$vllm"
python=${python#\\#!}
case $python in */python*) ;; *) python=python3;; esac
program=$(mktemp -d)/bench_repeat.py
printf %s "$1" > "$program"
shift
# The client of an older release is a script, and imports what stands beside it.
case $6 in python*) export PYTHONPATH="${7%/*}${PYTHONPATH:+:$PYTHONPATH}";; esac
exec $python "$program" "$@"
"""
)
"""The same for several runs: its first argument is the text of programs/bench_repeat.py."""


@dataclass(frozen=True)
class RepeatedRuns:
    """Several runs: discarded ones, kept ones, and the seed of the first (each later run adds one).

    program: programs/bench_repeat.py, which performs them.
    """

    warmups: int
    runs: int
    seed: int
    program: str


@dataclass(frozen=True)
class BenchmarkTarget:
    """An instance to measure, from the plan's INSTANCE.

    Attributes:
        body: create body of the instance's container
        client: image of the benchmark client, if it differs from the instance's
        command: the benchmark's command line
    """

    name: str
    deployment: str
    model: str
    commit: str
    image: str
    body: Json
    plan: Mapping[str, Any]
    command: tuple[str, ...]
    client: str = ""

    @property
    def server(self) -> str:
        """Return the name of the instance's own container."""
        return container_name(self.name)

    @property
    def container(self) -> str:
        """Return the benchmark's container name, the same in every run, so that a left-over one is found."""
        return f"instinct-bench-{self.name}"


def parse_repeat(kind: str, runs: int, warmups: int, seed: int, program: str) -> RepeatedRuns | None:
    """Return the repetitions, None for a single run. Raise NodeError for impossible numbers."""
    if runs < 1 or warmups < 0:
        raise NodeError(
            f"repeat is {runs} and warmups {warmups}: at least one run is needed, and no fewer than 0."
        )
    if runs == 1 and not warmups:
        return None
    if kind != "serve":
        raise NodeError(f"repeat and warmups are of the serve benchmark; {kind} has its own (num_iters).")
    return RepeatedRuns(warmups, runs, seed, program)


def parse_target(data: Mapping[str, Any], command: Sequence[str]) -> BenchmarkTarget:
    """Build a target from an INSTANCE and the benchmark's command line. Raise NodeError if parts are missing."""
    name = str(data.get("name") or "")
    server = data.get("server")
    missing = [key for key in ("name", "model", "image", "server") if not data.get(key)]
    if missing or not isinstance(server, Mapping) or not server.get("container"):
        what = ", ".join(missing) or "server.container"
        raise NodeError(f"targets[{name or '?'}]: {what} is missing. Pass the instances from the plan.")
    return BenchmarkTarget(
        name=name,
        deployment=str(data.get("deployment") or ""),
        model=str(data["model"]),
        commit=str(data.get("commit") or ""),
        image=str(data["image"]),
        body=dict(server["container"]),
        plan=data,
        command=tuple(command),
        client=str((data.get("client") or {}).get("image") or ""),
    )


def container_body(
    target: BenchmarkTarget, run: str, result_dir: str, repeat: RepeatedRuns | None = None
) -> Json:
    """Return the instance's own container with another command: same image, devices, limits and mounts.

    The client of a served instance gets the devices too: vLLM's command line detects its platform before it parses its
    arguments, and fails without one (vllm-project/vllm#23967).
    """
    host = {
        key: value for key, value in (target.body.get("HostConfig") or {}).items() if key != "RestartPolicy"
    }
    host["Binds"] = [*(host.get("Binds") or []), f"{result_dir}:{BENCH_MOUNT}:rw"]
    entrypoint = ["/bin/bash", "-c", WRAPPER, "vllm-bench"]
    if repeat:
        numbers = [str(number) for number in (repeat.seed, repeat.warmups, repeat.runs)]
        entrypoint = [
            "/bin/bash", "-c", REPEATER, "vllm-bench", repeat.program, BENCH_MOUNT, BENCH_RESULT, *numbers
        ]  # fmt: skip
    return {
        **target.body,
        "Image": target.client or target.body["Image"],
        "Entrypoint": entrypoint,
        "Cmd": list(target.command),
        "Labels": {LABEL: run, f"{LABEL}.instance": target.name},
        "HostConfig": host,
    }
