# SPDX-License-Identifier: Apache-2.0
"""The simulator runs the plays that the playbooks run, in their order, and knows every action that a step can name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.common.generations import (
    BENCHMARK,
    DEPLOY,
    RESTART,
    ROLLBACK,
    STOP,
    UPGRADE,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.rollout import steps
from ansible_collections.instinct.fleet.plugins.plugin_utils.simulation.before import first_model, templates
from ansible_collections.instinct.fleet.plugins.plugin_utils.simulation.calls import (
    CALLS,
    SimulatedRun,
    UnknownStep,
    perform,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.simulation.model import FORMER, PRESENT
from ansible_collections.instinct.fleet.plugins.plugin_utils.simulation.plays import (
    DEFAULT_PARTITION_SERIAL,
    PARTITION,
    PLAYS,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.simulation.simulate import simulate

from tests import ROOT
from tests.unit.simulation.test_named_edits import deployed, llama

PLAYBOOKS = ROOT / "playbooks"
# What a play is to the simulator, by the group of its hosts. Plans, leases, reports and hosts that were left out change
# nothing that clients see; what fetches comes before all else.
GROUPS = {
    "todo_host_prep": "fetch", "fleet_builds": "fetch", "todo_distribution": "fetch", "todo_vllm_image": "fetch",
    "todo_hf_model": "fetch", "todo_instance_key": "key", "todo_gpu_partition": "partition",
}  # fmt: skip
NOTHING = {"plan_hosts", "fleet_excluded", "fleet_held", "todo_lease", "all"}


def plays(path: str, phase: str = "", operation: str = "") -> Iterator[tuple[dict[str, Any], str, str]]:
    """The plays of a playbook and of those that it imports, with the phase of load balancers and the operation."""
    for play in yaml.safe_load((PLAYBOOKS / path).read_text(encoding="utf-8")):
        given = play.get("vars") or {}
        then = given.get("fleet_operation", operation) if isinstance(given, dict) else operation
        imported = play.get("ansible.builtin.import_playbook")
        if imported is None:
            yield play, phase, then
        elif not (play.get("when") == "fleet_operation == 'upgrade'" and operation not in ("", "upgrade")):
            place = (PLAYBOOKS / path).parent / imported
            yield from plays(
                str(place.resolve().relative_to(PLAYBOOKS)), given.get("balance_phase", phase), then
            )


def simulated(path: str) -> list[str]:
    """What the simulator calls the plays of a playbook."""
    found: list[str] = []
    for play, phase, _unused in plays(path, operation=path.removesuffix(".yml")):
        hosts, name = str(play["hosts"]), str(play["name"])
        groups = re.findall(r"groups\.(\w+)", hosts)
        group = groups[0] if groups else "plan_hosts"
        if name.startswith(("Verify the models", "Record the generations")) or (
            group == "todo_instance_key" and phase == "after"
        ):
            kind = ""  # nothing that serves changes by it
        elif group in GROUPS and not (group == "todo_gpu_partition" and "assert" in str(play.get("tasks"))):
            kind = GROUPS[group]
        elif group == "todo_former_balancer":
            kind = f"former_{phase}"
        elif group == "todo_load_balancer":
            kind = f"balancers_{phase}" if phase else "return_left"
        elif group == "todo_vllm_serve":
            kind = "resume" if "resume" in str(play) else "serve"
        elif group == "todo_rollout":
            kind = {"Stop": "stop", "Measure, a few instances at a time": "measure"}.get(name, "rollout")
        elif group == "todo_benchmark":
            kind = "measure_new" if "new" in name else ""
        else:
            assert group in NOTHING or group == "todo_gpu_partition", (path, name, hosts)
            kind = ""
        if kind and found[-1:] != [kind]:
            found.append(kind)
    return found


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("deploy.yml", DEPLOY), ("upgrade.yml", UPGRADE), ("rollback.yml", ROLLBACK), ("restart.yml", RESTART),
        ("stop.yml", STOP), ("forget.yml", STOP), ("benchmark.yml", BENCHMARK), ("partition.yml", PARTITION),
    ],
)  # fmt: skip
def test_plays_are_those_of_the_playbook(path: str, operation: str) -> None:
    assert simulated(path) == list(PLAYS[operation])


def test_site_is_deploy_and_a_report() -> None:
    assert simulated("site.yml") == list(PLAYS[DEPLOY])


def test_partitions_change_as_many_hosts_at_a_time() -> None:
    text = (PLAYBOOKS / "parts/partition.yml").read_text(encoding="utf-8")
    assert f"gpu_partition_serial | default({list(DEFAULT_PARTITION_SERIAL)})" in text


def test_every_phase_names_an_action_that_is_known() -> None:
    text = (ROOT / "plugins/plugin_utils/rollout/steps.py").read_text(encoding="utf-8")
    named = set(re.findall(r'Step\(\s*"(\w+)"', text))
    assert named >= {"vllm_server", "canary", "balancer_server"}
    assert named <= CALLS.keys()
    phases = {*steps.FORWARD, *steps.PASSED, *steps.WAY_BACK, *steps.MEASURING, *steps.COMING_BACK}
    assert len(phases) > 10


def test_an_unknown_step_is_an_error_and_no_step_without_effect() -> None:
    done = deployed()
    known = templates(done.plan)
    context = SimulatedRun(first_model(done.plan, known), known, {}, {}, set(), False, [])
    with pytest.raises(UnknownStep, match="a_new_module"):
        perform(context, [("n1", "a_new_module", {})], lambda: None)


@pytest.mark.parametrize(
    ("key", "sends"), [({}, PRESENT), ({"map": None}, FORMER), ({"map": None, "sent": False}, "")]
)
def test_a_load_balancer_sends_the_key_that_its_plan_has(key: dict[str, Any], sends: str) -> None:
    """One that does not exist yet is another than any instance has."""
    done = deployed(deployments=(llama(port=8200),))
    own = tuple(replace(item, instance_key=replace(item.instance_key, **key)) for item in done.plan.balancers)
    sent: list[str] = []
    plan = replace(done.plan, balancers=own)
    simulate(plan, done.todo, DEPLOY, watch=lambda _step, model: sent.append(model.balancers["n1"].key))
    assert sent[-1] == sends
