# SPDX-License-Identifier: Apache-2.0
"""A host is taken apart while the other one serves, and comes back as a new one would."""

from __future__ import annotations

import re

import pytest

from tests import ROOT

from .conftest import Lab
from .endpoint import Endpoint
from .helpers import deployment, wait_for

pytestmark = pytest.mark.deep
RUNBOOK = (ROOT / "docs/runbooks/host.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"playbooks/(forget\.yml .+)$", RUNBOOK, re.MULTILINE)
STAYS, LEAVES = "lab-n1", "lab-n2"  # the first one has the load balancer too
LIMIT = ("--limit", f"{STAYS},{LEAVES}")
OWN = "ls -d /etc/instinct-fleet /etc/systemd/system/instinct-* /etc/sysctl.d/*instinct-fleet* 2>/dev/null; true"
CONTAINERS = "docker ps --all --quiet --filter label=instinct-fleet.instance"


def test_a_host_leaves_and_comes_back(balanced_lab: Lab) -> None:
    lab = balanced_lab
    hosts = "mi300x-01,lb-01"
    assert [f"forget.yml --limit {hosts} --check", f"forget.yml --limit {hosts}"] == COMMANDS  # as below
    lab.write_vars(vllm_deployments=[deployment(instances_per_host=2, engine_args={"shutdown_timeout": 5})])
    endpoint = Endpoint.deployed(lab)
    images = lab.on(LEAVES, "docker images --quiet")
    would = lab.play("forget", *LIMIT, "--check")
    assert would.rc == 0, would.out
    assert len(lab.on(LEAVES, CONTAINERS).split()) == 2
    with endpoint.load(20) as requests:
        done = lab.play("forget", *LIMIT)
        requests.wait_for(50)
    requests.assert_nothing_lost(at_least=50)
    assert done.rc == 0, done.out
    assert "host_forget" not in done.modules(STAYS)
    assert "remove /etc/instinct-fleet" in done.actions()[LEAVES]
    assert "-e forget_weights=true" in done.out
    assert (lab.on(LEAVES, CONTAINERS), lab.on(LEAVES, OWN)) == ("", "")
    assert lab.on(LEAVES, "docker images --quiet") == images
    assert len(lab.on(STAYS, CONTAINERS).split()) == 2
    again = lab.play("forget", *LIMIT)
    assert again.rc == 0, again.out
    assert f"{LEAVES}: nothing to remove" in again.out
    assert again.changed() == []
    back = lab.play("deploy")
    assert back.rc == 0, back.out
    assert STAYS not in {line.split(":")[0] for line in back.changed() if "vllm" in line.lower()}
    wait_for("all in service", lambda: endpoint.in_service() == 4)
