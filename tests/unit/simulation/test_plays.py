# SPDX-License-Identifier: Apache-2.0
"""The simulator runs the plays that the playbooks run, in their order, and knows every action that a step can name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    BENCHMARK,
    DEPLOY,
    RESTART,
    ROLLBACK,
    STOP,
    UPGRADE,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout import steps
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.before import (
    first_model,
    templates,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.calls import (
    CALLS,
    SimulatedRun,
    UnknownStep,
    perform,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.model import (
    FORMER,
    PRESENT,
    FleetModel,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.plays import (
    DEFAULT_PARTITION_SERIAL,
    PARTITION,
    PLAYS,
    Playbook,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.rules import IN_USE
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.simulate import (
    RunLimits,
    simulate,
)

from tests import ROOT
from tests.unit.simulation.test_named_edits import (
    BASE,
    ELSEWHERE,
    HOSTS,
    MODEL,
    SEQS,
    deployed,
    deployment,
    edited,
    llama,
)
from tests.worlds.edited_fleet import Planned, address, planned, settled

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
    text = (ROOT / "plugins/plugin_utils/planning/rollout/steps.py").read_text(encoding="utf-8")
    named = set(re.findall(r'Step\(\s*"(\w+)"', text))
    assert named >= {"vllm_server", "canary", "balancer_server"}
    assert named <= CALLS.keys()
    phases = {*steps.FORWARD, *steps.WAY_BACK, *steps.MEASURING, *steps.COMING_BACK}
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


def states(done: Planned, look: Callable[[FleetModel], Any] = lambda _model: None) -> list[tuple[str, Any]]:
    """The steps of a run in their order, with what is looked at between any two changes."""
    found: list[tuple[str, Any]] = []

    def watch(step: str, model: FleetModel) -> None:
        found.append((step, look(model)))

    simulate(done.plan, done.todo, done.operation, RunLimits(at_once=True), watch)
    return found


def texts(done: Planned) -> list[str]:
    return list(dict.fromkeys(step for step, _unused in states(done)))


TWO = {**BASE.balancers, **ELSEWHERE}
ALONE = edited(BASE, balancers={})
PAIR = deployment(
    name="pair",
    gpus=[4],
    instances_per_host=1,
    nodes=2,
    tensor_parallel_size=1,
    pipeline_parallel_size=2,
    port=9100,
)
WITH_PAIR = edited(BASE, deployments=(llama(), PAIR))
REMOVED = {"remove_load_balancer": True}
RUNS: dict[str, Callable[[], Planned]] = {
    "the first load balancer and a flag": lambda: deployed(
        base=ALONE, balancers=ELSEWHERE, deployments=(llama(**SEQS),)
    ),
    "a second load balancer": lambda: deployed(balancers=TWO),
    "another one instead": lambda: planned(
        edited(BASE, balancers=ELSEWHERE), settled(BASE), DEPLOY, **REMOVED
    ),
    "the load balancer away": lambda: planned(ALONE, settled(BASE), DEPLOY, **REMOVED),
    "a host less": lambda: deployed(hosts={"n1": "192.0.2.11"}),
    "other partition modes": lambda: deployed(modes=dict.fromkeys(HOSTS, "CPX")),
    "a deployment that spans hosts": lambda: deployed(base=BASE, deployments=(llama(), PAIR)),
    "a flag of one that spans hosts": lambda: deployed(
        base=WITH_PAIR, deployments=(llama(), {**PAIR, **SEQS})
    ),
    "restart": lambda: deployed(RESTART),
    "upgrade": lambda: deployed(UPGRADE, deployments=(llama(**SEQS),)),
    "benchmark": lambda: deployed(BENCHMARK),
    "stop": lambda: planned(BASE, settled(BASE), STOP, at_once=True),
}


def released(looks: int) -> list[str]:
    """The phases of batches of which the first is a canary. looks: at those that all batches have."""
    once = {"measure", "record_baseline", "judge", "keep_caches", "record_verdict"}
    phases = (
        "drain", "measure", "record_baseline", "serve", "judge", "record_verdict", "keep_caches", "undrain", "watch",
        "confirm",
    )  # fmt: skip
    return [f"{2 if phase in once else looks} batches, {phase}" for phase in phases]


# How often the fleet is looked at in each step, those of all batches by their phases.
STEPS = {
    "the first load balancer and a flag": [
        "1 before the run",
        "1 writing the instances' key on hosts",
        "2 updating the load balancers before instances change",
        "2 starting what no batch changes",
        *released(8),
        "4 updating the load balancers after instances have changed",
        "1 after the run",
    ],
    "a second load balancer": [
        "1 before the run",
        "1 writing the instances' key on hosts",
        "4 updating the load balancers before instances change",
        "2 starting what no batch changes",
        *released(4),
        "8 updating the load balancers after instances have changed",
        "1 after the run",
    ],
    "another one instead": [
        "1 before the run",
        "1 writing the instances' key on hosts",
        "2 updating the load balancers before instances change",
        "2 starting what no batch changes",
        *released(4),
        "4 updating the load balancers after instances have changed",
        "1 taking down the load balancer of n1",
        "1 after the run",
    ],
    "the load balancer away": [
        "1 before the run",
        "1 writing the instances' key on hosts",
        "1 taking down the load balancer of n1",
        "2 starting what no batch changes",
        "2 batches, measure",
        "2 batches, record_baseline",
        "8 batches, serve",
        "2 batches, judge",
        "2 batches, record_verdict",
        "2 batches, keep_caches",
        "8 batches, watch",
        "1 after the run",
    ],
    "a host less": [
        "1 before the run",
        "1 writing the instances' key on hosts",
        "2 updating the load balancers before instances change",
        "2 draining servers that load balancers forget",
        "2 updating the load balancers after instances have changed",
        "1 after the run",
    ],
    "other partition modes": [
        "1 before the run",
        "1 writing the instances' key on hosts",
        "2 updating the load balancers before instances change",
        "2 draining n1 to change partition modes",
        "1 changing the partition modes of n1",
        "2 starting the instances of n1 again",
        "2 returning n1 to service",
        "2 draining n2 to change partition modes",
        "1 changing the partition modes of n2",
        "2 starting the instances of n2 again",
        "2 returning n2 to service",
        "2 starting what no batch changes",
        "2 returning what no batch changes to service",
        "4 updating the load balancers after instances have changed",
        "1 after the run",
    ],
    "a deployment that spans hosts": [
        "1 before the run",
        "1 writing the instances' key on hosts",
        "2 updating the load balancers before instances change",
        "4 starting what no batch changes",
        "2 updating the load balancers after instances have changed",
        "1 after the run",
    ],
    "a flag of one that spans hosts": [
        "1 before the run",
        "1 writing the instances' key on hosts",
        "2 updating the load balancers before instances change",
        "2 starting what no batch changes",
        "2 batches, drain",
        "2 batches, measure",
        "2 batches, record_baseline",
        "2 batches, start",
        "2 batches, serve",
        "2 batches, judge",
        "2 batches, record_verdict",
        "2 batches, keep_caches",
        "2 batches, undrain",
        "2 batches, watch",
        "2 batches, confirm",
        "4 updating the load balancers after instances have changed",
        "1 after the run",
    ],
    "restart": [
        "1 before the run",
        "1 writing the instances' key on hosts",
        "8 batches, drain",
        "8 batches, stop",
        "8 batches, serve",
        "8 batches, undrain",
        "8 batches, watch",
        "8 batches, confirm",
        "2 updating the load balancers after instances have changed",
        "1 after the run",
    ],
    "upgrade": [
        "1 before the run",
        "1 writing the instances' key on hosts",
        "2 updating the load balancers before instances change",
        *released(8),
        "4 updating the load balancers after instances have changed",
        "1 after the run",
    ],
    "benchmark": [
        "1 before the run",
        "8 batches, drain",
        "8 batches, measure",
        "8 batches, serve",
        "8 batches, undrain",
        "1 after the run",
    ],
    "stop": [
        "1 before the run",
        "2 draining what stops",
        "2 batches, stop",
        "1 after the run",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_the_steps_of_a_run(name: str) -> None:
    looks = Counter(re.sub("^batch .*, phase", "batches,", step) for step, _unused in states(RUNS[name]()))
    assert [f"{count} {step}" for step, count in looks.items()] == STEPS[name]


def test_a_load_balancer_that_forgets_what_it_sends_requests_to() -> None:
    done = deployed(deployments=(llama(port=8200),))
    assert simulate(done.plan, done.todo, DEPLOY).violations == ()
    own = tuple(replace(item, during=()) for item in done.plan.balancers)
    found = simulate(replace(done.plan, balancers=own), done.todo, DEPLOY).violations
    assert (found[0].rule, found[0].step) == (IN_USE, "updating the load balancers before instances change")
    assert "load balancer n1 forgets" in found[0].what
    assert "while it sends requests to it" in found[0].what


def test_a_load_balancer_has_checked_its_servers_when_its_update_ends() -> None:
    done = deployed(balancers={**BASE.balancers, **ELSEWHERE})
    found = states(
        done,
        lambda model: [
            item.name
            for item in model.balancers.values()
            if item.exists and any(not item.servers[name].coming for name in item.unproven)
        ],
    )
    seen = [unproven for step, unproven in found if step.startswith("updating the load balancers before")]
    assert ["lb"] in seen  # between its configuration and its checks
    assert seen[-1] == []


def test_what_started_counts_once_something_waits_for_it() -> None:
    """A host comes for one that leaves: who drains the latter waits for the former, and for no more than it needs."""
    alone = edited(BASE, balancers=ELSEWHERE)
    done = planned(edited(alone, hosts={"n1": address("n1"), "n3": address("n3")}), settled(alone))

    def look(model: FleetModel) -> tuple[int, int]:
        there = model.balancers["lb"]
        return len(there.unproven), len(there.awaited)

    found = dict(states(done, look))
    assert found["updating the load balancers before instances change"] == (2, 0)
    assert found["starting what no batch changes"] == (2, 0)
    assert found["draining servers that load balancers forget"] == (0, 2)
    assert found["after the run"] == (0, 0)  # the last configuration has been waited for
    assert done.simulate().violations == ()


def test_what_started_is_waited_for_before_the_next_configuration() -> None:
    """An instance that was dead starts again, and another host comes, which is in service at the end of the update."""
    alone = edited(BASE, balancers=ELSEWHERE)
    site = settled(alone)
    site.states["n1"]["instances"][0]["state"] = "exited"
    done = planned(edited(alone, hosts={**HOSTS, "n3": address("n3")}), site)
    found = states(done, lambda model: model.counts["lb", MODEL])
    assert ("starting what no batch changes", 3) in found
    after = [
        count for step, count in found if step == "updating the load balancers after instances have changed"
    ]
    assert (after[0], after[-1]) == (4, 6)


def test_what_nothing_waits_for_counts_when_the_run_has_ended() -> None:
    """An instance that was dead starts again, and no load balancer changes."""
    site = settled(BASE)
    site.states["n1"]["instances"][0]["state"] = "exited"
    found = states(
        planned(BASE, site), lambda model: (model.counts["n1", MODEL], model.balancers["n1"].unproven)
    )
    assert dict(found)["after the run"] == (4, set())


def test_partition_yml_starts_what_an_interrupted_run_left_and_removes_nothing() -> None:
    done = deployed(deployments=(llama(gpus=[0], instances_per_host=1),))
    (part,) = [item["plan"] for item in done.todo if item["name"] == "n2"]
    part.update(resume=["llama-0"], remove=["llama-1"])
    found: list[tuple[str, bool]] = []

    def watch(step: str, model: FleetModel) -> None:
        found.append((step, ("n2", "llama-1") in model.instances))

    simulate(done.plan, done.todo, PARTITION, RunLimits(at_once=True), watch)
    assert any(step.startswith("starting what an interrupted run left") for step, _there in found)
    assert all(there for _step, there in found)


def test_what_a_step_gives_is_looked_at_in_that_step() -> None:
    done = deployed(deployments=(llama(**SEQS),))
    found = states(done, lambda model: len(model.instances))
    seen = [count for step, count in found if step.startswith("batch 1 of") and step.endswith("phase serve")]
    assert seen[0] < seen[-1] == 4


def test_modes_change_in_batches_of_the_sizes_that_are_given_the_last_of_which_repeats() -> None:
    hosts = {name: address(name) for name in ("n1", "n2", "n3", "n4", "n5")}
    done = deployed(base=edited(BASE, hosts=hosts), modes=dict.fromkeys(hosts, "CPX"))
    found: list[str] = []
    limits = RunLimits(at_once=True, partition_serial=(1, 2))
    simulate(done.plan, done.todo, DEPLOY, limits, lambda step, _model: found.append(step))
    changed = [step for step in dict.fromkeys(found) if step.startswith("changing the partition modes")]
    assert changed == [f"changing the partition modes of {names}" for names in ("n1", "n2, n3", "n4, n5")]


def test_nothing_runs_where_partition_modes_change() -> None:
    done = deployed(modes={"n1": "CPX"})
    found = states(done, lambda model: (len(model.on("n1")), len(model.on("n2"))))
    assert [left for step, left in found if step == "changing the partition modes of n1"] == [(0, 2)]


def test_a_run_ends_in_the_batch_whose_phase_fails() -> None:
    done = deployed(deployments=(llama(**SEQS),))
    known = templates(done.plan)
    steps_then: list[str] = []
    context = SimulatedRun(first_model(done.plan, known), known, {}, {}, set(), False, [])
    playbook = Playbook(context, done.todo, done.plan.balancers, lambda: steps_then.append(context.step))
    playbook.run(DEPLOY, until=(2, "serve"))
    assert playbook.ended
    assert any(step.startswith("batch 1 of") and step.endswith("phase undrain") for step in steps_then)
    assert steps_then[-1].startswith("batch 2 of")
    assert steps_then[-1].endswith("phase serve")


def test_what_stops_is_drained_where_a_load_balancer_has_it() -> None:
    stop = planned(BASE, settled(BASE), STOP, at_once=True)
    assert "draining what stops" in texts(stop)
    own = tuple(replace(item, servers={}, answered={}) for item in stop.plan.balancers)
    assert "draining what stops" not in texts(replace(stop, plan=replace(stop.plan, balancers=own)))
    alone = edited(BASE, balancers={})
    unmade = planned(edited(BASE, balancers=ELSEWHERE), settled(alone), STOP, at_once=True)
    assert "draining what stops" not in texts(unmade)
    assert unmade.simulate(at_once=True).violations == ()
