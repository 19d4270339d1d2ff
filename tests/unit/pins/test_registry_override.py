# SPDX-License-Identifier: Apache-2.0
"""Images from mirrors: their names there, on a host, and in the plan."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_names import FROM_STORE, mirror_ref
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import parse_ref
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.checker import Checker
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.node_state import NodeState
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.registry_override import (
    add_own_names,
    parse_overrides,
)

from tests.worlds.plan_world import DIGEST, PULL, apply_to_state, deployment, plan, problems, state

RULES = {
    "docker.io": "mirror.example/hub",
    "docker.io/rocm": "mirror.example:5000",
    "ghcr.io": "localhost:5001/a/b",
}
LAB = {"registry.lab:5000": "mirror.example/lab-images"}
MIRRORED = f"mirror.example/lab-images/lab/vllm@{DIGEST}"


@pytest.mark.parametrize(
    ("ref", "name"),
    [
        ("vllm/vllm-openai-rocm:v1", "mirror.example/hub/vllm/vllm-openai-rocm"),
        ("index.docker.io/vllm/x:1", "mirror.example/hub/vllm/x"),
        ("ubuntu", "mirror.example/hub/library/ubuntu"),
        ("rocm/vllm:latest", "mirror.example:5000/vllm"),
        ("rocm2/vllm", "mirror.example/hub/rocm2/vllm"),
        ("ghcr.io/org/x", "localhost:5001/a/b/org/x"),
        ("quay.io/org/x", "quay.io/org/x"),
    ],
)
def test_names_at_mirrors(ref: str, name: str) -> None:
    check = Checker()
    found = mirror_ref(parse_ref(ref), parse_overrides(check, RULES))
    assert (found.repository, found.tag, check.problems) == (name, parse_ref(ref).tag, [])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"docker.io": "https://mirror.example"},
            "registry_override.docker.io (host n1): is not pulled from a registry.",
        ),
        ({"hub": "mirror.example"}, "registry_override.hub (host n1): is not a registry."),
        ({"docker.io": "user:secret@mirror.example"}, "is not pulled from a registry."),
        ({"docker.io": "mirror.example/"}, "is not pulled from a registry."),
        ({"docker.io": None}, "is not pulled from a registry."),
        (["docker.io"], "registry_override (host n1): must be a map"),
    ],
)
def test_what_is_no_mirror(given: Any, text: str) -> None:
    (found,) = problems({"n1": state()}, [], registry_override=given)
    assert text in found
    assert "secret" not in found


def test_a_host_pulls_from_the_mirror_and_the_plan_keeps_the_name() -> None:
    made = plan({"n1": state()}, [deployment()], registry_override=LAB)
    (step,) = made.hosts[0].images
    assert (step.ref, step.pull, step.digest) == ("registry.lab:5000/lab/vllm:1", MIRRORED, DIGEST)
    assert step.registry == "mirror.example"
    (action,) = [item for item in made.hosts[0].actions if item.kind == "image"]
    assert action.target == "registry.lab:5000/lab/vllm:1"
    assert action.after.endswith(", from mirror.example")
    assert made.hosts[0].models[0].image == MIRRORED  # the weights are fetched in it
    after = apply_to_state(state(), made.to_json()["hosts"]["n1"])
    again = plan({"n1": after}, [deployment()], registry_override=LAB)
    assert [item.kind for item in again.hosts[0].actions] == []


def test_an_image_that_came_from_its_own_registry_stays() -> None:
    """A mirror that is set later restarts nothing and pulls nothing."""
    before = plan({"n1": state()}, [deployment()])
    assert before.hosts[0].images[0].pull == PULL
    after = apply_to_state(state(), before.to_json()["hosts"]["n1"])
    assert plan({"n1": after}, [deployment()], registry_override=LAB).hosts[0].actions == ()


def test_hosts_of_one_engine_may_have_it_from_different_places() -> None:
    own = {f"n{i}": {"instinct_address": f"192.0.2.{i}"} for i in (1, 2)}
    own["n2"]["registry_override"] = LAB  # type: ignore[assignment]
    wanted = deployment(nodes=2, tensor_parallel_size=8, pipeline_parallel_size=2)
    made = plan({"n1": state(), "n2": state()}, [wanted], own=own)
    assert [host.images[0].pull for host in made.hosts] == [PULL, MIRRORED]


@pytest.mark.parametrize(
    ("ref", "name"),
    [
        ("registry.lab:5000/lab/vllm:1", "127.0.0.1:29869/registry.lab_5000/lab/vllm"),
        ("rocm/vllm:1", "127.0.0.1:29869/docker.io/rocm/vllm"),
        ("ubuntu", "127.0.0.1:29869/docker.io/library/ubuntu"),
        ("quay.io/org/x_5:1", "127.0.0.1:29869/quay.io/org/x_5"),
    ],
)
def test_names_in_the_content_store_lead_back_to_the_images_own(ref: str, name: str) -> None:
    there = mirror_ref(parse_ref(ref), [FROM_STORE])
    assert there.repository == name
    image = {"id": "sha256:x", "tags": [], "digests": [f"{name}@{DIGEST}"], "bytes": 1}
    found = add_own_names(NodeState.from_json(state(images=[image])), (FROM_STORE,))
    assert found.images[0].digests[1:] == (f"{parse_ref(ref).repository}@{DIGEST}",)
