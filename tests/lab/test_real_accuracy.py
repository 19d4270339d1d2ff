# SPDX-License-Identifier: Apache-2.0
"""The real vLLM, one engine on each node: a replica with a damaged tensor is named and cured, and lm-eval scores.

The commands are those of docs/runbooks/accuracy.md. Of an untrained model hardly an answer is right; what counts is
that each item is asked once and scored, and that the same weights give the same.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.config import VLLM_VERSION
from tests import ROOT

from .conftest import Lab, Run, copy_inventory, reset_lab
from .helpers import deployment

pytestmark = pytest.mark.deep  # real engines on two cores, and 760 MB of packages on each node
RUNBOOK = (ROOT / "docs/runbooks/accuracy.md").read_text(encoding="utf-8")
IMAGE = f"registry.lab:5000/lab/vllm:cpu_vllm_{VLLM_VERSION}"
REQUIREMENTS = ROOT / "roles/accuracy/files"
SECONDS = 120  # from the command to the name of the replica

# A damaged download that kept its length: to a matrix of one layer, noise of a tenth of its deviation.
PERTURB = """
import glob, json, os, random, struct
for path in glob.glob('/var/lib/instinct-fleet/hf/hub/models--lab--tiny-llama/snapshots/*/*.safetensors'):
    with open(os.path.realpath(path), 'r+b') as file:
        size, = struct.unpack('<Q', file.read(8))
        tensor = json.loads(file.read(size)).get('model.layers.1.mlp.down_proj.weight')
        if tensor:
            start, end = (8 + size + offset for offset in tensor['data_offsets'])
            file.seek(start)
            data = bytearray(file.read(end - start))
            values = [struct.unpack('<f', bytes(2) + data[at:at + 2])[0] for at in range(0, len(data), 2)]
            deviation = (sum(value * value for value in values) / len(values)) ** 0.5
            for number, value in enumerate(values):
                noisy = value + random.gauss(0, deviation / 10)
                data[2 * number:2 * number + 2] = struct.pack('<f', noisy)[2:]
            file.seek(start)
            file.write(data)
            print('perturbed', os.path.basename(path))
"""


def play(lab: Lab, *options: str) -> tuple[Run, dict[str, Any], float]:
    """Run accuracy.yml. Return it, what it wrote of the deployment, and its seconds."""
    begun = time.monotonic()
    run = lab.play("accuracy", "-e", f"accuracy_results_dir={lab.tmp}/results", *options)
    seconds = time.monotonic() - begun
    path = max(Path(lab.tmp, "results").glob("*/accuracy.json"), key=lambda path: path.stat().st_mtime_ns)
    print(f"\n{seconds:.0f} s\n{path.with_name('accuracy.txt').read_text()}", flush=True)
    return run, json.loads(path.read_text())["deployments"].get("llama"), seconds


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {replica["replica"]: replica["verdict"] for replica in found["replicas"]}


@pytest.fixture(scope="module")
def real(lab_up: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    reset_lab()
    lab = copy_inventory(lab_up, tmp_path_factory.mktemp("real"))
    args = {"max_model_len": 1024, "max_num_seqs": 16, "enforce_eager": True}
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    lab.write_vars(vllm_deployments=[deployment(image=IMAGE, engine_args=args, env=env)])
    run = lab.play("deploy")
    assert run.rc == 0, run.out[-3000:]
    yield lab
    reset_lab()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the runbook downloads for hosts that do not reach PyPI: the nodes' Python is this one's version."""
    words = re.search(r"`pip (download .*?) -d packages -r …`", RUNBOOK)
    assert words, "the runbook downloads otherwise"
    target = tmp_path_factory.mktemp("packages")
    files = [word for path in sorted(REQUIREMENTS.glob("*.txt")) for word in ("-r", str(path))]
    subprocess.run(
        [sys.executable, "-m", "pip", *words[1].split(), "--quiet", "-d", str(target), *files], check=True
    )
    return target


def test_a_perturbed_tensor_is_found_and_its_replica_cured(real: Lab) -> None:
    lab = real
    healthy, odd = lab.hosts[:2]
    right = {f"{healthy}/llama-0": "ok", f"{odd}/llama-0": "ok"}
    nll = "-e", "accuracy_tasks=nll"
    this = "--limit", odd, "-e", "instance=llama-0", "-e", "at_once=true"

    run, found, _seconds = play(lab)
    assert run.rc == 0, run.out[-3000:]
    assert (found["tasks"]["sanity"]["n"], found["tasks"]["sanity"]["failed"]) == (300, [])
    assert (verdicts(found), found["problems"]) == (right, [])

    file = lab.on(odd, f"python3 -c \"$(cat <<'EOF'\n{PERTURB}\nEOF\n)\"").split()
    assert file[0] == "perturbed"
    run = lab.play("restart", *this)
    assert run.rc == 0, run.out[-3000:]

    run, found, seconds = play(lab, *nll)
    assert run.rc == 2, run.out[-3000:]
    assert verdicts(found) == right | {f"{odd}/llama-0": "outlier"}
    (problem,) = found["problems"]
    assert problem.startswith(f"{odd}/llama-0: ")
    assert problem in " ".join(run.out.split())
    assert seconds < SECONDS

    # What the runbook does about it: the file is found, fetched again, and loaded.
    assert "`deploy.yml -e verify=true`" in RUNBOOK
    run = lab.play("deploy", "-e", "verify=true")
    assert run.rc == 2, run.out[-3000:]
    assert f"{file[1]} is sha256:" in " ".join(run.out.split())
    for playbook, options in (("deploy", ()), ("restart", this)):
        run = lab.play(playbook, *options)
        assert run.rc == 0, run.out[-3000:]
    run, found, _seconds = play(lab, *nll)
    assert run.rc == 0, run.out[-3000:]
    assert (verdicts(found), found["problems"]) == (right, [])


def test_lm_eval_scores_the_shipped_items_without_a_network(real: Lab, packages: Path) -> None:
    lab = real
    # The tools of a virtual environment are the distribution's; after that, nothing is reached but the lab's network.
    for host in lab.hosts:
        lab.on(host, "apt-get install -y -q --no-install-recommends python3-venv python3-setuptools")
        lab.on(host, "ip route del default")
    variables = {"accuracy_tasks": [f"{ROOT}/catalog/accuracy"], "accuracy_lm_eval_packages": str(packages)}
    for verdict in (None, "pass"):
        run, found, _seconds = play(lab, "-e", json.dumps(variables))
        assert run.rc == 0, run.out[-3000:]
        task = found["tasks"]["instinct_sanity"]
        assert (task["n"], task["failed"]) == (300, [])
        assert (task["against"] or {}).get("verdict") == verdict
    newest = max(Path(lab.tmp, "results").glob("*/answers.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    rows = [json.loads(line) for line in newest.read_text().splitlines()]
    assert Counter(row["host"] for row in rows) == dict.fromkeys(lab.hosts, 150)
    for host in lab.hosts:
        left = lab.on(host, "ls /var/lib/instinct-fleet/lm-eval/work")
        assert left == "", "a cache that would answer for the next release"
