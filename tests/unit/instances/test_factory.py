# SPDX-License-Identifier: Apache-2.0
"""What instances are made of: the image's vLLM, the model's config from wherever it is known, the GPU."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.factory import ModelSource
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    ImagePin,
    Lock,
    ModelPin,
    model_key,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan

from tests.worlds.plan_world import (
    COMMIT,
    CONFIG,
    DIGEST,
    GIB,
    IMAGE,
    LOCK,
    PULL,
    REPO,
    WEIGHTS,
    actions,
    deployment,
    fleet,
    state,
    workshop,
)

UNKNOWN = Lock({IMAGE: ImagePin(DIGEST, GIB)}, LOCK.models)
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def made(lock: Lock, found: dict[str, Any] | None, models: Any = None, **keys: Any) -> FleetPlan:
    """A plan of one host with one deployment."""
    offline = {"offline": True, "instinct_gpus": {"model": "MI300X", "count": 8}} if found is None else {}
    checked = check_fleet(fleet({"n1": found}, [deployment(**keys)], **offline))
    return plan_fleet(checked, workshop(lock, models))


def first(plan: FleetPlan) -> dict[str, Any]:
    """Its first instance, as in plan.json."""
    instance: dict[str, Any] = plan.to_json()["hosts"]["n1"]["instances"][0]
    return instance


def test_an_unknown_image_is_brought_and_asked_and_the_rest_waits() -> None:
    plan = made(UNKNOWN, state())
    host = plan.to_json()["hosts"]["n1"]
    assert plan.partial == (IMAGE,)
    assert [item.split()[0] for item in actions(host)] == ["numa_balancing", "image"]
    assert host["actions"][1]["after"].endswith(", and probed for its vLLM version")
    assert host["unknown_images"] == [IMAGE]
    assert host["instances"] == host["models"] == host["servers"] == []


def test_the_weights_must_have_room_before_the_image_is_asked() -> None:
    disk = [{"path": "/", "free_bytes": 5 * GIB, "total_bytes": 9 * GIB, "device": 1}]
    ((_unused, why),) = made(UNKNOWN, state(disk=disk)).excluded
    assert "weights of lab/tiny-llama 12.0 GiB" in why


def test_an_image_that_is_there_is_asked() -> None:
    there = state(images=[{"id": "sha256:" + "a" * 64, "tags": [IMAGE], "digests": [PULL]}])
    host = made(UNKNOWN, there).to_json()["hosts"]["n1"]
    assert [(item["before"], item["after"]) for item in host["actions"] if item["kind"] == "image"] == [
        ("present", "probed")
    ]
    assert [image["pull"] for image in host["images"]] == [PULL]


def test_offline_an_unknown_image_needs_the_operators_word() -> None:
    with pytest.raises(FleetError) as error:
        made(UNKNOWN, None)
    assert error.value.problems[0].text() == (
        f"vllm_deployments[0].image (host n1): the vLLM version in {IMAGE} is unknown: the tag moves, or is not in "
        'the catalogue. Set vllm_version ("0.11.1") in the deployment, or plan with a node on which the image '
        "can be probed."
    )
    assert first(made(UNKNOWN, None, vllm_version="0.33.0"))["vllm"] == "0.33.0"


def test_a_version_before_the_catalogue() -> None:
    with pytest.raises(FleetError) as error:
        made(LOCK, state(), vllm_version="0.4.2")
    assert error.value.problems[0].text() == (
        "vllm_deployments[0].vllm_version (host n1): vLLM 0.4.2 is older than 0.6.3, the oldest release in the "
        "catalogue. Use an image with vLLM 0.6.3 or newer."
    )


def test_configs_come_from_model_config_then_the_hub_then_the_catalogue() -> None:
    bare = Lock(LOCK.images, {model_key("", LLAMA, "main"): ModelPin(COMMIT)})
    assert first(made(bare, state(), model=LLAMA))["fit"]["kv_bytes_per_token"] == 131072
    hub = Lock(
        LOCK.images,
        {model_key("", LLAMA, "main"): ModelPin(COMMIT, None, {**CONFIG, "num_hidden_layers": 1})},
    )
    assert first(made(hub, state(), model=LLAMA))["fit"]["kv_bytes_per_token"] == 2 * 8 * 64 * 2
    given = {"m": ModelSource({**CONFIG, "num_hidden_layers": 2})}
    found = first(made(hub, state(), given, model=LLAMA, model_config="m"))
    assert found["fit"]["kv_bytes_per_token"] == 2 * 2 * 8 * 64 * 2


@pytest.mark.parametrize(("mode", "parts"), [("SPX", 1), ("CPX", 8)])
def test_what_a_decode_step_takes_is_in_the_plan(mode: str, parts: int) -> None:
    checked = check_fleet(
        fleet(
            {"n1": None},
            [deployment(vllm_version="0.33.0", model=LLAMA, engine_args={"max_model_len": 8192})],
            offline=True,
            instinct_gpus={"model": "MI300X", "count": 8},
            gpu_partition_compute=mode,
        )
    )
    found = first(plan_fleet(checked, workshop(LOCK)))["decode_step"]
    assert found["peak"]["hbm_bytes_per_second"] == 5.3e12 / parts
    assert found["reads"]["kv"] == [{"bytes_per_token": 131072, "window": 0, "chunk": 0}]
    assert sum(found["parameters"].values()) == pytest.approx(6.98e9, rel=0.01)


def test_weights_are_those_of_the_files_that_are_fetched() -> None:
    assert first(made(LOCK, state()))["fit"]["weights_bytes_per_gpu"] == pytest.approx(WEIGHTS, rel=0.01)
    files = (("model-1.safetensors", WEIGHTS), ("consolidated.safetensors", WEIGHTS))
    given = {"m": ModelSource(CONFIG, files)}
    found = first(made(LOCK, state(), given, model="/srv/m", model_config="m"))
    assert found["fit"]["weights_bytes_per_gpu"] == pytest.approx(WEIGHTS, rel=0.01)


def test_the_documents_that_reasons_and_hints_name_are_in_the_plan() -> None:
    data = made(LOCK, state(), objective="throughput").to_json()
    found = data["hosts"]["n1"]["instances"][0]
    named = {
        item["source"].partition("#")[0]
        for item in (*found["reasons"], *found["hints"])
        if not item["source"].startswith(("deployment ", "fleet.lock.json"))
    }
    assert named == set(data["sources"])


def test_partitions_are_judged_as_they_will_be() -> None:
    """The plan's CPX counts, not the SPX that the host is in."""
    found = fleet({"n1": state()}, [deployment()], gpu_partition_compute="CPX")
    plan = plan_fleet(check_fleet(found), workshop())
    assert first(plan)["fit"]["kv_cache_bytes"] < 24 * GIB
    assert plan.hosts[0].instances[0].instance.deployment.model == REPO
