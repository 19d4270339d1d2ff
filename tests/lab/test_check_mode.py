# SPDX-License-Identifier: Apache-2.0
"""--check --diff on a fresh lab tells what the run after it does, and does nothing."""

from __future__ import annotations

import pytest

from lab.standin.knobs import Knobs

from .conftest import Lab
from .helpers import deployment, node_state


@pytest.mark.deep
def test_check_mode_predicts_the_run(fresh_lab: Lab) -> None:
    # What follows the answer of an image that nobody knows cannot be predicted: test_image_probe has that case.
    wanted = deployment(instances_per_host=2, vllm_version=Knobs.version)
    fresh_lab.write_vars(vllm_deployments=[wanted], gpu_partition_compute="CPX")
    before = node_state(fresh_lab)
    assert len(before) >= 2
    predicted = fresh_lab.play("site", "--check", "--diff", "--skip-tags", "benchmark")
    assert predicted.rc == 0, predicted.out
    assert node_state(fresh_lab) == before

    done = fresh_lab.play("site", "--skip-tags", "benchmark")
    assert done.rc == 0, done.out
    assert all(node_state(fresh_lab)[host] != before[host] for host in fresh_lab.hosts)  # it would show
    assert set(done.actions()) == set(fresh_lab.hosts)
    for host, actions in done.actions().items():
        assert actions == predicted.actions()[host], host
    # The plan said the same, and said it in both runs.
    assert predicted.plan() == done.plan()
    assert set(done.changed()) == set(predicted.changed())
