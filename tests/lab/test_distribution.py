# SPDX-License-Identifier: Apache-2.0
"""An image and a model go over the registry's and the hub's link once, and from host to host otherwise."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from lab.config import SERVICES

from .conftest import LAB, Lab, Run
from .helpers import completion, deployment

ENGINE = "apt-get -qq update; apt-get -qq -y --no-install-recommends install python3-libtorrent"
STORE = "/var/lib/instinct-fleet/store"
# The largest blob of the model's that the hub cache has too, with its last byte flipped.
FLIP = f"""
set -e
cd {STORE}/blobs/sha256
blob=$(find . -type f -links 2 -printf '%s %f\\n' | sort -n | tail -1 | cut -d' ' -f2)
python3 - "$blob" <<'END'
import sys
with open(sys.argv[1], "r+b") as file:
    file.seek(-1, 2)
    last = file.read(1)
    file.seek(-1, 2)
    file.write(bytes([last[0] ^ 1]))
END
echo "$blob"
"""


def _sent() -> int:
    """Bytes that registry and hub have sent to this lab's nodes."""
    networks = json.loads(_docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", SERVICES))
    mac = networks[LAB.network]["MacAddress"]
    found = f"grep -l {mac} /sys/class/net/*/address | sed s,address,statistics/tx_bytes, | xargs cat"
    return int(_docker("exec", SERVICES, "sh", "-c", found))


def _docker(*args: str) -> str:
    return subprocess.run(["docker", *args], text=True, check=True, stdout=subprocess.PIPE).stdout


def _deploy(lab: Lab) -> Run:
    run = lab.play("deploy")
    assert run.rc == 0, run.out[-4000:]
    return run


@pytest.fixture
def sharing(fresh_lab: Lab) -> Lab:
    """Hosts that share whatever they lack, also where they are two only."""
    fresh_lab.write_vars(vllm_deployments=[deployment()], fetch_from="peers")
    for host in fresh_lab.hosts[1:]:  # the role installs it on the first one
        fresh_lab.on(host, ENGINE)
    return fresh_lab


def _transfers(run: Run) -> dict[str, dict[str, Any]]:
    return {item["kind"]: item for item in run.plan()["transfers"]}


@pytest.mark.deep
def test_registry_and_hub_send_one_copy(sharing: Lab) -> None:
    lab, (seed, *others) = sharing, sharing.hosts
    before = _sent()
    run = _deploy(lab)
    sent = _sent() - before

    moved = _transfers(run)
    assert {item["seed"] for item in moved.values()} == {seed}
    whole = sum(item["bytes"] for item in moved.values())
    print(f"{sent:,} bytes sent for {len(lab.hosts)} copies of {whole:,}: {sent / whole:.3f}")
    assert sent < 1.1 * whole
    assert "ignoring" not in run.out
    for host in lab.hosts:
        assert completion(lab, host, 8000)["usage"]["completion_tokens"]
    downloads = {host: [one for one in actions if "/containers/create?name=instinct-fetch" in one]
                 for host, actions in run.actions().items()}  # fmt: skip
    assert [host for host, found in downloads.items() if found] == [seed]
    for host in others:
        assert any(one.startswith("link lab/tiny-llama@") for one in run.actions()[host])
    # The compressed image stays on the seed alone; a model is in the store and in the cache as one file.
    assert [lab.on(host, f"grep -l image {STORE}/manifests/* | wc -l").strip() for host in lab.hosts] == [
        "1",
        *("0" for _unused in others),
    ]
    again = _deploy(lab)
    assert again.changed() == []
    assert {record["module"] for record in again.records if record["host"] in others} == {"node_state"}
    for host in lab.hosts:
        assert not lab.on(host, "ls /run/instinct-fleet/swarm/*/job.json 2>/dev/null; true").strip(), (
            "its key"
        )

    blob = lab.on(others[0], FLIP).strip()
    found = lab.play("verify")
    assert found.rc != 0
    assert blob in found.out
    healed = _deploy(lab)
    assert {line.partition(":")[0] for line in healed.changed()} >= {others[0]}
    assert lab.play("verify").rc == 0
