# SPDX-License-Identifier: Apache-2.0
"""What planning costs, and what runs with nothing to do cost, as a ratio to `ansible -m ping`; fails when it is more.

Planning is timed without any input or output, over fleets of growing size; of the largest, a hundredth of the hosts
lacks a GPU. So is the simulation of an upgrade, as a ratio to planning it. Then `make bench` brings the lab to 2, to
10 (and, where that is set, to BENCH_NODES=50) nodes,
deploys the stand-in engine on them, and times the commands in turn (A B C A B C …), so that a machine whose speed
drifts slows all alike. Absolute seconds are of this machine; the ratio is what carries over. In the end, 50 instances
are upgraded, and the time is held against the sum of the waits that no tool could save: each batch's start and its
time under watch.

Every figure is held against its target. All are measured; then those that missed theirs are listed, and the exit
code is 1. --only planning (noop, upgrade) measures a part, --target site=1.1 sets another target.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.passes import run_passes
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import Knowledge
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.fit import fit
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.changes.actions import (
    ImageStep,
    ModelStep,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.fleet import (
    HostInput,
    build_fleet,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.fetching.transfers import (
    plan_transfers,
    transfers_by_host,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.factory import InstanceFactory
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan

from tests import ROOT
from tests.bench_change import planned_and_proved
from tests.lab.conftest import BIN, LAB, copy_inventory
from tests.lab.helpers import deployment
from tests.worlds import fit_world, network_world, plan_world

ROUNDS = 7
# What each figure may be at most.
TARGETS = {
    "planning": 1.0,  # CPU seconds for 1,000 hosts; 0.4 on a quiet machine
    "planning-growth": 1.3,  # an instance of 1,000 hosts, as a ratio to one of 100: all is linear
    "planning-8000": 9.0,  # 8,000 hosts, as a ratio to 1,000
    "planning-8000-spanning": 9.0,  # the same with engines over two hosts each
    "simulation": 0.25,  # of planning the same upgrade; of 16 and of 64 hosts
    "change-growth": 1.5,  # planning an upgrade of an instance of 64 hosts, as a ratio to one of 16
    "transfers": 1.0,  # CPU seconds more for 1,000 hosts that lack an image and a model of 170 files
    "fit": 15.0,  # fit() of a model, as a ratio to reading and writing the JSON of a node's state
    "audit": 2.2,  # it reads more of each host than a ping; two cores run ten of them
    "status": 3.0,  # a second goes by between its two looks at /metrics
    "site": 1.2,
    "site-10": 0.75,  # the same on 10 nodes, whose pings cost more than what a run does once
    "upgrade": 2.0,
}
PLAYBOOKS = (("audit", ()), ("status", ()), ("site", ("--skip-tags", "benchmark")))
SIZES = (10, 100, 1000)
LARGE = 8000
FAULTY = 100  # one host of so many lacks a GPU
CHANGED = (16, 64)
INSTANCES = 8
SINGLE = plan_world.deployment(instances_per_host=INSTANCES)
SPANNING = plan_world.deployment(nodes=2, tensor_parallel_size=8, pipeline_parallel_size=2)
# Of the upgrade: instances per node, seconds of an engine's start, and under watch.
UPGRADED, START, SOAK = 25, 10, 10


@dataclass
class Judge:
    """Holds figures against their targets."""

    targets: dict[str, float]
    missed: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)

    def holds(self, name: str, value: float, where: str = "") -> float:
        """Note whether a figure is within its target, which is returned."""
        target = self.targets[name]
        self.held.add(name)
        if not value <= target:  # so that NaN misses, too
            self.missed.append(f"{name}{where}: {value:.3f}, at most {target:g}")
        return target


def run_env() -> dict[str, str]:
    """The environment of the measured commands: a user's, whose second run finds the bytecode that the first wrote."""
    env = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # set, it has every run compile the toolkit again: 0.15 s
    return env


def timed(command: list[str], env: dict[str, str]) -> tuple[float, str]:
    """Wall seconds of a command that must succeed, and what it printed."""
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return seconds, done.stdout


def measure(nodes: int, judge: Judge) -> None:
    """Print the rows of one fleet size."""
    lab_env = {**os.environ, "LAB_NODES": str(nodes)}
    subprocess.run(
        [sys.executable, "-m", "lab", "up"], cwd=ROOT, env=lab_env, check=True, stdout=subprocess.DEVNULL
    )
    hosts = sorted(yaml.safe_load(LAB.inventory.read_text())["instinct"]["hosts"])
    with tempfile.TemporaryDirectory() as tmp:
        lab = copy_inventory(hosts, Path(tmp))
        lab.write_vars(vllm_deployments=[deployment()])
        env = run_env()
        ping = [str(BIN / "ansible"), "-i", str(lab.inventory), "instinct", "-m", "ansible.builtin.ping"]
        commands = [ping, *(lab.command(playbook, *args) for playbook, args in PLAYBOOKS)]
        for command in reversed(commands):  # the first run of site.yml deploys
            timed(command, env)
        rounds = [[timed(command, env)[0] for command in commands] for _ in range(ROUNDS)]
    ping_s = statistics.median(row[0] for row in rounds)
    for column, (playbook, _) in enumerate(PLAYBOOKS, 1):
        seconds = statistics.median(row[column] for row in rounds)
        ratio = statistics.median(row[column] / row[0] for row in rounds)
        name = f"{playbook}-{nodes}"
        target = judge.holds(name if name in judge.targets else playbook, ratio, f" of {nodes} nodes")
        text = f"{playbook}.yml"
        print(f"{nodes:5d}  {text:10} {seconds:8.2f}  {ping_s:6.2f}  {ratio:6.2f}  {target:7.2f}", flush=True)


def upgrading(judge: Judge) -> None:
    """Print what an upgrade of 25 instances on each of two nodes takes, beside the waits that it cannot do without."""
    env = {**os.environ, "LAB_NODES": "2"}
    for word in ("up", "reset"):
        subprocess.run(
            [sys.executable, "-m", "lab", word], cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL
        )
    hosts = sorted(yaml.safe_load(LAB.inventory.read_text())["instinct"]["hosts"])
    with tempfile.TemporaryDirectory() as tmp:
        lab = copy_inventory(hosts, Path(tmp))
        (lab.inventory / "balancer.yml").write_text(f"load_balancer:\n  hosts:\n    {hosts[0]}:\n")
        env = run_env()
        for requests, playbook in ((64, "site"), (65, "upgrade")):
            wanted = deployment(
                instances_per_host=UPGRADED,
                engine_args={"max_num_seqs": requests},
                env={"STANDIN_STARTUP_SECONDS": str(START)},
            )
            lab.write_vars(vllm_deployments=[wanted], gpu_partition_compute="CPX", rollout_soak=SOAK)
            skip = ("--skip-tags", "benchmark") if playbook == "site" else ("-e", "canary=false")
            seconds, said = timed(lab.command(playbook, *skip), env)
    # What is measured next has the machine for itself: 50 engines and their checks take a seventh of two cores.
    subprocess.run(
        [sys.executable, "-m", "lab", "reset"], cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL
    )
    units = UPGRADED * len(hosts)
    if f"Upgrade: {units} groups of {units} done." not in said:
        sys.exit(
            f"upgrade.yml did not change all {units} instances, so its time says nothing:\n{said[-3000:]}"
        )
    # Without a canary [1, "20%"] is: one unit, then a fifth of all at a time.
    batches = 1 + -(-(units - 1) // (units // 5))
    waits = batches * (START + SOAK)
    print()
    print(
        f"Upgrade of {units} instances in {batches} batches, each {START} s of start and {SOAK} s under watch"
    )
    target = judge.holds("upgrade", seconds / waits)
    print("seconds   waits   ratio  at most")
    print(f"{seconds:7.1f}  {waits:6.1f}  {seconds / waits:6.2f}  {target:7.1f}", flush=True)


def planning(
    hosts: int,
    wanted: Mapping[str, Any] = SINGLE,
    instances: int = INSTANCES,
    faulty: int = 0,
    rounds: int = 3,
) -> float:
    """Seconds from the hosts' raw data to the plan as JSON, the catalogue read anew; the best of some rounds.

    instances: servers per host. faulty: so many hosts lack a GPU, so that they are left out.
    """
    names = [f"n{number}" for number in range(hosts)]
    groups = {"all": names, "instinct": names}

    def given(number: int, name: str) -> HostInput:
        address = f"10.{number // 62500}.{number // 250 % 250}.{number % 250 + 1}"
        state = plan_world.state(hostname=name, interfaces=[network_world.ethernet(1, addresses=[address])])
        if number < faulty:
            state["gpus"] = state["gpus"][1:]
        return HostInput({"vllm_deployments": [dict(wanted)], "ansible_host": address}, state)

    inputs = {name: given(number, name) for number, name in enumerate(names)}
    catalog, render = plan_world.catalog(), plan_world.render()

    def once() -> float:
        start = time.process_time()
        factory = InstanceFactory(Knowledge(ROOT / "catalog"), plan_world.LOCK, render, {})
        # In passes, as a run does it: they suspend the garbage collector's search for cycles.
        checked = run_passes((lambda given: build_fleet(given, groups, catalog), check_fleet), inputs)
        data = run_passes((FleetPlan.to_json,), plan_fleet(checked, factory))
        seconds = time.process_time() - start
        assert len(data["excluded"]) == faulty
        assert sum(len(host["servers"]) for host in data["hosts"].values()) == instances * (hosts - faulty)
        return seconds

    return min(once() for _ in range(rounds))


def plan_scale(judge: Judge) -> None:
    """Print how planning grows with the fleet."""
    print(f"Planning, {INSTANCES} instances per host, on one core")
    print("hosts  instances  seconds  µs per instance")
    each = {}
    for hosts in SIZES:
        seconds = planning(hosts)
        each[hosts] = seconds / hosts / INSTANCES * 1e6
        print(f"{hosts:5d}  {hosts * INSTANCES:9d}  {seconds:7.3f}  {each[hosts]:15.0f}", flush=True)
    target = judge.holds("planning", seconds, f" of {hosts} hosts")
    growth = each[hosts] / each[hosts // 10]
    print(
        f"at most {target:g} s for {hosts} hosts; an instance costs {growth:.2f} of one of {hosts // 10} hosts,",
        end="",
    )
    print(f" at most {judge.holds('planning-growth', growth):g}\n")


def plan_growth(judge: Judge) -> None:
    """Print how planning grows up to a fleet that nobody has yet, with hosts of which each makes work for others."""
    print(f"Planning {LARGE} hosts, of which one of {FAULTY} lacks a GPU, as a ratio to {SIZES[-1]}")
    print("engines                 ratio  exponent  at most")
    kinds = (("on one host each", "", SINGLE, INSTANCES), ("over two hosts each", "-spanning", SPANNING, 1))
    for text, suffix, wanted, instances in kinds:
        small, large = (
            planning(hosts, wanted, instances, hosts // FAULTY, rounds=2) for hosts in (SIZES[-1], LARGE)
        )
        target = judge.holds(f"planning-8000{suffix}", large / small)
        exponent = math.log(large / small) / math.log(LARGE / SIZES[-1])
        print(f"{text:22} {large / small:6.2f}  {exponent:8.2f}  {target:7.2f}", flush=True)
    print()


def changing(judge: Judge) -> None:
    """Print what it costs to plan an upgrade of all instances, and to simulate it."""
    print("Planning an upgrade of all instances, and simulating it")
    print("hosts  instances  planned  simulated  ratio  at most")
    each = []
    for hosts in CHANGED:
        planned, simulated = planned_and_proved(hosts, INSTANCES)
        each.append(planned / hosts)
        ratio = simulated / planned
        target = judge.holds("simulation", ratio, f" of {hosts} hosts")
        print(
            f"{hosts:5d}  {hosts * INSTANCES:9d}  {planned:7.3f}  {simulated:9.3f}  {ratio:5.2f}  {target:7.2f}",
            flush=True,
        )
    growth = each[-1] / each[0]
    target = judge.holds("change-growth", growth)
    print(f"an instance costs {growth:.2f} of one of {CHANGED[0]} hosts, at most {target:g}\n")


def transferring(hosts: int = SIZES[-1], files: int = 170) -> float:
    """CPU seconds of planning what so many hosts pass on of an image and a model, as JSON; the best of three."""
    known = plan_world.fleet(
        {f"n{number}": plan_world.state() for number in range(hosts)},
        [],
        own={
            f"n{number}": {"ansible_host": f"10.0.{number // 250}.{number % 250}"} for number in range(hosts)
        },
    )
    image = ImageStep(
        "lab/vllm:1", f"lab/vllm@{plan_world.DIGEST}", plan_world.DIGEST, 2**34, "docker.io", None
    )
    shards = {f"model-{number:05d}.safetensors": 2**32 + number for number in range(files)}
    hashes = {name: f"sha256:{number:064x}" for number, name in enumerate(shards)}

    def model() -> ModelStep:
        given = ("lab/huge", "main", plan_world.COMMIT, "/var/lib/instinct-fleet/hf", "")
        return ModelStep(*given, dict(shards), (), (), "lab/vllm:1", hashes)

    steps = [(host, (image,), (model(),)) for host in known.hosts]

    def once() -> float:
        start = time.process_time()
        found, _unused = plan_transfers(steps, known.hosts)
        parts = transfers_by_host(found)
        text = json.dumps([item.to_json() for item in found])
        seconds = time.process_time() - start
        assert len(found) == 2
        assert len(parts) == hosts
        assert text
        return seconds

    return min(once() for _ in range(3))


def transfers(judge: Judge) -> None:
    """Print what planning of transfers costs."""
    seconds = transferring()
    target = judge.holds("transfers", seconds, f" of {SIZES[-1]} hosts")
    print(
        f"Transfers of {SIZES[-1]} hosts, an image and 170 files: {seconds:.3f} s more, at most {target:g} s\n"
    )


def cpu_seconds(work: Callable[[], object]) -> float:
    """What one call takes; the best of five times ten."""

    def ten() -> float:
        start = time.process_time()
        for _ in range(10):
            work()
        return (time.process_time() - start) / 10

    return min(ten() for _ in range(5))


def fitting(judge: Judge) -> None:
    """Print what it costs to tell whether a model fits: once for each deployment and kind of GPU."""
    shapes, engine = [fit_world.model(name) for name in fit_world.CONFIGS], fit_world.engine(tp=8)
    each = cpu_seconds(lambda: [fit(shape, engine) for shape in shapes]) / len(shapes)
    state = plan_world.state(hostname="n1")
    ratio = each / cpu_seconds(lambda: json.loads(json.dumps(state)))
    target = judge.holds("fit", ratio)
    print(
        f"Whether one of {len(shapes)} models fits: {each * 1e6:.0f} µs, {ratio:.1f} times the JSON of a node's state,",
        end="",
    )
    print(f" at most {target:g}\n", flush=True)


def plans(judge: Judge) -> None:
    plan_scale(judge)
    plan_growth(judge)
    changing(judge)
    transfers(judge)
    fitting(judge)


def runs(judge: Judge) -> None:
    print("Runs with nothing to do, against one ping of every host (medians; the ratio is that of a round)")
    print("nodes  run         seconds    ping   ratio  at most")
    more = int(os.environ.get("BENCH_NODES", "0"))
    for nodes in (2, 10, *([more] if more else [])):
        measure(nodes, judge)


PARTS = {"planning": plans, "noop": runs, "upgrade": upgrading}


def setting(text: str) -> tuple[str, float]:
    """A target of the command line."""
    name, _, value = text.partition("=")
    if name not in TARGETS:
        raise argparse.ArgumentTypeError(f"no target {name!r}; there are {', '.join(TARGETS)}")
    return name, float(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Measure, and compare with targets."
    )
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; may be given again")
    parser.add_argument("--target", action="append", type=setting, default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    judge = Judge({**TARGETS, **dict(given.target)})
    for name in given.only or PARTS:
        PARTS[name](judge)
    if not given.only and judge.held != set(TARGETS):
        sys.exit(f"never measured: {', '.join(sorted(set(TARGETS) - judge.held))}")
    if judge.missed:
        sys.exit("\nTargets missed:\n  " + "\n  ".join(judge.missed))


if __name__ == "__main__":
    main()
