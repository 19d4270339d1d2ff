# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/quantize.md on a lab node: AMD Quark makes FP8 weights of the hub's model, on the CPU, without a
network; signed, passed on to another node, served by the real vLLM on both with equal tokens. A tampered copy is not
passed on, and starts nothing where no other host has a good one; otherwise it is healed from that.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.config import VLLM_VERSION
from tests import ROOT

from .conftest import Lab, copy_inventory, reset_lab
from .helpers import MODEL, deployment

pytestmark = pytest.mark.deep  # 250 MB of packages, PyTorch's imports and two real engines on two cores
PAGE = (ROOT / "docs/quantize.md").read_text(encoding="utf-8")
IMAGE = f"registry.lab:5000/lab/vllm:cpu_vllm_{VLLM_VERSION}"
MODELS = "/var/lib/instinct-fleet/models"
NAME = "tiny-llama-ptpc-fp8"
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
ARGS = {"max_model_len": 512, "max_num_seqs": 8, "enforce_eager": True}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page downloads for hosts that do not reach PyPI, with pip, which the lab's image has not."""
    words = re.search(r"pip (download .*?) --python-version 3\.12 -d packages -r (\S+)", PAGE)
    assert words, "the page downloads otherwise"
    target = tmp_path_factory.mktemp("packages")
    pip = [sys.executable, "-m", "pip"]
    subprocess.run(
        [*pip, *words[1].split(), "--quiet", "-d", str(target), "-r", str(ROOT / words[2])], check=True
    )
    subprocess.run([*pip, "download", "--quiet", "--no-deps", "-d", str(target), "pip"], check=True)
    return target


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key of an operator, made as the page says."""
    directory = tmp_path_factory.mktemp("keys")
    for line in re.findall(r"^\$ (openssl .*)$", PAGE, re.MULTILINE):
        subprocess.run(["/bin/sh", "-c", line], cwd=directory, check=True)
    return directory


@pytest.fixture(scope="module")
def real(lab_up: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    reset_lab()
    lab = copy_inventory(lab_up, tmp_path_factory.mktemp("real"))
    lab.write_vars(vllm_deployments=[deployment(image=IMAGE, engine_args=ARGS, env=ENV)])
    run = lab.play("deploy", "--skip-tags", "vllm_serve")
    assert run.rc == 0, run.out[-3000:]
    yield lab
    reset_lab()


ASK = """
import json, urllib.request
body = {"model": "quantized", "prompt": "the server", "max_tokens": 24, "temperature": 0}
request = urllib.request.Request(
    "http://127.0.0.1:8000/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
)
print(json.load(urllib.request.urlopen(request))["choices"][0]["text"])
"""


def tokens(lab: Lab, host: str) -> str:
    """What the engine of a host generates; nodes have Python and no curl."""
    return str(lab.on(host, f"python3 -c \"$(cat <<'EOF'\n{ASK}\nEOF\n)\""))


def tampered(lab: Lab, host: str, weights: str) -> str:
    """Put another byte into a file of a node, in place; return the command that puts the old content back."""
    lab.on(
        host,
        f"cp {weights} /tmp/whole && printf x | dd of={weights} bs=1 seek=2000000 conv=notrunc 2>/dev/null",
    )
    return f"cp /tmp/whole {weights}"


def sums(lab: Lab, host: str, path: str) -> str:
    """The hashes of all files of a model on a node."""
    return str(lab.on(host, f"cd {path} && find . -type f | sort | xargs sha256sum"))


def running(lab: Lab, host: str) -> str:
    """The instances of a node, by the ids of their containers."""
    return str(lab.on(host, "docker ps -q --filter name=instinct-llama"))


def test_quantized_signed_passed_on_served_on_two_nodes_and_tampered_copies_refused(
    real: Lab, packages: Path, keys: Path
) -> None:
    lab = real
    host, other = lab.hosts[:2]
    command = (
        "quantize", "--limit", host, "-e", f"quantize_source={MODEL}", "-e", "quantize_device=cpu",
        "-e", f"quantize_packages={packages}", "-e", f"quantize_signing_key_file={keys}/models.pem",
        "-e", f"quantize_image={IMAGE}",
    )  # fmt: skip

    shown = lab.play(*command, "--check")
    assert shown.rc == 0, shown.out[-3000:]
    assert "file by file on the CPU" in shown.out
    assert lab.on(host, f"ls {MODELS} 2>/dev/null || true") == ""

    run = lab.play(*command)
    assert run.rc == 0, run.out[-4000:]
    commit = lab.on(host, f"ls {MODELS}/{NAME}").strip()
    path = f"{MODELS}/{NAME}/{commit}"
    assert f"model: {path}" in " ".join(run.out.split())
    modes = f"find {path} -type f -printf '%m\\n' | sort -u; find {path} -type d -printf '%m\\n' | sort -u"
    assert lab.on(host, modes).split() == ["644", "755"]
    again = lab.play(*command)
    assert (again.rc, "There already" in again.out) == (0, True), again.out[-3000:]

    config = lab.inventory / "quantized"
    config.mkdir(exist_ok=True)
    (config / "config.json").write_text(lab.on(host, f"cat {path}/config.json"))
    served = deployment(
        model=path,
        model_config="quantized",
        served_model_name="quantized",
        image=IMAGE,
        engine_args=ARGS,
        env=ENV,
    )
    lab.write_vars(vllm_deployments=[served], quantize_public_key_file=str(keys / "models.pub"))

    # The only copy is wrong: found when it is read, and by then known to every plan.
    file = "model-00001-of-00002.safetensors"
    back = tampered(lab, host, f"{path}/{file}")
    refused = lab.play("deploy")
    said = " ".join(refused.out.split())
    assert refused.rc != 0
    assert f"{file} is changed. It is not passed on" in said
    assert f"{path} was to come from another host, and did not arrive" in said
    assert lab.on(other, f"ls {MODELS}/{NAME} 2>/dev/null || true") == ""
    assert [running(lab, node) for node in (host, other)] == ["", ""]
    refused = lab.play("deploy")
    assert refused.rc != 0
    assert f"differs from its manifest on every host that has it: {host} ({file})" in " ".join(
        refused.out.split()
    )

    # As it was made: passed on, and served by both.
    lab.on(host, back)
    run = lab.play("deploy")
    assert run.rc == 0, run.out[-4000:]
    moved = {item["kind"]: item for item in run.plan()["transfers"]}["repository"]
    assert (moved["seed"], moved["origin"]) == (host, None)
    assert sums(lab, other, path) == sums(lab, host, path)
    assert "./model.sig" in sums(lab, other, path)
    answers = [tokens(lab, node) for node in (host, other)]
    print(f"{path}: {answers[0]!r} of both nodes")
    assert answers[0] == answers[1] != ""
    quiet = lab.play("deploy")
    assert (quiet.rc, quiet.plan().get("transfers")) == (0, None), quiet.out[-3000:]
    for node in (host, other):  # nothing is hashed again
        assert [
            name for name in quiet.modules(node) if name not in ("fleet_plan", "ansible.builtin.add_host")
        ] == ["node_state"]

    # One of two copies is wrong: healed from the other, while it serves.
    before = running(lab, other)
    tampered(lab, other, f"{path}/{file}")
    healed = lab.play("deploy")
    assert healed.rc == 0, healed.out[-4000:]
    assert f"{file} is changed" in " ".join(healed.out.split())
    assert sums(lab, other, path) == sums(lab, host, path)
    assert running(lab, other) == before
