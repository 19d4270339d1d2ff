# SPDX-License-Identifier: Apache-2.0
"""Sample models and engines for estimates of memory."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.shape import ModelShape
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.fit import EngineConfig

from tests import ROOT
from tests.worlds.catalogue import kv_rules, model_shape

DATA = ROOT / "tests/data/fit"
CONFIGS = {
    item["name"]: item["config"] for item in json.loads((DATA / "published.json").read_text())["models"]
}

MI300X = 196592 << 20  # what amdgpu's mem_info_vram_total says


def model(name: str, **changes: Any) -> ModelShape:
    return model_shape({**CONFIGS[name], **changes})


def engine(version: str = "0.33.0", **changes: Any) -> EngineConfig:
    given: dict[str, Any] = {
        "memory_bytes": MI300X,
        "gpu_memory_utilization": 0.9,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        **changes,
    }
    return EngineConfig(rules=kv_rules(version), **given)
