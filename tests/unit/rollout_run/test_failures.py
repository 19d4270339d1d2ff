# SPDX-License-Identifier: Apache-2.0
"""Every way in which a batch fails: whether that is a verdict on the release, what is held, and the exit code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.engines.failure_signatures import SIGNATURES
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.infrastructure import CLASSES, STEP
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.steps import FORWARD
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.failures import failure_of
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.judge import judge_batch
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.text import (
    summarize_rollout,
)

from tests import ROOT
from tests.unit.rollout_run.test_text import batch


@dataclass(frozen=True)
class Case:
    """A failed step: its phase, its module, and the module's result. held: it is a verdict on the release.

    asked: the new instance as instance_status finds it afterwards.
    """

    phase: str
    module: str
    result: Any
    held: bool = False
    classes: tuple[str, ...] = (STEP,)
    asked: tuple[dict[str, Any], ...] = ()


def servers(*kinds: str) -> dict[str, Any]:
    return {"servers": [{"name": f"llama-{number}", "class": kind} for number, kind in enumerate(kinds)]}


def loop(**result: Any) -> dict[str, Any]:
    return {"msg": "One or more items failed", "results": [{"msg": "fine"}, {"failed": True, **result}]}


WELL = {"name": "llama-0", "status": "running", "endpoint": {"port": 8000}, "health": 200}
LATE = {"class": "not_in_service", "msg": "Not in service after 300 s: llama/n1.llama-0:8000 (L4CON)."}
TIMED_OUT = {"failed": True, "msg": "Timed out after 120 second(s).", "timedout": {"period": 120}}
CRASHED = {"msg": "MODULE FAILURE: No start of json char found", "module_stderr": "Traceback"}
WATCHED = {"msg": "llama-0 does not run any more", **servers("ended")}

LB, SERVER, CANARY, WATCH = "balancer_verdict", "vllm_server", "canary_verdict", "vllm_watch"
CASES = {
    # Load balancers: they say nothing about a release, unless its new instance does not answer by itself.
    "no load balancer answers the drain": Case("drain", LB, {"class": "balancer"}, classes=("balancer",)),
    "another run holds the load balancer": Case("drain", LB, {"class": "other_run"}, classes=("other_run",)),
    "a load balancer refuses the drain": Case("drain", LB, {"msg": "fewer than rollout_min_available"}),
    "a drain takes too long": Case("drain", "balancer_server", TIMED_OUT),
    "the new instance is not taken, and is well": Case(
        "undrain", LB, LATE, classes=("not_in_service",), asked=(WELL,)
    ),
    "the reference is not taken": Case("undrain", LB, LATE, classes=("not_in_service",), asked=(WELL,)),
    "the new instance is not taken, and nobody can ask it": Case(
        "undrain", LB, LATE, classes=("not_in_service",)
    ),
    "a rank without a port is well": Case(
        "undrain", LB, LATE, classes=("not_in_service",), asked=({**WELL, "endpoint": None, "health": None},)
    ),
    "the new instance is not taken, and does not answer": Case(
        "undrain", LB, LATE, True, ("unhealthy",), ({**WELL, "health": 0},)
    ),
    "the new instance is not taken, and has ended": Case(
        "undrain", LB, LATE, True, ("unhealthy",), ({**WELL, "status": "exited", "health": None},)
    ),
    "its engine is dead": Case("undrain", LB, LATE, True, ("unhealthy",), ({**WELL, "health": 503},)),
    "it left the load balancer during the watch, and is well": Case(
        "confirm", LB, LATE, classes=("not_in_service",), asked=(WELL,)
    ),
    "it left the load balancer during the watch": Case(
        "confirm", LB, LATE, True, ("unhealthy",), ({**WELL, "health": 0},)
    ),
    # The start.
    "it does not fit": Case("serve", SERVER, servers("out_of_memory"), True, ("out_of_memory",)),
    "one of two is bad": Case("serve", SERVER, servers("docker", "unknown_flag"), True, ("docker", "unknown_flag")),
    "it starts too slowly": Case("serve", SERVER, servers("not_ready"), True, ("not_ready",)),
    "it waits for GPU memory": Case("serve", SERVER, servers("waiting"), classes=("waiting",)),
    "another process has its GPU": Case("start", SERVER, servers("gpu_not_clean"), classes=("gpu_not_clean",)),
    "a full disk": Case("serve", SERVER, servers("files", "disk_full"), classes=("files", "disk_full")),
    "its port is taken": Case("serve", SERVER, servers("port_in_use"), classes=("port_in_use",)),
    "its image has vanished": Case("serve", SERVER, servers("image_missing"), classes=("image_missing",)),
    "the old one cannot be stopped": Case("serve", SERVER, servers("cannot_stop"), classes=("cannot_stop",)),
    "another rank was lost": Case("serve", SERVER, servers("peer_lost"), classes=("peer_lost",)),
    "Docker does not answer": Case("serve", SERVER, {"msg": "no socket", "class": "docker"}, classes=("docker",)),
    "nothing began": Case("serve", SERVER, {"msg": "cannot be written. Nothing was stopped."}, classes=("docker",)),
    "what is to be removed stays": Case("serve", SERVER, {"servers": [{"state": "ready"}]}, classes=("docker",)),
    "the container is refused": Case(
        "serve", SERVER, servers("container_refused"), True, ("container_refused",)
    ),
    # The canary.
    "it is slower": Case("judge", CANARY, {"msg": "31 % less", "verdict": "slower"}, True, ("slower",)),
    "its smoke check fails": Case("judge", CANARY, {"msg": "no answer", "verdict": "broken"}, True, ("broken",)),
    "it answers garbage": Case("judge", CANARY, {"msg": "!!!", "verdict": "garbage"}, True, ("garbage",)),
    "nothing is found out": Case("judge", CANARY, {"class": "infrastructure"}, classes=("infrastructure",)),
    "the report cannot be written": Case("judge", CANARY, {"msg": "results/: No space left on device"}),
    "the old one's figures cannot be kept": Case("measure", "ansible.builtin.set_fact", {"msg": "no such variable"}),
    # The watch.
    "it ends": Case("watch", WATCH, WATCHED, True, ("ended",)),
    "its GPU faults": Case("watch", WATCH, servers("gpu_fault"), True, ("gpu_fault",)),
    "somebody removes it": Case("watch", WATCH, servers("removed"), classes=("removed",)),
    "Docker ends": Case("watch", WATCH, {"class": "docker"}, classes=("docker",)),
    "the watch takes too long": Case("watch", WATCH, TIMED_OUT, classes=("docker",)),
    # Records, caches, and what may fail anywhere.
    "a record cannot be written": Case(
        "record_baseline", "serving_generation", {"msg": "No space left"}, classes=("record",)
    ),
    "a verdict cannot be recorded": Case(
        "record_verdict", "serving_generation", {"msg": "No space left"}, classes=("record",)
    ),
    "caches cannot be kept": Case("keep_caches", "instance_cache", {"msg": "No space left"}),
    "a module crashes": Case("drain", "balancer_server", CRASHED),
    "a module's item crashes": Case("undrain", "balancer_server", loop(**CRASHED)),
    "become fails": Case("serve", SERVER, {"msg": "Missing sudo password"}, classes=("docker",)),
    "a template of ours fails": Case("undrain", "ansible.builtin.include_role", "'dict object' has no attribute"),
    "a class that nobody knows": Case("undrain", LB, {"class": "odd", "msg": "odd"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_failure_is(name: str) -> None:
    case = CASES[name]
    module = case.module if "." in case.module else f"instinct.fleet.{case.module}"
    found = failure_of(module, case.result, case.asked)
    assert (found.classes, found.release) == (case.classes, case.held)
    batches = [batch(1, [["n1/llama-0"]])]
    verdict = judge_batch(batches[0], {"n1": found}, [])
    assert verdict.stop  # rollout_verdict fails in the end, so the exit code is 2
    assert (verdict.turned, verdict.resumable) == (case.held, not case.held)
    assert ("hold" in verdict.phases, "confirm_hold" in verdict.phases) == (case.held, case.held)
    text = summarize_rollout("upgrade", batches, 1, verdict.to_json(), {})
    assert ("llama is held. It ends when" in text) == case.held
    assert ("so llama is not held" in text) != case.held


def test_every_phase_of_a_batch_has_a_failure() -> None:
    """Only a restart has the phase stop."""
    assert {case.phase for case in CASES.values()} == {*FORWARD} - {"stop"}


@pytest.mark.parametrize("failures", [{}, {"n1": "collective_failed"}])
def test_a_lost_connection_is_no_verdict(failures: dict[str, str]) -> None:
    """Neither on the host itself, nor on one whose engine needs it."""
    found = {host: failure_of("vllm_server", servers(kind)) for host, kind in failures.items()}
    verdict = judge_batch(batch(2, [["n1/llama-0", "n2/llama-0"]]), found, ["n2"])
    assert (verdict.stop, verdict.turned) == (True, False)
    assert "n2 can no longer be reached" in verdict.why


OWN = {
    "not_ready", "no_tokens", "request_refused", "api_key", "died_at_first_request", "unknown", "python_exception",
    "mount_missing", "command_missing", "ulimits", "container_refused", "ray_failed", "hung",
}  # fmt: skip
"""Kinds that a release has caused by itself, besides those of signatures."""


def test_every_kind_of_failure_was_decided_about() -> None:
    """A new kind is of the infrastructure (CLASSES), or of the release (OWN, or a signature of vLLM's log)."""
    folders = ("module_utils/serving", "module_utils/programs/supervisor")
    sources = {
        path.name: path.read_text(encoding="utf-8")
        for folder in folders
        for path in (ROOT / "plugins" / folder).glob("*.py")
    }
    pattern = r'(?:Diagnosis|ServerFailed)\(\s*"(\w+)"'
    found = {kind for text in sources.values() for kind in re.findall(pattern, text)}
    refused = set(re.findall(r'"([a-z]+_?[a-z]+)",', sources["start_errors.py"])) - {"rlimit"}
    assert refused >= {"image_missing", "mount_missing", "container_refused"}
    found |= refused
    named = {item.kind for item in SIGNATURES}
    assert len(found) > 10
    assert found - CLASSES - OWN - named == set()
    assert OWN.isdisjoint(CLASSES)
    # What a signature finds that is no fault of the release, such as a full disk, is nevertheless not held against it.
    assert named & CLASSES == {"port_in_use", "disk_full"}
