# SPDX-License-Identifier: Apache-2.0
"""Keys of files that nodes and operators keep: an attribute may get another name, its key may not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import ImageSoftware
from ansible_collections.instinct.fleet.plugins.module_utils.engines.smoke_prompts import Reply
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    Generation,
    GenerationMember,
    Hold,
    OpenRollout,
)
from ansible_collections.instinct.fleet.plugins.modules import serving_generation
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.recipes import Advice
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.canary.verdict import (
    METRICS,
    Comparison,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.summary import (
    MeasurementFailure,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.status.fleet import DeploymentSummary
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.status.rows import StatusRow
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.actions import Action
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.reasons import Reason
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.servers import BackendServer
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.placement.ranks import Rank
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.canary_tolerances import (
    CanaryTolerances,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.judge import BatchVerdict

from tests.worlds.plan_world import deployment, plan, state

GENERATION = (
    "schema deployment generation made why image image_ref vllm model commit weights modes command env models listen "
    "endpoint stop_timeout members"
)
MEMBER = "name spec_hash port ports render_nodes share hosts headless limit"


@pytest.mark.parametrize(
    ("written", "keys"),
    [
        pytest.param(written, keys, id=keys[:30])
        for written, keys in (
            (Generation("llama", 1), GENERATION),
            (GenerationMember("llama-0", "abc", 8000), MEMBER),
            (Hold(1, "it is slower"), "generation why since failed together"),
            (OpenRollout(2, "it was upgraded"), "generation why since units baseline before together"),
            (ImageSoftware("0.20.2"), "vllm platform rocm pytorch python gfx"),
            (Reply("yes"), "text error"),
            (
                CanaryTolerances(10, 10, 3, 6, 2),
                "tolerance latency_tolerance runs max_runs accuracy_tolerance",
            ),
            (
                Comparison(METRICS[0], 1.0, 2.0, 1.0, 0.9, 1.1, "ok", 10.0),
                "old new change low high state tolerance metric",
            ),
            (
                Action("image", "vllm_image", "x", "", "y", "", ""),
                "kind role target before after reason source",
            ),
            (Reason("dtype", "auto", "", ""), "setting value reason source"),
            (Advice("a", "warn", "", "", "r"), "name say text source recipe"),
            (
                Rank(0, 0, ("n1",), "n1", 1, 2, 0, 1),
                "group node_rank hosts master master_port group_port number servers data_rank headless",
            ),
            (
                BackendServer("n1", "llama-0", "llama", "::1", 80, 4),
                "name host instance deployment address port limit models weight number coming target probe",
            ),
            (MeasurementFailure("n1", "llama-0", "no"), "host what message"),
            (
                BatchVerdict(False, False, "", ""),
                "stop back why told phases hold_why hosts turned resumable missed",
            ),
            (
                StatusRow("llama", "n1", "llama-0", "serving"),
                "deployment host instance state why next_step version generation age kv running waiting tokens "
                "restarts failures balancer rank backend well",
            ),
            (
                DeploymentSummary("llama", 1, 1, 1, 1, 0.0, 0, 0, None),
                "name total serving balanced inside tokens running waiting kv notes divided",
            ),
        )
    ],
)
def test_keys_stay(written: Any, keys: str) -> None:
    assert list(written.to_json()) == keys.split()


def test_the_values_are_those_of_the_keys() -> None:
    given = {
        "schema": 1,
        **{key: f"<{key}>" for key in GENERATION.split()[1:]},
        **{"generation": 3, "stop_timeout": 4, "endpoint": False},
        **{"weights": [["a", "b"]], "models": ["m"]},
        "members": [dict(zip(MEMBER.split(), ("x", "y", 1, [2], ["r"], 0.5, ["n1"], True, 7), strict=True))],
    }
    assert Generation.from_json(given).to_json() == given
    for kind, keys in ((Hold, "why since"), (OpenRollout, "why since")):
        held = {"generation": 2, **{key: f"<{key}>" for key in keys.split()}}
        if kind is OpenRollout:
            held |= {"units": [1], "baseline": {"a": 1}, "before": 1, "together": {"chat": 2}}
        else:
            held |= {"failed": [3], "together": ["chat"]}
        assert kind.from_json(held).to_json() == held


def test_the_store_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: Any) -> None:
    """state.json, N.json and summary.json, as the module writes them and earlier releases left them."""
    monkeypatch.setattr(paths, "STATE_DIR", str(tmp_path))
    planned = plan({"n1": state()}, [deployment()]).to_json()["hosts"]["n1"]
    given = copy.deepcopy({"record": planned["generations"], "instances": planned["instances"]})
    bindings = [{"deployment": "llama", "held": {"generation": 1, "why": "generation 2 is slower"}}]
    result, failed = run_module(serving_generation.main, {**given, "bindings": bindings})
    assert not failed, result
    (found,) = (tmp_path / "generations").iterdir()
    files = {file.name: json.loads(file.read_text(encoding="utf-8")) for file in found.iterdir()}
    assert sorted(files) == ["1.json", "state.json", "summary.json"]
    assert set(files["state.json"]) == {"schema", "held", "trial", "lifted", "ended"}
    assert set(files["state.json"]["held"]) == {"generation", "why", "since", "failed", "together"}
    assert set(files["1.json"]) == set(GENERATION.split())
    assert set(files["1.json"]["members"][0]) == {*MEMBER.split(), "server", "described"}
    assert set(files["summary.json"]) == {"schema", "kept"}
    assert set(files["summary.json"]["kept"][0]) == set(GENERATION.split())
