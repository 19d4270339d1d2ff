# SPDX-License-Identifier: Apache-2.0
"""The hub token is nowhere but in the file that is meant to hold it, on success and on failure."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from .conftest import BIN, ROOT, Lab
from .helpers import GATED, TOKEN, deployment

# Files, what processes were started with, and what Docker keeps; /proc is sampled separately while the run goes on.
SEARCH = (
    f"grep -rlsF '{TOKEN}' /etc /var /run /tmp /home /root /opt /srv --exclude-dir=overlay2;"
    f"docker ps -aq | xargs -r docker inspect | grep -cF '{TOKEN}';"
    f"docker ps -aq | xargs -rn1 docker logs 2>&1 | grep -cF '{TOKEN}'; true"
)
PROCESSES = f"grep -lsF '{TOKEN}' /proc/[0-9]*/cmdline /proc/[0-9]*/environ; true"


class Sampler(threading.Thread):
    """Looks at every process of the nodes and of this machine, again and again, for the token."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(daemon=True)
        self.lab, self.found, self.samples = lab, [], 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            for host in self.lab.hosts:
                # The searching shell itself has the token in its command line.
                out = self.lab.on(
                    host, f"exec 9< <(:); {PROCESSES} | grep -v /proc/self | grep -v /proc/$$", check=False
                )
                self.found += [(host, line) for line in out.splitlines() if self._alive_other(host, line)]
            self.samples += 1

    def _alive_other(self, host: str, line: str) -> bool:
        command = self.lab.on(host, f"tr '\\0' ' ' < {line} 2>/dev/null", check=False)
        return bool(command.strip()) and "grep -lsF" not in command


@pytest.mark.parametrize("case", ["right token", "gated model refused", "engine fails"])
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
    sampler = Sampler(fresh_lab)
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
    assert sampler.samples > 0
    assert sampler.found == []
    assert TOKEN not in run.out
    for host in fresh_lab.hosts:
        found = [line for line in fresh_lab.on(host, SEARCH).splitlines() if line not in ("0", "")]
        assert found == [], f"{host}: {found}"
    places = [str(p) for p in (tmp_path, Path.home() / ".ansible") if p.exists()]
    here = subprocess.run(
        ["grep", "-rlsF", TOKEN, *places], capture_output=True, text=True, check=False
    ).stdout.split()
    assert here == [str(token_file)]
    assert BIN.exists()
    assert ROOT.exists()
