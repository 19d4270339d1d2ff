# SPDX-License-Identifier: Apache-2.0
"""What a quota counts, and where it ends; what the plan says of it is test_plan's."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.content.transfer_names import model_name
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.changes.actions import (
    ImageStep,
    ModelStep,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.changes.quota import (
    check_quota,
    image_bytes,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.fleet import Host

from tests.worlds.plan_world import LOCK, SOFTWARE, deployment, fleet, state

CACHE = "/var/lib/instinct-fleet/hf"
FILES = {"model.safetensors": 40}
OWN = [{"path": "/var/lib/instinct-fleet", "free_bytes": 9, "total_bytes": 9, "device": 1}]
SHARED = [{**OWN[0], "path": CACHE, "device": 2, "network": "nfs4"}]


def host(quota: int, **changes: Any) -> Host:
    (found,) = fleet({"n1": state(**changes)}, [deployment()], store_quota=quota).hosts
    return found


def image(size: int | None) -> ImageStep:
    return ImageStep("lab/vllm:1", "lab/vllm@sha256:1", "sha256:1", size, "docker.io", None)


def model() -> ModelStep:
    return ModelStep("a/b", "main", "1" * 40, CACHE, "", FILES, (), (), "x:1", {})


def pulled(size: int, **keys: Any) -> dict[str, Any]:
    return {"id": str(size), "tags": [], "digests": [], "bytes": size, **keys}


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        ([], 0),
        ([pulled(5)], 0),  # another tool's
        ([pulled(5, software=SOFTWARE.to_json())], 5),
        ([pulled(5, build={"hash": "1"})], 5),
        ([pulled(5, build={"hash": "1"}), pulled(7, software=SOFTWARE.to_json()), pulled(9)], 12),
    ],
)
def test_images_that_count(images: list[dict[str, Any]], expected: int) -> None:
    found = host(1, images=images).state
    assert found is not None
    assert image_bytes(found) == expected


@pytest.mark.parametrize(
    ("size", "changes", "need"),
    [
        (20, {}, 100),  # three times the image, and the weights
        (None, {}, 40),  # of an image whose size is unknown only the weights count
        (20, {"held_bytes": 11}, 111),
        (20, {"disk": OWN}, 100),
        (20, {"disk": SHARED}, 60),  # weights on a file system that other hosts use too
        (
            20,
            {"disk": OWN, "stored": [model_name("a/b", "1" * 40, FILES)]},
            60,
        ),  # links to what the store has
        (20, {"disk": []}, 100),
    ],
)
def test_it_ends_with_the_last_byte(size: int | None, changes: dict[str, Any], need: int) -> None:
    assert check_quota(host(need, **changes), [image(size)], [model()], [], LOCK) == ()
    (problem,) = check_quota(host(need - 1, **changes), [image(size)], [model()], [], LOCK)
    assert problem.hosts == ("n1",)
    assert problem.fix.startswith("Raise store_quota")


@pytest.mark.parametrize(("quota", "enough"), [(45, True), (44, False)])
def test_pruning_is_advised_where_it_is_enough(quota: int, enough: bool) -> None:
    there = host(quota, images=[pulled(5, software=SOFTWARE.to_json())], held_bytes=5)
    (problem,) = check_quota(there, [], [model()], [], LOCK)
    assert problem.fix.startswith("Make room: run prune.yml --limit n1 -e apply=true") is enough


def test_a_model_that_comes_from_another_host_counts() -> None:
    arriving = [("model m@1", 7)]
    assert check_quota(host(47), [], [model()], arriving, LOCK) == ()
    (problem,) = check_quota(host(46), [], [model()], arriving, LOCK)
    assert "47 B are needed (weights of a/b 40 B, model m@1 7 B)" in problem.what
    assert check_quota(host(6), [], [], arriving, LOCK) != ()


def test_no_state_and_nothing_to_fetch() -> None:
    (unseen,) = fleet({"n1": None}, [deployment()], offline=True, store_quota=1).hosts
    assert check_quota(unseen, [image(20)], [model()], [], LOCK) == ()
    assert check_quota(host(1, held_bytes=9), [], [], [], LOCK) == ()
    assert check_quota(host(0, held_bytes=9), [image(20)], [model()], [], LOCK) == ()  # no limit
