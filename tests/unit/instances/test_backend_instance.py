# SPDX-License-Identifier: Apache-2.0
"""What load balancers are told of an instance, and how long Docker waits for it: by the flags that were decided."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.backend_instance import (
    REQUESTS,
    backend_instance,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.compose import (
    Instance,
    stop_seconds,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.planned import PlannedInstance
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet

from tests.worlds.plan_world import deployment, fleet, state, workshop


def made(**keys: Any) -> Instance:
    """The first instance of a deployment on a host with MI300X."""
    checked = check_fleet(fleet({"n1": state()}, [deployment(**keys)]))
    (host,) = plan_fleet(checked, workshop()).hosts
    planned = host.instances[0]
    assert isinstance(planned, PlannedInstance)
    return planned.instance


@pytest.mark.parametrize(
    ("keys", "limit"),
    [
        ({"recipes": False}, REQUESTS),
        ({"engine_args": {"max_num_seqs": 64}}, 64),
        ({"engine_args": {"max-num-seqs": "64"}}, 64),
        ({"settings": {"max_num_seqs": 64}}, 64),
        ({"objective": "throughput"}, 2048),
        ({"engine_args": {"max_num_seqs": 64}, "data_parallel_size": 2}, 128),
    ],
)
def test_an_instance_gets_as_many_requests_as_it_runs(keys: dict[str, Any], limit: int) -> None:
    assert backend_instance(made(**keys)).limit == limit


@pytest.mark.parametrize(("given", "seconds"), [({}, 120), ({"shutdown_timeout": 600}, 600)])
def test_docker_waits_longer_than_the_engine(given: dict[str, Any], seconds: int) -> None:
    assert stop_seconds(made(vllm_version="0.33.0", engine_args=given)) >= seconds + (seconds > 120)


@pytest.mark.parametrize(
    "modules",
    [
        ["a=/srv/a"],
        [{"name": "a", "path": "/srv/a"}],
        '{"name": "a", "path": "/srv/a"}',
        ['{"name": "a", "path": "/srv/a"}'],
    ],
)
def test_an_adapter_is_a_model_in_every_form(modules: Any) -> None:
    found = backend_instance(made(engine_args={"enable_lora": True, "lora_modules": modules}))
    assert found.models[1:] == ("a",)
