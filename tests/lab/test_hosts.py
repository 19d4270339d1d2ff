# SPDX-License-Identifier: Apache-2.0
"""A host that cannot be reached, or where we are not root, stops nobody else."""

from __future__ import annotations

import pytest

from .conftest import Lab
from .helpers import completion, deployment


@pytest.mark.deep
def test_others_go_on_when_a_host_is_unreachable(lab: Lab) -> None:
    lab.write_vars(vllm_deployments=[deployment(name="other", port=8100)])
    gone, *others = reversed(lab.hosts)
    lab.on(gone, "pkill -x sshd; true")
    try:
        run = lab.play("site", "--skip-tags", "benchmark")
    finally:
        lab.on(gone, "/usr/sbin/sshd")
    assert run.rc == 4
    assert gone in run.out.split("PLAY RECAP")[-1]
    for host in others:
        assert completion(lab, host, 8100)["usage"]["completion_tokens"] == 4

    second = lab.play("site", "--skip-tags", "benchmark")
    assert second.rc == 0, second.out
    assert {line.split(":")[0] for line in second.changed()} == {gone}
    assert completion(lab, gone, 8100)["usage"]["completion_tokens"] == 4


def test_not_root_is_an_error_before_anything_is_touched(lab: Lab) -> None:
    lab.write_vars(vllm_deployments=[deployment(name="third", port=8200)], ansible_become=False)
    run = lab.play("site", "--skip-tags", "benchmark", "-e", "ansible_become=false")
    assert run.rc != 0
    assert "not root" in run.out
    assert run.changed() == []
