# SPDX-License-Identifier: Apache-2.0
"""Weights on nodes are what the hub published, and disks lose only what nothing needs; the commands of the runbook."""

from __future__ import annotations

import re
import shlex

import pytest

from tests import ROOT

from .conftest import Lab, Run
from .helpers import completion, deployment

RUNBOOK = (ROOT / "docs/runbooks/storage.md").read_text(encoding="utf-8")
COMMANDS = re.findall(
    r"^\$ ansible-playbook -i inventory/mine playbooks/(.+?)(?:  +.*)?$", RUNBOOK, re.MULTILINE
)
# The largest file of the model, and what was its content: bytes of the right length.
SPOIL = """
set -e
cd /var/lib/instinct-fleet/hf/hub
blob=$(find models--*/blobs -type f -printf '%s %p\\n' | sort -n | tail -1 | cut -d' ' -f2)
dd if=/dev/zero of="$blob" bs=4096 count=1 seek=4 conv=notrunc status=none
basename "$blob"
"""

LEFT = f"""
set -e
cd /var/lib/instinct-fleet
mkdir -p cache/gone-0 bench/run-1 hf/hub/models--lab--gone/.instinct-fleet hf/hub/models--lab--gone/snapshots/{"1" * 40}
echo x > cache/gone-0/x
echo {{}} > hf/hub/models--lab--gone/.instinct-fleet/{"1" * 40}.json
"""


def play(lab: Lab, command: str) -> Run:
    """Run a command of the runbook, on the first node."""
    assert command in COMMANDS, f"not in the runbook: {command}"
    playbook, *args = shlex.split(command.replace("mi300x-01,lb-01", lab.hosts[0]))
    return lab.play(playbook.removesuffix(".yml"), *args)


@pytest.mark.deep
def test_corrupt_weights_are_found_named_and_fetched_again(fresh_lab: Lab) -> None:
    lab, host = fresh_lab, fresh_lab.hosts[0]
    lab.write_vars(vllm_deployments=[deployment()])
    assert lab.play("deploy").rc == 0
    blob = lab.on(host, SPOIL).strip()
    assert lab.play("deploy").changed() == []
    assert "verified by content" in play(lab, "plan.yml -e verify=true").out
    verify = "deploy.yml -e verify=true --limit mi300x-01,lb-01"
    found = play(lab, verify)
    assert found.rc != 0
    assert f"expected sha256:{blob}" in " ".join(found.out.split())
    assert completion(lab, host, 8000)["usage"]["completion_tokens"]  # what serves was left alone
    again = lab.play("deploy")
    assert again.rc == 0, again.out[-3000:]
    assert play(lab, verify).rc == 0


@pytest.mark.deep
def test_only_what_nothing_refers_to_is_pruned(fresh_lab: Lab) -> None:
    lab, host = fresh_lab, fresh_lab.hosts[0]
    lab.write_vars(vllm_deployments=[deployment()])
    assert lab.play("deploy").rc == 0
    assert "nothing to remove" in play(lab, "prune.yml").out
    # An instance that is gone, a measurement that broke off, and an image and a commit to which nothing refers.
    lab.on(host, LEFT)
    shown = play(lab, "prune.yml")
    assert shown.rc == 0, shown.out[-3000:]
    for text in ("cache gone-0", "bench run-1", "weights lab/gone@111111111111"):
        assert f"remove {text}" in shown.out
    assert shown.changed() == [f"{host}: Remove what nothing refers to"]
    assert lab.on(host, "ls /var/lib/instinct-fleet/cache").split() == ["gone-0", "llama-0"]
    removed = play(lab, "prune.yml -e apply=true")
    assert removed.rc == 0, removed.out[-3000:]
    assert lab.on(host, "ls /var/lib/instinct-fleet/cache").split() == ["llama-0"]
    assert completion(lab, host, 8000)["usage"]["completion_tokens"]
    assert lab.play("deploy").changed() == []
