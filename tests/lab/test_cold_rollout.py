# SPDX-License-Identifier: Apache-2.0
"""A deploy onto an empty node, against the waits that no tool could save: image and weights over the node's link, and
vLLM's own start.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lab.config import VLLM_VERSION

from .conftest import Lab, Run, container
from .helpers import MODEL, deployment, docker_time

IMAGE = f"registry.lab:5000/lab/vllm:cpu_vllm_{VLLM_VERSION}"
MBIT = 100  # of the node's link, both ways: the image takes a minute or so, as large ones do in a data centre
GOAL = 1.05  # of the sum of the waits
RATE = MBIT * 1e6 / 8  # bytes per second
PULLING = 50_000_000  # bytes after which it is the image that comes
READY = "Application startup complete"


@dataclass
class Link:
    """What a node receives, watched from this machine ten times a second: seconds since 1970, and bytes."""

    device: Path
    seen: list[tuple[float, int]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def of(cls, lab: Lab, host: str) -> Link:
        """The other end of the node's eth0."""
        index = lab.on(host, "cat /sys/class/net/eth0/iflink").strip()
        found = [path for path in Path("/sys/class/net").iterdir()
                 if (path / "ifindex").read_text().strip() == index]  # fmt: skip
        return cls(found[0])

    def watch(self) -> None:
        while not self.ended.wait(0.1):
            self.seen.append((time.time(), int((self.device / "statistics/tx_bytes").read_text())))

    def reached(self, more: int, since: float = 0.0) -> float:
        """When it had received so many bytes more than at a time."""
        later = [(at, count) for at, count in self.seen if at >= since]
        return next(at for at, count in later if count >= later[0][1] + more)


@contextmanager
def shaped(link: Link, host: str) -> Iterator[None]:
    """Give a node's link its rate, at both of its ends."""
    pid = subprocess.check_output(
        ["docker", "inspect", "-f", "{{.State.Pid}}", container(host)], text=True
    ).strip()
    ends = [(["tc"], link.device.name), (["nsenter", "-n", "-t", pid, "tc"], "eth0")]
    rate = ["root", "tbf", "rate", f"{MBIT}mbit", "burst", "256kb", "latency", "100ms"]
    try:
        for tc, device in ends:
            subprocess.run([*tc, "qdisc", "replace", "dev", device, *rate], check=True)
        yield
    finally:
        for tc, device in ends:
            subprocess.run([*tc, "qdisc", "del", "dev", device, "root"], check=False)


def timeline(run: Run) -> str:
    """What of the run took more than 0.2 s, by task, in order."""
    times = [(record["at"], record["task"]) for record in run.records]
    steps = [(at - before, task) for (before, _task), (at, task) in pairwise(times)]
    return "; ".join(f"{task} {seconds:.1f} s" for seconds, task in steps if seconds > 0.2)


@pytest.mark.deep
def test_a_cold_rollout_waits_for_little_but_what_it_has_to(fresh_lab: Lab) -> None:
    lab, host = fresh_lab, fresh_lab.hosts[0]
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    args: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 16}
    lab.write_vars(vllm_deployments=[deployment(image=IMAGE, engine_args=args, env=env)])
    link = Link.of(lab, host)
    watching = threading.Thread(target=link.watch)
    watching.start()
    try:
        with shaped(link, host):
            begun = time.time()
            run = lab.play("deploy", "--limit", host)
            whole = time.time() - begun
    finally:
        link.ended.set()
        watching.join()
    assert run.rc == 0, run.out[-4000:]

    events = "docker events --since 0 --until $(date +%s) --filter type=image --filter event=pull --format '{{json .}}'"
    pulled = min(json.loads(line)["timeNano"] / 1e9 for line in lab.on(host, events).splitlines())
    pulling = link.reached(PULLING) - PULLING / RATE
    started = docker_time(lab.on(host, "docker inspect -f '{{.State.StartedAt}}' instinct-llama-0"))
    log = lab.on(host, f"docker logs --timestamps instinct-llama-0 2>&1 | grep -m1 '{READY}'")
    ready = docker_time(log.split()[0])
    files = f"du -sbL /var/lib/instinct-fleet/hf/hub/models--{MODEL.replace('/', '--')}/snapshots | cut -f1"
    weights = int(lab.on(host, files)) / RATE
    waits = {"image": pulled - pulling, "weights": weights, "vLLM": ready - started}
    ratio = whole / sum(waits.values())
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in waits.items())
    print(
        f"{whole:.1f} s, of which {parts}: {ratio:.3f}; before the pull {pulling - begun:.1f} s, from pull to "
        f"start {started - pulled:.1f} s, after ready {begun + whole - ready:.1f} s. {timeline(run)}"
    )
    assert waits["image"] > 10  # or they were not found
    assert waits["vLLM"] > 10
    assert ratio <= GOAL
