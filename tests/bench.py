# SPDX-License-Identifier: Apache-2.0
"""What a run with nothing to do costs, as a ratio to `ansible -m ping` on the same inventory in the same run.

`make bench` brings the lab to 2 and then to 10 nodes, deploys the stand-in engine on them, and times the two
commands in turn (A B A B …), so that a machine whose speed drifts slows both alike. Absolute seconds are of this
machine; the ratio is what carries over.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from tests.integration.conftest import BIN, ROOT, copy_inventory
from tests.integration.helpers import deployment

ROUNDS = 7


def timed(command: list[str], env: dict[str, str]) -> float:
    """Wall seconds of a command that must succeed."""
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return seconds


def measure(nodes: int) -> None:
    """Print the row of one fleet size."""
    lab_env = {**os.environ, "LAB_NODES": str(nodes)}
    subprocess.run(
        [sys.executable, "-m", "lab", "up"], cwd=ROOT, env=lab_env, check=True, stdout=subprocess.DEVNULL
    )
    hosts = sorted(yaml.safe_load((ROOT / "inventory/lab/hosts.yml").read_text())["instinct"]["hosts"])
    with tempfile.TemporaryDirectory() as tmp:
        lab = copy_inventory(hosts, Path(tmp))
        lab.write_vars(vllm_deployments=[deployment()])
        env = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        site = lab.command("site", "--skip-tags", "benchmark")
        ping = [str(BIN / "ansible"), "-i", str(lab.inventory), "instinct", "-m", "ansible.builtin.ping"]
        timed(site, env)  # deploys
        timed(ping, env)
        pairs = [(timed(site, env), timed(ping, env)) for _ in range(ROUNDS)]
    site_s, ping_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"{nodes:5d}  {site_s:18.2f}  {ping_s:14.2f}  {ratio:9.2f}", flush=True)


def main() -> None:
    print(
        "A run of site.yml with nothing to do, against one ping of every host (medians of pairs; target ratio ≤ 1.2)"
    )
    print("nodes  site.yml, seconds   ping, seconds      ratio")
    for nodes in (2, 10):
        measure(nodes)


if __name__ == "__main__":
    main()
