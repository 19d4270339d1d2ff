# SPDX-License-Identifier: Apache-2.0
"""The hub token is nowhere but in the file that is meant to hold it, on success and on failure."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from pathlib import Path

import pytest

from .conftest import Lab
from .helpers import GATED, TOKEN, deployment

# Files, and what Docker keeps.
SEARCH = (
    f"grep -rlsF '{TOKEN}' /etc /var /run /tmp /home /root /opt /srv --exclude-dir=overlay2;"
    f"docker ps -aq | xargs -r docker inspect | grep -cF '{TOKEN}';"
    f"docker ps -aq | xargs -rn1 docker logs 2>&1 | grep -cF '{TOKEN}'; true"
)


class Sampler(threading.Thread):
    """Looks again and again at what every process was started with: the lab's nodes are processes of this machine."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.found: set[str] = set()
        self.processes: set[str] = set()
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.05):
            for process in Path("/proc").glob("[0-9]*"):
                for what in ("cmdline", "environ"):
                    with contextlib.suppress(OSError):
                        content = (process / what).read_bytes()
                        self.processes.add(content[:80].decode(errors="replace"))
                        if TOKEN.encode() in content:
                            self.found.add(f"{what} of {content[:200]!r}")


OTHERS = ("gated model refused", "engine fails")


@pytest.mark.parametrize(
    "case", ["right token", *(pytest.param(name, marks=pytest.mark.deep) for name in OTHERS)]
)
def test_no_secret_anywhere(fresh_lab: Lab, tmp_path: Path, case: str) -> None:
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    token_file = secret / "hf_token"
    token_file.write_text(TOKEN + ("x" if case == "gated model refused" else "") + "\n")
    token_file.chmod(0o600)
    env = {"STANDIN_FAIL": "oom"} if case == "engine fails" else {}
    fresh_lab.write_vars(
        vllm_deployments=[deployment(model=GATED, env=env)], hf_model_token_file=str(token_file)
    )
    sampler = Sampler()
    sampler.start()
    results = tmp_path / "results"
    run = fresh_lab.play(
        "site",
        "-vvv",
        "--diff",
        "-e",
        f"benchmark_results_dir={results}",
        "-e",
        f"plan_file={tmp_path}/plan.json",
    )
    sampler.done.set()
    sampler.join()

    assert (run.rc == 0) is (case == "right token"), run.out
    assert any("instinct-fetch" in p or "snapshot" in p or "docker-init" in p for p in sampler.processes)
    assert sampler.found == set()
    assert TOKEN not in run.out
    for host in fresh_lab.hosts:
        found = [line for line in fresh_lab.on(host, SEARCH).splitlines() if line not in ("0", "")]
        assert found == [], f"{host}: {found}"
    places = [str(p) for p in (tmp_path, Path.home() / ".ansible") if p.exists()]
    here = subprocess.run(
        ["grep", "-rlsF", TOKEN, *places], capture_output=True, text=True, check=False
    ).stdout.split()
    assert here == [str(token_file)]
