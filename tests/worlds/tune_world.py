# SPDX-License-Identifier: Apache-2.0
"""Deployments that are tuned on MI300X."""

from __future__ import annotations

from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.facts import ModelFacts
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.images import ImageFacts
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.deployment import (
    Deployment,
    parse_deployments,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.tune import (
    TargetGpu,
    TunedSettings,
    tune,
)

from tests.worlds.catalogue import knowledge

MI300X = TargetGpu("gfx942", "MI300X", "SPX", "NPS1", 206141652992, 206141652992)
LLAMA = ModelFacts("meta-llama/Llama-3.1-8B-Instruct", ("LlamaForCausalLM",), head_size=128)


def deployment(**keys: Any) -> Deployment:
    """A valid deployment with these keys."""
    found, problems = parse_deployments([{"name": "m", "model": "a/b", "image": "r/i:t", **keys}])
    assert not problems
    return found[0]


def tuned(version: str, model: ModelFacts = LLAMA, platform: str = "rocm", **keys: Any) -> TunedSettings:
    """tune() on an MI300X."""
    software = ImageFacts("r/i:t", "tag", vllm=version, platform=platform)
    return tune(deployment(**keys), MI300X, software, model, knowledge())
