# SPDX-License-Identifier: Apache-2.0
"""What several lab tests share: deployments of the stand-in engine, and a node's state in comparable form."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.oracles.real_parsers import judge

if TYPE_CHECKING:
    from .conftest import Lab

STANDIN = "registry.lab:5000/lab/standin:latest"
MODEL = "lab/tiny-llama"
GATED = "lab/tiny-llama-gated"
TOKEN = "hf_lab_Qk7Zr2Xw9Tn4Vb8Lm3Jp6"  # the lab hub accepts it; made up

# Runs of a third of a second: what is proven is the judgement, not the benchmark.
SHORT_RUNS = {
    "dataset_name": "random", "random_input_len": 32, "random_output_len": 16, "num_prompts": 32,
    "max_concurrency": 16, "temperature": 0, "ignore_eos": True,
}  # fmt: skip
LEFT_OUT = 10
"""The exit code of a run that did everything but what is held."""


def deployment(**keys: Any) -> dict[str, Any]:
    """A deployment of the stand-in engine; keys replace or add, None removes."""
    base: dict[str, Any] = {
        "name": "llama",
        "model": MODEL,
        "image": STANDIN,
        "port": 8000,
        # A node that is a container may not raise its limits.
        "runtime": {"ulimits": {"memlock": 8388608, "nofile": 16384}},
    }
    base.update(keys)
    return {key: value for key, value in base.items() if value is not None}


def docker_time(text: str) -> float:
    """Seconds since 1970 of one of Docker's times, which are of UTC and have nanoseconds."""
    whole, _, rest = text.strip().rstrip("Z").partition(".")
    begun = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.UTC)
    return begun.timestamp() + float(f"0.{rest or 0}")


# Only what never comes takes so long: two labs, the unit tests and real engines share two cores.
WAIT_SECONDS = 600.0


def wait_for(what: str, condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    """Wait until the condition holds; AssertionError with `what` when it does not within the time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.3)


def assert_agrees(node: str, version: str, *image: str) -> None:
    """AssertionError unless the parser of an image, with options of `docker run` before it, takes what is rendered for
    that vLLM, and judges made-up command lines as the planner does.
    """
    inside = (
        "docker",
        "exec",
        "--interactive",
        node,
        "docker",
        "run",
        "--rm",
        "--interactive",
        "--network",
        "none",
    )
    judged = judge([*inside, *image, "python3"], version)
    print(judged.text())
    assert sum(judged.rendered.values()) > 500
    assert 0 < judged.accepted < judged.made_up
    assert not judged.refused, judged.text()
    assert not judged.differing, judged.text()


# Where a thing is not there, its line is empty; but without Docker's answer this fails.
STATE = r"""
set -o pipefail
cd /etc/instinct-fleet 2>/dev/null && find . -type f ! -name startup.log ! -name ready ! -name attention.json \
    ! -path './generations/*' ! -name journal.log -exec sha256sum {} + | sort -k2
cd /etc/instinct-fleet/generations 2>/dev/null && find . -type f ! -name state.json | sort   # they hold times
cd /var/lib/instinct-fleet 2>/dev/null && find . -path '*/.instinct-fleet/*.json' -exec sha256sum {} + | sort -k2
find /var/lib/instinct-fleet -name '*.incomplete' -printf 'incomplete %p\n' 2>/dev/null | sort
ls /run/instinct-fleet 2>/dev/null
cat /proc/sys/kernel/numa_balancing /etc/sysctl.d/60-instinct-fleet.conf 2>/dev/null
cat /sys/class/drm/renderD*/device/current_compute_partition 2>/dev/null | sort | uniq -c
docker images --digests --format '{{.Repository}} {{.Digest}}' | sort || exit 1
docker ps -a --format '{{.Names}} {{.State}} {{.Label "instinct-fleet.spec"}}' | sort || exit 1
"""


def node_state(lab: Lab) -> dict[str, str]:
    """Everything that a run is meant to leave on a node, as text, by host. AssertionError when one cannot be asked."""
    return {host: lab.on(host, STATE) for host in lab.hosts}


def completion(lab: Lab, host: str, port: int, model: str = MODEL) -> dict[str, Any]:
    """Ask an instance for tokens, from its node."""
    body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 4, "temperature": 0})
    url = f"http://127.0.0.1:{port}/v1/completions"
    program = (
        "import urllib.request as u;"
        f"r=u.Request({url!r},data={body.encode()!r},headers={{'Content-Type':'application/json'}});"
        "print(u.urlopen(r,timeout=120).read().decode())"
    )
    return json.loads(lab.on(host, f"python3 -c \"$(cat <<'EOF'\n{program}\nEOF\n)\""))
