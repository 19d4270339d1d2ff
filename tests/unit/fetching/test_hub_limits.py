# SPDX-License-Identifier: Apache-2.0
"""How many hosts download from a hub at once."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.fetching.hub_limits import hub_load
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    Lock,
    ModelPin,
    model_key,
)

from tests.worlds.catalogue import knowledge
from tests.worlds.plan_world import COMMIT, CONFIG, LOCK, REPO, deployment, plan, state

MIRROR = "https://mirror.example"


def planned(hosts: int, files: int, endpoint: str = "") -> Any:
    names = [("config.json", 1), *((f"model-{number}.safetensors", 1) for number in range(files - 1))]
    pin = ModelPin(COMMIT, tuple(sorted(names)), CONFIG)
    lock = Lock(LOCK.images, {model_key(endpoint, REPO, "main"): pin})
    return plan({f"n{i}": state() for i in range(hosts)}, [deployment()], lock, hf_model_endpoint=endpoint)


@pytest.mark.parametrize(
    ("hosts", "files", "endpoint", "at_once", "requests"),
    [
        (8, 170, "", 0, 2720),
        (9, 170, "", 8, 3060),  # 3,000 in five minutes, 340 for each
        (128, 170, "", 8, 43520),
        (128, 170, "https://huggingface.co", 8, 43520),
        (2, 2000, "", 1, 8000),
        (128, 170, MIRROR, 0, None),
    ],
)
def test_the_limit_of_the_hub(
    hosts: int, files: int, endpoint: str, at_once: int, requests: int | None
) -> None:
    made = planned(hosts, files, endpoint)
    assert made.to_json().get("downloads_at_once", 0) == at_once
    found = [text for text in made.warnings if "requests for files" in text]
    assert bool(found) is bool(at_once)
    if at_once:
        assert (
            f"{hosts} hosts need {requests:,} requests for files of huggingface.co, which answers 3,000 in 5"
            in found[0]
        )
        assert f"{at_once} host{'s download' if at_once > 1 else ' downloads'} at a time" in found[0]


def test_nothing_is_asked() -> None:
    assert hub_load([], knowledge().hubs) is None
    assert hub_load([(), ()], knowledge().hubs) is None
