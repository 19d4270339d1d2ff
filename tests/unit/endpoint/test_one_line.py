# SPDX-License-Identifier: Apache-2.0
"""No string opens a line in the load balancer's configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import BackendInstance
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.backends import (
    Backend,
    unprintable_model_names,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.config import config_data
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.plan import (
    EndpointAssets,
    EndpointInputs,
    plan_balancers,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.servers import (
    BackendServer,
    HostBackends,
)

from tests.worlds.balancer_world import DRAW, host
from tests.worlds.defaults import balancer_settings

LEAK = "x\nfrontend leak\n    bind *:1"


def drawn(name: str = "llama", model: str = "m", host: str = "n1", address: str = "192.0.2.1") -> str:
    backends = [
        Backend(name, (model,), (BackendServer(host, "llama-0", "llama", address, 8000, 1, (model,)),)),
        Backend("other", ("other",), ()),
    ]
    return DRAW(config_data(balancer_settings(), backends))


@pytest.mark.parametrize("place", ["name", "model", "host", "address"])
@pytest.mark.parametrize("text", [LEAK, "a\rb", "a\x00b", "a\x1bb", "a\tb", "a\x7fb"])
def test_a_control_character_is_an_error_wherever_it_stands(place: str, text: str) -> None:
    with pytest.raises(FleetError, match="contains a control character") as error:
        drawn(**{place: text})
    assert "\n" not in str(error.value)


def test_other_texts_are_quoted() -> None:
    assert '-m str "a \\"b\\" \\$c #d" }' in drawn(model='a "b" $c #d')


def test_a_models_name_is_told_with_its_place() -> None:
    item = BackendInstance(
        name="llama-0", deployment="llama", port=8000, listen="192.0.2.1", ports=(8000,), limit=1,
        models=("good", LEAK), path=("vllm_deployments", 0),
    )  # fmt: skip
    (problem,) = unprintable_model_names([HostBackends("n1", "192.0.2.1", (item,))])
    assert (problem.path, problem.hosts) == (("vllm_deployments", 0, "served_model_name"), ("n1",))
    assert "\n" not in problem.text()
    # The plan tells it before it draws a configuration, which several models make fail.
    there = [HostBackends("n1", "192.0.2.1", (item, replace(item, deployment="other", models=("other",))))]
    inputs = EndpointInputs((host(name="lb"),), frozenset(["n1"]), EndpointAssets(DRAW, "agent\n"))
    assert plan_balancers(inputs, there)[1] == (problem,)
