# SPDX-License-Identifier: Apache-2.0
"""A container's shared memory: too small for several workers, or without effect."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.shared_memory import (
    shared_memory,
)

from tests.worlds.catalogue import knowledge
from tests.worlds.tune_world import deployment


@pytest.mark.parametrize(
    ("runtime", "gpus", "text"),
    [
        ({}, 8, ""),
        ({"ipc": "private"}, 8, ""),
        ({"ipc": "private", "shm_size": "32g"}, 8, ""),
        ({"ipc": "private", "shm_size": "1g"}, 1, ""),
        (
            {"ipc": "private", "shm_size": "1g"},
            8,
            "runtime.shm_size: 1.0 GiB may be too little for 8 workers. ",
        ),
        (
            {"ipc": "private", "shm_size": "8g"},
            2,
            "runtime.shm_size: 8.0 GiB may be too little for 2 workers. ",
        ),
        ({"shm_size": "1g"}, 8, "runtime.shm_size: 1.0 GiB has no effect with ipc: host"),
    ],
)
def test_shared_memory(runtime: dict[str, Any], gpus: int, text: str) -> None:
    found = shared_memory(deployment(runtime=runtime, tensor_parallel_size=gpus), knowledge().recipes)
    assert len(found) == bool(text)
    assert all(item.startswith(text) for item in found)
