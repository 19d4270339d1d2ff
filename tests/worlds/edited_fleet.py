# SPDX-License-Identifier: Apache-2.0
"""A fleet with load balancers that is edited and deployed: planned as the action does, simulated, and as it is then."""

from __future__ import annotations

import copy
import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.module_utils.common.hashing import (
    canonical,
    spec_hash,
    text_hash,
)
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.instance_key import (
    InstanceKey,
    header_map,
    mark,
)
from ansible_collections.instinct.fleet.plugins.module_utils.service.minimum import Count
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.passes import run_passes
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.images import ImageFacts
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.deployment import Deployment
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    BalancerHost,
    balancer_host,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.fleet import HostInput
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.balancer_plan import (
    BalancerPlan,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.plan import (
    EndpointAssets,
    EndpointInputs,
    wanted_files,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.factory import (
    DeploymentDecision,
    InstanceFactory,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import Lock, model_key
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import RUN, check_run, plan_run
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.plan import RolloutPlan
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.policy import parse_policy
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.inputs import (
    Resources,
    RunInputs,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.passes import (
    DistributedRun,
    prove,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.request import OPTIONS
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.simulate import (
    RunLimits,
    Simulation,
    Watch,
    simulate,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.tune import TargetGpu

from tests.worlds.balancer_world import DRAW, MATERIAL, NEVER, found
from tests.worlds.plan_world import (
    IMAGE,
    LOCK,
    NEXT_DIGEST,
    NEXT_IMAGE,
    NOW,
    OTHER_REPO,
    REPO,
    apply_to_state,
    catalog,
    knowledge,
    render,
    state,
)

TWO_OF_EACH = Lock(
    {**LOCK.images, NEXT_IMAGE: replace(LOCK.images[IMAGE], digest=NEXT_DIGEST)},
    {**LOCK.models, model_key("", OTHER_REPO, "main"): LOCK.models[model_key("", REPO, "main")]},
)
"""Pins of another image and of another model, too."""
SECRETS = {name: f"sk-instances-{name}-" + "i" * 30 for name in ("first", "second")}


MACHINES = {
    **{f"n{number}": (f"192.0.2.{10 + number}", f"198.51.100.{10 + number}") for number in range(1, 8)},
    **{f"lb{number}": (f"192.0.2.{100 + number}",) for number in range(1, 4)},
}
"""Every machine that an inventory may name, with its addresses. Names with lb: without GPUs."""
RENAMED = "-renamed"
"""What the second name of a machine ends with."""


class RememberingFactory(InstanceFactory):
    """What instances are made with; a decision that was taken for an equal deployment is not taken again."""

    remembered: ClassVar[dict[str, DeploymentDecision]] = {}

    def _decision(
        self, deployment: Deployment, machine: TargetGpu, software: ImageFacts, endpoint: str
    ) -> DeploymentDecision:
        key = repr((deployment, machine, software.vllm, software.platform, endpoint))
        if key not in self.remembered:
            self.remembered[key] = super()._decision(deployment, machine, software, endpoint)
        return self.remembered[key]


@dataclass(frozen=True)
class Inventory:
    """What an operator writes.

    hosts, balancers: with their addresses; modes: the compute modes of hosts; virtual: the load balancers' virtual
    address; endpoint: other variables of load balancers; rollout: options of fleet_plan, as serial and min_available;
    machines: what there is.
    """

    hosts: Mapping[str, str]
    balancers: Mapping[str, str]
    deployments: tuple[Mapping[str, Any], ...]
    modes: Mapping[str, str] = field(default_factory=dict)
    key: str = "first"
    virtual: str = ""
    endpoint: Mapping[str, Any] = field(default_factory=dict)
    rollout: Mapping[str, Any] = field(default_factory=dict)
    machines: Mapping[str, Sequence[str]] = field(default_factory=lambda: MACHINES)


def address(name: str) -> str:
    """The address of a machine."""
    return MACHINES[name][0]


def machine(name: str) -> str:
    """The machine that an inventory knows by this name."""
    return name.removesuffix(RENAMED)


@dataclass
class Site:
    """What the inventory's hosts have. states: node_state of GPU hosts; seen: of load balancers; None: no answer."""

    states: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)

    def renamed(self, names: Mapping[str, str]) -> Site:
        """The same machines, some by other names. names: by their former ones."""
        states, seen = (
            {names.get(name, name): found for name, found in there.items()}
            for there in (self.states, self.seen)
        )
        return Site(states, seen)

    def named_as(self, inventory: Inventory) -> Site:
        """The same machines, by the names that an inventory has for them."""
        names = {machine(name): name for name in (*inventory.balancers, *inventory.hosts)}
        there = (*self.states, *self.seen)
        return self.renamed({name: names[machine(name)] for name in there if machine(name) in names})


@dataclass(frozen=True)
class Planned:
    """A plan, its batches, what the playbooks get, and the inputs from which it was made."""

    plan: FleetPlan
    rollout: RolloutPlan | None
    todo: list[dict[str, Any]]
    operation: str
    min_available: Count | None = None

    def simulate(self, watch: Watch | None = None, **terms: Any) -> Simulation:
        """Run it through the model of the fleet. terms: limits other than the inventory's."""
        limits = RunLimits(**{"min_available": self.min_available, **terms})
        return simulate(self.plan, self.todo, self.operation, limits, watch)


def instance_key(inventory: Inventory) -> InstanceKey:
    """The key that load balancers send, as endpoint.secrets has it."""
    secret = SECRETS[inventory.key]
    own = mark(secret) if inventory.endpoint.get("load_balancer_instance_auth", True) else ""
    return InstanceKey("instance-key", own, True, header_map(secret))


def planned(inventory: Inventory, site: Site, operation: str = "deploy", **options: Any) -> Planned:
    """Plan an operation as fleet_plan does. Raise FleetError where it is refused."""
    names = list(inventory.hosts)
    states = {name: _seen(name, site) for name in names}
    balancers = tuple(_balancer(name, inventory, site) for name in inventory.balancers)
    key = instance_key(inventory) if balancers else InstanceKey()
    material = {item.name: MATERIAL for item in balancers}
    assets = EndpointAssets(DRAW, "agent\n", material, key, "router\n", canonical, "check\n")
    endpoint = EndpointInputs(balancers, frozenset(names), assets) if balancers else None
    own = {
        name: {
            "ansible_host": address,
            **({"gpu_partition_compute": inventory.modes[name]} if name in inventory.modes else {}),
        }
        for name, address in inventory.hosts.items()
    }
    given = {name: option.get("default") for name, option in OPTIONS.items()}
    given |= {
        "operation": operation,
        "apply": True,
        "offline": False,
        "canary": True,
        "drain_timeout": 300,
        **inventory.rollout,
        **options,
    }
    assert given.keys() == OPTIONS.keys(), given.keys() ^ OPTIONS.keys()
    deployments = {"vllm_deployments": list(inventory.deployments)}
    inputs = RunInputs(
        options={**given, "kinds": ["serve"]},
        hosts={
            name: HostInput({**deployments, **own[name]}, seen, "" if seen else "it could not be reached")
            for name, seen in states.items()
        },
        groups={"all": names, "instinct": names, "load_balancer": list(inventory.balancers)},
        gpus=catalog(),
        latest=datetime.datetime.max,
    )
    shop = RememberingFactory(knowledge(), TWO_OF_EACH, render(), {}, key)
    ready = plan_run(check_run(inputs), Resources(shop, balancers, endpoint))
    done: DistributedRun = run_passes(RUN[: RUN.index(prove)], ready)
    policy, _unused = parse_policy({"rollout_min_available": given["min_available"]})
    return Planned(done.plan, done.rollout, done.todo, operation, policy.min_available)


def _seen(name: str, site: Site) -> dict[str, Any] | None:
    """What node_state finds of a GPU host, the load balancer included that may be there."""
    seen = site.states.get(name, state(hostname=name))
    return seen and {**seen, "balancer": found(site.seen.get(name))["balancer"]}


def _balancer(name: str, inventory: Inventory, site: Site) -> BalancerHost:
    own = inventory.balancers[name]
    variables = {**inventory.endpoint, "ansible_host": own}
    if inventory.virtual:
        variables["load_balancer_virtual_address"] = inventory.virtual
    if site.seen.get(name, NEVER) is None:
        raw, absent = None, "it could not be reached"
    else:
        interfaces = [{"name": "ens1", "addresses": list(inventory.machines.get(machine(name), [own]))}]
        raw, absent = {**found(site.seen.get(name)), "interfaces": interfaces}, ""
    made, problems = balancer_host(name, variables, raw, absent)
    assert problems == ()
    return made


def carried_out(done: Planned, inventory: Inventory, site: Site, now: str | None = None) -> Site:
    """What the hosts have after a plan was carried out, all of it; by default, a minute after what they have."""
    now = now or later(site)
    data = done.plan.to_json()["hosts"]
    states = {name: copy.deepcopy(found) for name, found in site.states.items() if name not in data}
    for name, host in data.items():
        states[name] = apply_to_state(site.states.get(name, state(hostname=name)), host, now)
        if host["instance_key_file"]:
            states[name]["instance_key"] = instance_key(inventory).sent_mark
    for name, ends in (done.rollout.finish if done.rollout else {}).items():
        over = {binding["deployment"] for binding in ends["bindings"]}
        for history in states[name].get("generations") or ():
            history.update({"trial": None, "ended": now} if history["deployment"] in over else {})
    seen = dict(site.seen)
    for balancer in done.plan.balancers:
        seen[balancer.host.name] = configured(balancer)
    for former in done.plan.former:
        if former.phase:
            del seen[former.host]
    return Site(states, seen)


def later(site: Site) -> str:
    """A minute after all that the hosts have recorded."""
    histories = [one for found in site.states.values() for one in (found or {}).get("generations") or ()]
    made = [one["made"] for history in histories for one in history["kept"]]
    made += [history.get(key) for history in histories for key in ("lifted", "ended")]
    made += [(history.get(key) or {}).get("since") for history in histories for key in ("held", "trial")]
    last = datetime.datetime.fromisoformat(max(filter(None, made), default=NOW))
    return (last + datetime.timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


def configured(plan: BalancerPlan, which: str = "files") -> dict[str, Any]:
    """What node_state finds of a load balancer with a plan's files; what the operator has drained stays so."""
    texts = wanted_files(getattr(plan, which), plan.host.settings, plan.material, plan.instance_key)
    assert texts is not None
    names = {item.during: item.after for some in plan.servers.values() for item in some}
    drained = plan.host.observed.drained if plan.host.observed else {}
    out = {
        names.get(name, name): entry
        for name, entry in drained.items()
        if entry["by"] == "operator" and names.get(name)
    }
    return {
        "installed": True,
        "keepalived": plan.host.settings.virtual is not None,
        "running": True,
        "files": {name: text_hash(text) for name, text in texts.items()},
        "keys": [],
        "applied": spec_hash(texts),
        "config": json.loads(texts["balancer.json"]),
        "out": out or None,
    }


def settled(inventory: Inventory) -> Site:
    """A fleet on which everything of an inventory runs."""
    site = Site()
    done = planned(inventory, site)
    return carried_out(done, inventory, site)


def edited(inventory: Inventory, **changes: Any) -> Inventory:
    """An inventory after an edit."""
    return replace(inventory, **changes)
