# SPDX-License-Identifier: Apache-2.0
"""Every call on a host has a time limit, so that a host that hangs stops itself only."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.call_limit import (
    DEFAULTS,
    CallTimeout,
    call_limit,
    time_limit,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.timed_action import TimedAction

from tests import ROOT
from tests.helpers.actions import action_files, action_of
from tests.helpers.playbooks import Playbooks
from tests.playbook_variables import load, tasks

# On the control node, or none at all.
ELSEWHERE = {
    f"instinct.fleet.{name}"
    for name in (
        "bench_plan",
        "fleet_plan", "fleet_status", "host_audit", "rollout_verdict", "canary_verdict", "balancer_verdict",
        "bench_report", "bench_compare", "bench_export", "bench_history", "accuracy_report", "burnin_report",
        "quantize_source", "bundle_content",
    )
} | {
    f"ansible.builtin.{name}"
    for name in ("add_host", "assert", "fail", "import_playbook", "import_role", "import_tasks", "include_role")
} | {"ansible.builtin.include_tasks", "ansible.builtin.set_fact"}  # fmt: skip
# Their action plugins set the limit, by the call's parameters.
BY_PARAMETERS = {
    f"instinct.fleet.{name}"
    for name in (
        "vllm_server", "vllm_image", "vllm_bench", "vllm_accuracy", "lm_eval", "hf_model", "gpu_burnin",
        "rocm_partition", "partition_boot", "model_quantize", "model_verify", "blob_swarm",
        "model_repository",
    )
} | {"ansible.builtin.reboot"}  # fmt: skip


def test_every_call_on_a_host_has_a_limit() -> None:
    unlimited, limited = [], 0
    for path in (*(ROOT / "playbooks").rglob("*.yml"), *(ROOT / "roles").glob("*/tasks/*.yml")):
        for task in tasks(load(path)):
            for module in (key for key in task if key.count(".") == 2):
                if module in ELSEWHERE | BY_PARAMETERS:
                    continue
                limited += 1
                if not task.get("timeout"):
                    unlimited.append((path.relative_to(ROOT).as_posix(), task["name"]))
    assert unlimited == []
    assert limited > 25


def test_those_limited_by_their_parameters_have_an_action_plugin_that_does_it() -> None:
    names = {name.rpartition(".")[2] for name in BY_PARAMETERS if name.startswith("instinct.")}
    assert names == {name for name in action_files() if issubclass(action_of(name), TimedAction)}


SERVERS = [{"ready_timeout": 100, "stop_timeout": 20}, {"ready_timeout": 700, "stop_timeout": 60}]


@pytest.mark.parametrize(
    ("module", "args", "seconds"),
    [
        ("vllm_server", {"servers": SERVERS}, 2 * 760 + 300),  # its own, and those of a call before it
        ("vllm_server", {"servers": [{"name": "a"}]}, 2 * 1920 + 300),
        ("vllm_server", {"servers": [], "remove": ["a"]}, 2 * 600 + 300),
        ("vllm_server", {"servers": [{"ready_timeout": "soon"}, "odd"]}, 2 * 1920 + 300),
        ("rocm_partition", {"timeout": 50, "servers": SERVERS}, 2 * 50 + 2 * 760 + 300),
        ("hf_model", {}, 86400 + 300),
        ("hf_model", {"timeout": "60"}, 60 + 300),
        ("vllm_image", {"timeout": 60}, 2 * 60 + 300),
        ("vllm_bench", {}, 7200 + 300),
        ("partition_boot", {}, 300),
    ],
)
def test_limits(module: str, args: dict[str, Any], seconds: int) -> None:
    assert call_limit(module, args) == seconds


def test_the_defaults_are_those_of_the_modules() -> None:
    for name, seconds in DEFAULTS.items():
        module = importlib.import_module(f"ansible_collections.instinct.fleet.plugins.modules.{name}")
        assert module.argument_spec()["timeout"]["default"] == seconds, name


@pytest.fixture
def no_timer() -> Iterator[None]:
    """Pause the timer of the tests' own time-out."""
    before = signal.setitimer(signal.ITIMER_REAL, 0)
    yield
    signal.setitimer(signal.ITIMER_REAL, *before)


def stubborn() -> None:
    """Go on for half a minute, whatever exception comes."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(Exception):
            time.sleep(30)


@pytest.mark.usefixtures("no_timer")
def test_a_body_that_goes_on_is_ended_even_where_exceptions_are_caught() -> None:
    began = time.monotonic()
    with pytest.raises(CallTimeout), time_limit(1):
        stubborn()
    assert time.monotonic() - began < 20


@pytest.mark.usefixtures("no_timer")
def test_a_body_in_time_leaves_no_timer() -> None:
    with time_limit(1):
        pass
    time.sleep(1.2)


def test_the_run_goes_on_without_the_host(tmp_path: Path, playbooks: Playbooks) -> None:
    """A real run: the module's interpreter never answers on one of two hosts."""
    hang = tmp_path / "hang"
    hang.write_text("#!/bin/sh\nexec sleep 120\n", encoding="utf-8")
    hang.chmod(0o755)
    hosts = {
        "n1": {"ansible_python_interpreter": sys.executable},
        "n2": {"ansible_python_interpreter": str(hang)},
    }
    inventory = {"all": {"hosts": hosts, "vars": {"ansible_connection": "local"}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    play = [
        {
            "hosts": "all",
            "gather_facts": False,
            "tasks": [
                {
                    "name": "Fetch weights",
                    "instinct.fleet.hf_model": {"timeout": 4 - 300, "docker_socket": "/nonesuch"},
                    "ignore_errors": True,
                },
            ],
        }
    ]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(play), encoding="utf-8")
    run = playbooks.run("-i", "hosts.yml", "play.yml", cwd=tmp_path)
    said = " ".join((run.stdout + run.stderr).split())
    assert "failed: [n1] (ignored): missing required arguments: repo" in said
    assert "failed: [n2] (ignored): hf_model did not end within 4 s: something on this host may hang" in said
