# SPDX-License-Identifier: Apache-2.0
"""From hostvars to summary.json: its shape, its failures, and what it must not hold."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.benchmarks.bench_metrics import METRICS
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import MASK, Redactor
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.node_facts import host_facts
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.rows import iso
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.summary import collect
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.redact import (
    redact_argv,
    redact_command,
    redact_data,
)

from tests import ROOT
from tests.worlds.bench_samples import (
    GPU_MODELS,
    entry,
    large_fleet,
    mixed_fleet,
    node_state,
    small_fleet,
    suite_fleet,
    summary_of,
    variables,
)

MISSING = "not measured: the host failed earlier in this run; its error is in the play's output"


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads((ROOT / "catalog/schemas/summary.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(
    "fleet",
    [small_fleet(), small_fleet(True), mixed_fleet(), large_fleet(4, 8), suite_fleet(), {"n1": {}}],
    ids=["small", "failures", "mixed", "large", "suite", "nothing"],
)
def test_summary_has_the_shape_of_its_schema(fleet: dict[str, Any], validator: Any) -> None:
    summary = json.loads(json.dumps(summary_of(fleet), allow_nan=False))
    assert [error.message for error in validator.iter_errors(summary)] == []


def test_results_of_several_batches_count_once() -> None:
    """The registered variable has those of the last batch, which are in the list of all batches too."""
    last = {"benchmarks": [entry("n1", "llama-1", 7)]}
    failed = {"failed": True, "msg": "no image", "item": "serve"}
    own = {
        "__benchmark_serve": last,
        "_benchmark_batches": {"results": [{"benchmarks": [entry("n1", "llama-0", 7)]}, failed, last]},
    }
    found = collect(["n1"], {"n1": own}, Redactor())
    assert [row["instance"] for row in found.rows] == ["llama-0-7", "llama-1-7"]
    assert [(item.what, item.message) for item in found.failures] == [("serve benchmark", "no image")]


def test_schema_names_every_metric(validator: Any) -> None:
    row = validator.schema["$defs"]["benchmark"]
    assert set(METRICS) <= set(row["required"]) == set(row["properties"])
    summary = summary_of(small_fleet())
    del summary["benchmarks"][0]["failed"]
    assert any("'failed' is a required property" in error.message for error in validator.iter_errors(summary))


def test_summary_of_two_nodes() -> None:
    summary = summary_of(small_fleet())
    assert (
        [row["host"] for row in summary["benchmarks"]] == ["mi300x-01", "mi300x-02"] == list(summary["hosts"])
    )
    assert summary["failures"] == []
    assert summary["started"] == "2026-01-31T10:15:02Z"
    row = summary["benchmarks"][0]
    assert row["completed"] == 640
    assert row["failed"] == 0
    assert row["serve_command"].startswith("vllm serve meta-llama/")
    assert row["other"]["backend"] == "openai"
    host = summary["hosts"]["mi300x-01"]
    assert (host["compute_partition"], host["memory_partition"], host["gpus"][0]["model"]) == (
        "SPX",
        "NPS1",
        "MI300X",
    )
    assert summary["deployments"]["llama"]["reasons"][0]["setting"] == "--max-num-batched-tokens"


def test_a_node_is_described_as_it_was_measured_not_as_it_was_planned_for() -> None:
    own = variables("n1", [entry("n1")], node_state("n1", numa_balancing={"runtime": 1}))
    assert summary_of({"n1": own})["hosts"]["n1"]["numa_balancing"] == 1
    own["__benchmark_state"] = {"node_state": node_state("n1")}
    assert summary_of({"n1": own})["hosts"]["n1"]["numa_balancing"] == 0


def test_hosts_and_instances_are_in_natural_order() -> None:
    fleet = {host: variables(host, [entry(host, index=i) for i in (10, 9)]) for host in ("n10", "n9")}
    rows = summary_of(fleet)["benchmarks"]
    assert [(row["host"], row["instance"]) for row in rows] == [
        ("n9", "llama-9"), ("n9", "llama-10"), ("n10", "llama-9"), ("n10", "llama-10"),
    ]  # fmt: skip


def one(change: dict[str, Any]) -> dict[str, Any]:
    return variables("n1", [entry("n1", **change)])


@pytest.mark.parametrize(
    ("own", "what", "message"),
    [
        ({}, "benchmark", MISSING),
        ({"node_state_result": {"unreachable": True, "msg": "timed out"}}, "connection", "timed out"),
        ({"node_state_result": {"unreachable": True}}, "connection", "unreachable"),
        (
            {
                "node_state_result": {"node_state": {}},
                "__benchmark_state": {"unreachable": True, "msg": "gone"},
            },
            "connection",
            "gone",
        ),
        ({"node_state_result": {"failed": True, "msg": "no python"}}, "observation", "no python"),
        ({"__benchmark_serve": {"unreachable": True, "msg": "reset"}}, "connection", "reset"),
        ({"__benchmark_serve": {"failed": True, "msg": "no image"}}, "serve benchmark", "no image"),
        ({"__benchmark_offline": {"failed": True, "msg": "oom"}}, "benchmark", "oom"),
        ({"__benchmark_serve": {"skipped": True}}, "benchmark", MISSING),
        (one({"result": None}), "serve benchmark of llama-0", "the benchmark wrote no result"),
        (one({"result": None, "error": "died"}), "serve benchmark of llama-0", "died"),
        (one({"result": {"a": 1}, "error": "died"}), "serve benchmark of llama-0", "died"),
        (one({"result": None, "failed": True, "msg": "died"}), "serve benchmark of llama-0", "died"),
        (one({"kind": "sweep"}), "sweep benchmark of llama-0", "unknown kind of benchmark 'sweep'"),
        (one({"result": {"a": 1}}), "serve benchmark of llama-0", "not a result of vllm bench serve"),
        (variables("n1", ["text"]), "benchmark", "vllm_bench returned str"),  # type: ignore[list-item]
        (
            one({"result": {"completed": 9, "num_prompts": 10}}),
            "serve benchmark of llama-0",
            "1 of 10 requests failed",
        ),
        (
            one({"result": {"completed": 9, "failed": 2}}),
            "serve benchmark of llama-0",
            "2 of 11 requests failed",
        ),
        (
            one({"result": {"completed": 0, "failed": 2}}),
            "serve benchmark of llama-0",
            "no request completed",
        ),
    ],
)
def test_failures_are_never_silent(own: dict[str, Any], what: str, message: str) -> None:
    failures = summary_of({"n1": own})["failures"]
    assert [(item["host"], item["what"]) for item in failures] == [("n1", what)]
    assert message in failures[0]["message"]


def test_a_failed_task_keeps_the_instances_that_were_measured() -> None:
    own = variables("n1", [entry("n1"), entry("n1", index=1, result=None, error="died")])
    own["__benchmark_serve"] |= {"failed": True, "msg": "1 of 2 failed"}
    summary = summary_of({"n1": own})
    assert [row["instance"] for row in summary["benchmarks"]] == ["llama-0"]
    assert [item["message"] for item in summary["failures"]] == ["died"]


def test_a_partial_result_is_kept_with_the_reason_that_the_module_found() -> None:
    own = one({"result": {"completed": 9, "failed": 1, "num_prompts": 10}, "error": "1 of 10: engine died"})
    own["__benchmark_serve"] |= {"failed": True, "msg": "1 of 1 serve benchmarks failed"}
    summary = summary_of({"n1": own})
    assert [row["completed"] for row in summary["benchmarks"]] == [9]
    assert [item["message"] for item in summary["failures"]] == ["1 of 10: engine died"]


def test_a_host_without_instances_is_no_failure() -> None:
    summary = summary_of({"n1": variables("n1", [])})
    assert summary["failures"] == summary["benchmarks"] == []
    assert list(summary["hosts"]) == ["n1"]


def test_results_of_several_tasks_and_a_plain_list() -> None:
    fleet = mixed_fleet()
    fleet["n1"]["benchmark_results"] = [entry("n1", "extra", 7)]
    rows = [row for row in summary_of(fleet)["benchmarks"] if row["host"] == "n1"]
    assert [(row["instance"], row["kind"]) for row in rows] == [
        ("extra-7", "serve"), ("llama-0", "latency"), ("llama-0", "serve"), ("llama-0", "throughput"),
        ("qwen-1", "serve"), ("qwen-2", "serve"),
    ]  # fmt: skip


def test_input_is_left_alone() -> None:
    fleet = small_fleet(True)
    before = copy.deepcopy(fleet)
    summary_of(fleet)
    assert fleet == before


def test_secrets_are_masked_by_name_by_value_and_by_look() -> None:
    known, named, looks = "s3cret-registry-pw", "value-of-a-key", "hf_" + "a1B2" * 6
    bad = entry(
        "n1", command=f"vllm bench serve --header Authorization='Bearer {named}' --api-key {named} --seed 0"
    )
    bad["instance_plan"]["argv"] += ["--api-key", named, "second-key-x", "--port", "8000"]
    bad["instance_plan"]["env"] |= {"VLLM_API_KEY": named, "TOKENIZERS_PARALLELISM": "false"}
    bad["instance_plan"]["reasons"].append(
        {"setting": "--api-key", "value": named, "reason": "", "source": ""}
    )
    bad["runs"][0]["result"]["label"] = known
    bad["runs"][0]["result"]["errors"] = [f"401 for {looks}"]
    broken = entry("n1", index=1, result=None, error=f"pull with {known} failed")
    measured = collect(["n1"], {"n1": variables("n1", [bad, broken])}, Redactor([known]), GPU_MODELS)
    text = json.dumps(
        [
            measured.rows,
            [run.raw for run in measured.runs],
            [str(f) for f in measured.failures],
            measured.deployments,
        ]
    )
    for secret in (known, named, looks, "second-key-x"):
        assert secret not in text
    row = measured.rows[0]
    assert row["env"] == {**bad["instance_plan"]["env"], "VLLM_API_KEY": MASK}
    assert "--max-num-batched-tokens 131072" in row["serve_command"]
    assert row["serve_command"].endswith("--port 8000")


@pytest.mark.parametrize(
    ("argv", "masked"),
    [
        (["a", "--api-key", "k1", "k2", "--x", "1"], ["a", "--api-key", MASK, MASK, "--x", "1"]),
        (["--api-key=k", "left"], [f"--api-key={MASK}", "left"]),
        (["--max-num-batched-tokens", "5"], ["--max-num-batched-tokens", "5"]),
        (["--tokenizer", "t", "--port", 8000], ["--tokenizer", "t", "--port", "8000"]),
        (["--ssl-key-file", "/k.pem"], ["--ssl-key-file", "/k.pem"]),
        (["--redis-pass", "p"], ["--redis-pass", MASK]),
    ],
)
def test_mask_argv(argv: list[object], masked: list[str]) -> None:
    assert redact_argv(argv) == masked


@pytest.mark.parametrize(
    ("command", "masked"),
    [
        (None, None),
        ("", None),
        ([], None),
        (["vllm", "a b"], "vllm 'a b'"),
        ("vllm --o '{\"a\": 1}'", "vllm --o '{\"a\": 1}'"),
        ("vllm --api-key abc", f"vllm --api-key '{MASK}'"),
        ("it's not a shell line", "it's not a shell line"),
    ],
)
def test_mask_command(command: object, masked: str | None) -> None:
    assert redact_command(command) == masked


def test_mask_data_reaches_into_a_plan() -> None:
    plan = {
        "hosts": {
            "n1": {
                "instances": [{"argv": ["vllm", "--api-key", "k"], "env": {"MY_TOKEN": "t", "A": "1"}}],
                "servers": [{"files": {"env": {"text": "MY_TOKEN='t'\nA='1'", "mode": "0600"}}}],
            }
        }
    }
    host = redact_data(plan)["hosts"]["n1"]
    assert host["instances"] == [{"argv": ["vllm", "--api-key", MASK], "env": {"MY_TOKEN": MASK, "A": "1"}}]
    assert host["servers"][0]["files"]["env"] == {"text": f"MY_TOKEN={MASK}\nA='1'", "mode": "0600"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-01-31T10:15:02Z", "2026-01-31T10:15:02Z"),
        ("2026-01-31T11:15:02.7+01:00", "2026-01-31T10:15:02Z"),
        ("2026-01-31T10:15:02", "2026-01-31T10:15:02Z"),
        (1769854502, "2026-01-31T10:15:02Z"),
        (1769854502.9, "2026-01-31T10:15:02Z"),
        ("yesterday", None),
        (None, None),
        (1e20, None),
    ],
)
def test_iso(value: object, expected: str | None) -> None:
    assert iso(value) == expected


def test_host_facts_keep_unknown_as_null() -> None:
    facts = host_facts({"hostname": "n1", "gpus": []}, {})
    assert facts.pop("gpus") == []
    assert set(facts.values()) == {None}


def test_host_facts_of_mixed_partitions() -> None:
    state = node_state("n1", 2)
    state["gpus"][1] |= {"compute_partition": "CPX", "partitions": [{}] * 8, "device_id": 1}
    facts = host_facts(state, GPU_MODELS)
    assert facts["compute_partition"] == "CPX, SPX"
    assert [(gpu["model"], gpu["pci_id"], gpu["partitions"]) for gpu in facts["gpus"]] == [
        ("MI300X", "1002:74a1", 1),
        (None, "1002:0001", 8),
    ]
    assert facts["numa_balancing"] == 0
