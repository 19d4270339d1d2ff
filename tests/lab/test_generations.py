# SPDX-License-Identifier: Apache-2.0
"""What serves is recorded on its node before it starts; going back to it is test_rollout's."""

from __future__ import annotations

import json

import pytest

from .conftest import Lab
from .helpers import deployment

TOP = "/etc/instinct-fleet"


@pytest.mark.deep
def test_generations_and_journal_by_hand(fresh_lab: Lab) -> None:
    """With no more than a shell on the node, as at three in the morning."""
    lab = fresh_lab
    wanted = deployment(name="kept")
    lab.write_vars(vllm_deployments=[wanted])
    first = lab.play("deploy")
    assert first.rc == 0, first.out
    lab.write_vars(vllm_deployments=[{**wanted, "engine_args": {"max_num_seqs": 16}}])
    second = lab.play("deploy")
    assert second.rc == 0, second.out
    assert (
        "record kept as generation 2 (now 1), so it can be rolled back to\n      change: --max-num-seqs 16 (new)"
        in second.out
    )
    for host in lab.hosts:
        kept = lab.on(host, f"ls {TOP}/generations/kept").split()
        assert kept == ["1.json", "2.json", "summary.json"]
        record = json.loads(lab.on(host, f"cat {TOP}/generations/kept/2.json"))
        label = '{{index .Config.Labels "instinct-fleet.spec"}}'
        spec = lab.on(host, f"docker inspect -f '{label}' instinct-kept-0").strip()
        assert [item["spec_hash"] for item in record["members"]] == [spec]
        lines = [line.split(" ", 1)[1] for line in lab.on(host, f"cat {TOP}/journal.log").splitlines()]
        assert [line for line in lines if line.startswith("kept")] == [
            "kept generation 1 recorded: kept-0 (first deployment)",
            "kept generation 1: kept-0 serves",
            "kept generation 2 recorded: kept-0 (--max-num-seqs 16 (new))",
            "kept generation 2: kept-0 serves",
        ]
        assert lab.on(host, f"find {TOP}/generations {TOP}/journal.log -perm /077").split() == []
