# SPDX-License-Identifier: Apache-2.0
"""What happens to a fleet between two runs: one that died half-way or was turned back, a host without an answer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.changes.actions import PARTITION_KINDS
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.backends import names_of
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.balancer_plan import (
    BalancerPlan,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.before import (
    first_model,
    templates,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.calls import SimulatedRun
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.model import (
    FleetModel,
    Running,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.plays import Playbook
from hypothesis import strategies as st

from tests.worlds.edited_fleet import Inventory, Planned, Site, carried_out, configured, later

Draw = Callable[[Any], Any]
SINCE = "2026-11-21T23:00:00Z"


@dataclass
class Moment:
    """A fleet between two steps of a run."""

    step: str
    instances: list[Running] = field(default_factory=list)
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    drained: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, step: str, model: FleetModel) -> Moment:
        """Keep what the model is now."""
        balancers = model.balancers.values()
        return cls(
            step,
            list(model.instances.values()),
            {item.name: dict(item.servers) for item in balancers if item.exists},
            {item.name: set(item.drained) for item in balancers if item.exists},
        )


def moments(done: Planned) -> list[Moment]:
    """The fleet after each step of a run."""
    found: list[Moment] = []
    done.simulate(lambda step, model: found.append(Moment.of(step, model)))
    return found


def may_die(done: Planned) -> bool:
    """A run whose moments are known: of a change of partition modes only the end is."""
    return not any(action.kind in PARTITION_KINDS for host in done.plan.hosts for action in host.actions)


def died_at(
    moment: Moment,
    done: Planned,
    inventory: Inventory,
    site: Site,
    times: tuple[str | None, str | None] = (None, None),
) -> Site:
    """What the hosts have when the controller of a run died at a moment, after it had recorded the generations.

    times: when the run recorded the generations, and when its rollout began; by default, after all that is recorded.
    """
    after = carried_out(done, inventory, site, times[0])
    began = times[1] or later(after)
    running: dict[str, list[Running]] = {}
    for item in moment.instances:
        running.setdefault(item.host, []).append(item)
    for host in done.plan.hosts:
        name = host.host.name
        after.states[name]["instances"] = [
            {
                "name": item.name, "deployment": item.deployment, "state": "running", "spec_hash": item.spec,
                "artefact_hash": item.spec, "exit_code": 0, "ready": item.ready,
            }
            for item in running.get(name, ())
        ]  # fmt: skip
    for entry in done.todo:
        state = after.states.get(entry["name"], {})
        for part in (entry["plan"], *_recorded(done, entry, moment.step)):
            _note_trials(state, part, began)
    for balancer in done.plan.balancers:
        after.seen[balancer.host.name] = _balancer_then(balancer, moment, site)
    return after


def _recorded(done: Planned, entry: dict[str, Any], step: str) -> list[dict[str, Any]]:
    """What a run has recorded on a host of its canaries when a phase of a batch was over."""
    found = []
    steps = (entry["plan"].get("rollout") or {}).get("steps", {})
    for batch in done.rollout.batches if done.rollout else ():
        for phase in batch["phases"]:
            made = steps.get(str(batch["number"]), {}).get(phase)
            if made and made["action"] == "serving_generation":
                found.append(made["args"])
            if phase_text(batch, phase) == step:
                return found
    return []


def phase_text(batch: dict[str, Any], phase: str) -> str:
    """The step of the simulation that a phase of a batch is."""
    return f"{batch['text']}, phase {phase}"


def _note_trials(state: dict[str, Any], part: dict[str, Any], since: str) -> None:
    for binding in part.get("bindings") or ():
        for history in state.get("generations") or ():
            if binding.get("trial") and history["deployment"] == binding["deployment"]:
                history["trial"] = {**copy.deepcopy(binding["trial"]), "since": since}


def turned_back(
    done: Planned,
    inventory: Inventory,
    site: Site,
    failed: tuple[Any, str],
    times: tuple[str | None, str | None] = (None, None),
) -> Site:
    """What the hosts have when a batch failed its verdict in a phase, and was turned back and held.

    times: when the run recorded the generations, and when it held them; by default, after all that is recorded.
    """
    batch, phase = failed
    known = templates(done.plan, way_back=True)
    context = SimulatedRun(first_model(done.plan, known), known, {}, {}, set(), False, [])
    playbook = Playbook(context, done.todo, done.plan.balancers, lambda: None)
    playbook.run(done.operation, until=(batch["number"], phase))
    playbook.run_phases(batch, batch["way_back"])
    moment = Moment.of(phase_text(batch, phase), context.model)
    again = {name for unit in batch["units"] for name in unit}
    moment.instances = [
        item
        for item in moment.instances
        if f"{item.host}/{item.name}" not in again or not _in_the_way(item, moment.instances)
    ]
    after = died_at(moment, done, inventory, site, times)
    since = times[1] or later(after)
    for entry in done.todo:
        steps = (entry["plan"].get("rollout") or {}).get("holds", {}).get(batch["deployment"], {})
        for binding in steps["hold"]["args"]["bindings"] if steps else ():
            held = {**copy.deepcopy(binding["held"]), "why": "slower", "since": since}
            history = _history(after.states[entry["name"]], binding["deployment"])
            history.update(held=held, trial=None, ended=since)
    return after


def _in_the_way(item: Running, others: list[Running]) -> bool:
    """Another one has its place, as an earlier run, which died, gave it to that one: it cannot start there again."""
    return any(
        other.of != item.of
        and other.host == item.host
        and (other.ports & item.ports or other.gpus & item.gpus)
        for other in others
        if item.share == 1
    )


def _history(state: dict[str, Any], deployment: str) -> dict[str, Any]:
    return next(item for item in state["generations"] if item["deployment"] == deployment)


def _balancer_then(balancer: BalancerPlan, moment: Moment, site: Site) -> dict[str, Any]:
    name = balancer.host.name
    servers = moment.servers.get(name)
    if servers is None:
        return copy.deepcopy(site.seen.get(name) or {}) or configured_never()
    seen = copy.deepcopy(site.seen.get(name))
    for which, backends in (("files_before", balancer.during), ("files", balancer.backends)):
        if servers == names_of(backends):
            seen = configured(balancer, which)
    assert seen is not None
    out = {key: entry for key, entry in (seen["out"] or {}).items() if entry["by"] == "operator"}
    for server in moment.drained[name] - out.keys():
        out[server] = {"state": "drain", "by": "run", "run": "r", "since": SINCE, "command": "site.yml"}
    return {**seen, "out": out or None}


def configured_never() -> dict[str, Any]:
    """A host on which no load balancer was configured yet."""
    from tests.worlds.balancer_world import NEVER

    return dict(NEVER)


def hold(draw: Draw, inventory: Inventory, site: Site) -> Site:
    """A deployment is held at what it runs, as after a release that was turned back; not on hosts that have left."""
    after = Site(copy.deepcopy(site.states), copy.deepcopy(site.seen))
    here = [after.states[name] for name in inventory.hosts if name in after.states]
    names = sorted({item["deployment"] for state in here for item in state.get("generations") or ()})
    if names:
        name = draw(st.sampled_from(names))
        histories = [
            history
            for state in here
            for history in state.get("generations") or ()
            if history["deployment"] == name and history["kept"]
        ]
        number = max((history["kept"][-1]["generation"] for history in histories), default=0)
        if any(history.get("held") for history in histories):  # what it runs may not be the last one
            return after
        for history in histories:
            history["held"] = {"generation": number, "why": "slower", "since": later(site)}
    return after


def drain(draw: Draw, _inventory: Inventory, site: Site) -> Site:
    """The operator has drained an instance, in every load balancer."""
    after = Site(copy.deepcopy(site.states), copy.deepcopy(site.seen))
    names = sorted(
        {
            (server["host"], server["instance"])
            for seen in site.seen.values()
            for backend in seen["config"]["backends"]
            for server in backend["servers"]
        }
    )
    if names:
        of = draw(st.sampled_from(names))
        for seen in after.seen.values():
            for backend in seen["config"]["backends"]:
                for server in backend["servers"]:
                    if (server["host"], server["instance"]) == of:
                        entry = {"state": "drain", "by": "operator", "since": SINCE}
                        seen["out"] = {**(seen["out"] or {}), f"{backend['name']}/{server['name']}": entry}
    return after
