# SPDX-License-Identifier: Apache-2.0
"""What one start measured corrects the plan of every host that runs the same, and of no other."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan

from tests.worlds.plan_world import deployment, gpus, plan, state

AT = "2026-11-25T10:00:00Z"


def lines(gib: float, tokens: int, length: int = 8192) -> list[str]:
    return [
        "Model loading took 4.75 GiB memory and 3.0 seconds",
        f"Available KV cache memory: {gib} GiB",
        f"GPU KV cache size: {tokens:,} tokens",
        f"Maximum concurrency for {length:,} tokens per request: {tokens / length:.2f}x",
    ]


def first(found: FleetPlan, host: str) -> dict[str, Any]:
    instance: dict[str, Any] = found.to_json()["hosts"][host]["instances"][0]
    return instance


def key(**keys: Any) -> str:
    """Return the key under which a start of this deployment is recorded."""
    data = plan({"n1": state()}, [deployment(**keys)]).to_json()["hosts"]["n1"]
    return str(data["servers"][0]["memory"]["key"])


def started(start: Any, **changes: Any) -> dict[str, Any]:
    """A node with an instance of another deployment, whose start is recorded."""
    instance = {
        "name": "old-0", "deployment": "old", "state": "running", "spec_hash": "a", "artefact_hash": "a", "files": {},
        "exit_code": 0, "start": start,
    }  # fmt: skip
    return state(instances=[instance], **changes)


def record(at: str = AT, gib: float = 166.0, tokens: int = 2176000, **keys: Any) -> dict[str, Any]:
    return {"key": key(**keys), "container": "c", "at": at, "lines": lines(gib, tokens)}


def test_one_start_corrects_the_plan_of_all_hosts() -> None:
    found = plan({"n1": state(), "n2": started(record()), "n3": state()}, [deployment()])
    for host in ("n1", "n2", "n3"):
        fit = first(found, host)["fit"]
        assert fit["kv_cache_tokens"] == 2176000
        assert (fit["measured"]["host"], fit["measured"]["at"]) == ("n2", AT)
    text = " ".join(explain(found).split())
    assert "per GPU 4.8 GiB of weights and 166.0 GiB of KV cache: 2,176,000 tokens" in text
    assert f"measured on n2 at {AT}" in text
    assert "were predicted" not in text


def test_the_newest_start_counts() -> None:
    older = record(at="2026-11-24T10:00:00Z", gib=165.0, tokens=2162688)
    found = plan({"n1": started(record()), "n2": started(older)}, [deployment()])
    assert first(found, "n2")["fit"]["kv_cache_tokens"] == 2176000


@pytest.mark.parametrize(
    "keys",
    [
        {"engine_args": {"max_num_seqs": 64}},
        {"env": {"VLLM_LOGGING_LEVEL": "DEBUG"}},
        {"tensor_parallel_size": 2},
        {"objective": "latency"},
    ],
)
def test_another_engine_is_predicted(keys: dict[str, Any]) -> None:
    found = plan({"n1": started(record())}, [deployment(**keys)])
    fit = first(found, "n1")["fit"]
    assert fit["measured"] is None
    assert fit["predicted"]
    assert key(**keys) != key()


def test_another_gpu_is_predicted() -> None:
    found = plan({"n1": started(record(), gpus=gpus(device_id=0x75A3))}, [deployment()])
    assert first(found, "n1")["fit"]["measured"] is None


def test_another_length_uses_the_same_start() -> None:
    args = {"engine_args": {"max_model_len": 4096}}
    assert key(**args) == key()
    fit = first(plan({"n1": started(record())}, [deployment(**args)]), "n1")["fit"]
    assert (fit["max_model_len"], fit["measured"]["max_model_len"]) == (4096, 8192)
    assert fit["kv_cache_bytes"] == int(166.0 * (1 << 30))
    assert fit["kv_cache_tokens"] == pytest.approx(2176000, rel=0.001)


def test_it_changes_nothing_that_is_rendered_or_done() -> None:
    before = plan({"n1": started(None)}, [deployment()]).to_json()["hosts"]["n1"]
    after = plan({"n1": started(record())}, [deployment()]).to_json()["hosts"]["n1"]
    assert after["servers"] == before["servers"]
    assert after["actions"] == before["actions"]


def test_a_cache_outside_the_prediction_is_a_warning() -> None:
    found = plan({"n1": started(record(gib=120.0, tokens=1572864))}, [deployment()])
    (warning,) = (text for text in first(found, "n1")["warnings"] if "measured" in text)
    assert warning.startswith("the KV cache measured on n1 is 120.0 GiB per GPU; the prediction was 16")
    inside = plan({"n1": started(record())}, [deployment()])
    assert not any("measured" in text for text in first(inside, "n1")["warnings"])


@pytest.mark.parametrize(
    "start",
    [None, {}, {"key": ""}, [], "x", {"key": "another", "lines": lines(1, 1)}, {"lines": lines(1, 1)}],
)
def test_damaged_and_foreign_records_are_left_alone(start: Any) -> None:
    assert first(plan({"n1": started(start)}, [deployment()]), "n1")["fit"]["measured"] is None


def test_a_record_that_does_not_tell_the_size_is_left_alone() -> None:
    empty = {**record(), "lines": ["Model loading took 4.75 GiB memory and 3.0 seconds"]}
    assert first(plan({"n1": started(empty)}, [deployment()]), "n1")["fit"]["measured"] is None
