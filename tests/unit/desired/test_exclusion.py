# SPDX-License-Identifier: Apache-2.0
"""Which hosts are left out of a run, with which words, and that the others are planned as if these were unreachable."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    DEPLOY,
    RESTART,
    ROLLBACK,
    STOP,
    UPGRADE,
    OperationRequest,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.exclusion import (
    exclusion_reason,
)

from tests.worlds.generations_world import llama, planned, run
from tests.worlds.plan_world import deployment, fleet, gpus, state

ALL = (DEPLOY, UPGRADE, ROLLBACK, RESTART)
SILENT = {"installed": True, "available": False, "root_dir": None, "error": "GET /info: timed out"}
ABSENT = {"installed": False, "available": False, "root_dir": None, "error": None}
RED = {"id": "rhel", "version_id": "9", "pretty_name": "RHEL 9"}
BROKEN = {
    "deployment": "llama",
    "held": None,
    "trial": None,
    "kept": [],
    "broken": "/etc/…/2.json: ValueError",
}
RECORD = {"deployment": "old", "held": None, "trial": None, "kept": []}
BUSY = [{**gpu, "vram_used": 9 << 30} for gpu in gpus()]


FULL = [
    {"path": "/var/lib/docker", "free_bytes": 1, "total_bytes": 9, "device": 1},
    {"path": "/var/lib/instinct-fleet/hf", "free_bytes": 1, "total_bytes": 9, "device": 2},
]


def unread(part: str) -> dict[str, Any]:
    return {"problems": [{"what": part, "error": "OSError: Input/output error"}]}


@pytest.mark.parametrize(
    ("changes", "variables", "operations", "said"),
    [
        ({}, {}, (), ""),
        (unread("instances"), {}, (*ALL, STOP), "cannot read its instances (OSError: Input/output error). See"),
        (unread("gpus"), {}, ALL, "cannot read its GPUs (OSError"),
        (unread("generations"), {}, ALL, "cannot read its records of generations"),
        (unread("/sys/class/drm/renderD128/device/current_link_speed"), {}, (), ""),
        (unread("container of llama-0"), {}, (), ""),
        ({"docker": SILENT}, {}, (*ALL, STOP), "its Docker engine does not answer (GET /info: timed out). Start it"),
        ({"docker": SILENT}, {"vllm_deployments": []}, (), ""),
        ({**unread("generations"), "euid": 1000}, {}, (), ""),
        ({"docker": ABSENT}, {}, (), ""),
        ({"docker": ABSENT, "os": RED}, {}, (*ALL, STOP), "has no Docker engine, and the toolkit cannot install one"),
        ({"generations": [BROKEN]}, {}, ALL, "its record of llama's generations cannot be read (/etc/…/2.json: Val"),
        ({"gpus": []}, {}, ALL, "the amdgpu driver shows no GPU. Check dmesg"),
        ({"gpus": [], "driver": {"loaded": False}}, {}, ALL, "amdgpu is not loaded. Check dmesg"),
        ({"gpus": []}, {"vllm_deployments": []}, (), ""),
        ({"gpus": []}, {"vllm_deployments": [], "gpu_partition_compute": "SPX"}, ALL, "the amdgpu driver shows"),
        ({"partition_change": "set"}, {}, ALL, "interrupted (step set). Set gpu_partition_compute to the mode"),
        ({"partition_change": "set"}, {"gpu_partition_compute": "SPX"}, ALL[1:], "n1,load_balancer finishes it"),
        ({"partition_change": "unknown"}, {"gpu_partition_compute": "SPX"}, ALL, "partition.json is the journal of an"),
        ({"gpus": BUSY}, {}, ALL, "VRAM in use that no process holds"),
        ({"gpus": BUSY}, {"gpu_clean": True}, (), ""),
    ],
)  # fmt: skip
def test_who_is_left_out(
    changes: dict[str, Any], variables: dict[str, Any], operations: tuple[str, ...], said: str
) -> None:
    wanted = {"vllm_deployments": [deployment()], **variables}
    (host,) = fleet({"n1": state(**changes)}, wanted.pop("vllm_deployments"), **wanted).hosts
    for operation in (*ALL, STOP):
        reason = exclusion_reason(host, operation)
        assert bool(reason) == (operation in operations), operation
        assert not reason or said in reason
        assert "\n" not in reason


SICK: dict[str, dict[str, Any]] = {
    "not a state": {"os": "x"},
    "Docker hangs": {"docker": SILENT},
    "no GPU": {"gpus": []},
    "7 of 8 GPUs": {"gpus": gpus(count=7)},
    "a damaged record": {"generations": [BROKEN]},
    "a record that is no record": {"generations": [{**RECORD, "kept": [{"schema": 1}]}]},
    "an interrupted partition change": {"partition_change": "set"},
    "an unread part": unread("models"),
    "a quarantine": {"gpus": BUSY},
    "a full disk": {"disk": FULL, "images": [], "models": []},
}
THREE = ("n1", "n2", "n3")
OPERATIONS = {
    "deploy": OperationRequest(),
    "upgrade": OperationRequest(UPGRADE),
    "rollback": OperationRequest(ROLLBACK, frozenset(["llama"]), 1),
    "restart": OperationRequest(RESTART),
}
# These concern only runs that bring something or lay instances out.
HARMLESS = {("7 of 8 GPUs", "restart"), ("a full disk", "restart")}


def eight(seqs: int = 0) -> list[dict[str, Any]]:
    more = {"engine_args": {"max_num_seqs": seqs}} if seqs else {}
    return [deployment(instances_per_host=8, **more)]


@pytest.fixture(scope="module")
def served() -> dict[str, Any]:
    """Three hosts that ran generation 1 of an engine on each GPU, and run 2."""
    return run(run({name: state(hostname=name) for name in THREE}, eight()), eight(16))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("sick", SICK)
def test_the_others_are_planned_as_if_it_were_unreachable(
    served: dict[str, Any], sick: str, operation: str
) -> None:
    wanted = eight(32 if operation == "upgrade" else 16)
    states = copy.deepcopy(served)
    states["n3"].update(copy.deepcopy(SICK[sick]))
    if operation == "deploy":  # something to do on the others
        for name in THREE[:2]:
            states[name]["instances"][0]["state"] = "exited"
    found = planned(states, wanted, OPERATIONS[operation]).to_json()
    if (sick, operation) in HARMLESS:
        assert found["excluded"] == {}
        return
    without = planned({**states, "n3": None}, wanted, OPERATIONS[operation]).to_json()
    assert list(found["excluded"]) == ["n3"]
    assert found["excluded"]["n3"].endswith(".")
    assert (found["unreachable"], without["unreachable"]) == ({}, {"n3": "it could not be reached"})
    assert found["hosts"]["n1"]["actions"] or operation == "restart"  # which changes nothing of a plan
    for part in ("hosts", "generations", "balancers", "warnings"):
        assert found[part] == without[part], part


def test_a_refusal_names_the_hosts_that_were_left_out(served: dict[str, Any]) -> None:
    states = {name: {**found, "docker": SILENT} for name, found in served.items()}
    states["n1"] = state(hostname="n1")
    with pytest.raises(FleetError) as caught:
        planned(states, [], OperationRequest(ROLLBACK, frozenset(["llama"])))
    assert [problem.text() for problem in caught.value.problems][-1].startswith(
        "hosts n2, n3: is left out: its Docker engine does not answer"
    )


def test_an_engine_over_hosts_keeps_serving_where_one_of_them_is_sick() -> None:
    """A rollback of its deployment goes on with the groups that are whole."""
    own = {f"n{number}": {"instinct_address": f"192.0.2.{number}"} for number in range(1, 5)}
    four = {name: state(hostname=name) for name in own}
    span = [deployment(nodes=2, tensor_parallel_size=8, pipeline_parallel_size=2)]
    more = [{**span[0], "engine_args": {"max_num_seqs": 16}}]
    states = run(run(four, span, own=own), more, own=own)
    states["n4"]["docker"] = SILENT
    found = planned(states, more, OPERATIONS["rollback"], own=own).to_json()
    assert list(found["excluded"]) == ["n4"]
    assert [bool(found["hosts"][name]["servers"]) for name in THREE] == [True, True, False]
    assert "this run does not include n4; it is left as it is" in " ".join(found["hosts"]["n3"]["warnings"])


def test_instances_are_stopped_where_gpus_and_records_are_gone(served: dict[str, Any]) -> None:
    states = copy.deepcopy(served)
    states["n3"].update(gpus=[], partition_change="set", generations=[BROKEN])
    assert planned(states, eight(16), OperationRequest(STOP)).excluded == ()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_host_is_left(served: dict[str, Any], operation: str) -> None:
    """Then each of them fails with its own reason."""
    states = {name: {**found, "docker": SILENT} for name, found in served.items()}
    plan = planned(states, eight(16), OPERATIONS[operation])
    assert (plan.hosts, [name for name, _unused in plan.excluded]) == ((), list(THREE))


def test_what_every_host_declares_is_an_error_of_the_inventory() -> None:
    wanted = [deployment(tensor_parallel_size=16)]
    with pytest.raises(FleetError):
        planned({"n1": state(), "n2": state()}, wanted)
    assert [item.name for item in fleet({"n1": state()}, llama()).hosts] == ["n1"]
