# SPDX-License-Identifier: Apache-2.0
"""Plan the fleet: reads hosts' variables and states, the catalogue and the pins; decides nothing itself.

Documentation: plugins/modules/fleet_plan.py (`ansible-doc -t module instinct.fleet.fleet_plan`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError, Problem
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.instance_key import NO_KEY
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    BENCHMARK,
    STOP,
    UPGRADE,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import (
    ControllerAction,
    write_json,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.runs import (
    Lease,
    other_runs,
    refused_plan,
    this_run,
    warned,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.text import plural
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.files import CATALOG
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import (
    Knowledge,
    load_gpus,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.release import toolkit_release
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.canary.tolerances import (
    CanaryTolerances,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.fleet import Fleet, build_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.inventory_check import (
    conflict_problems,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import InventoryReader
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.assets import (
    SecretsPolicy,
    VaultReader,
    load_endpoint,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.former import (
    former_balancers,
    with_removal,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.fetching.builds import (
    merge_built,
    without_lost,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.benchmark import (
    unknown_benchmark_arguments,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.factory import InstanceFactory
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.render import load_renderer
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.groups import BALANCERS, FLEET
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.public_variables import (
    public_variables,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import LOCK, Lock
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.fetch_rules import outside_window
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.plan import check_fleet, plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving import resolve
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving.lock_file import (
    read_lock,
    update_lock,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving.model_sources import (
    read_models,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run import request
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.live import live_todo
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.proof import proved
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.todo import (
    restrict_to,
    todo_hosts,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.image_software import (
    merge_probed,
)

SUITE_VARIABLES = ("benchmark_suite", "benchmark_suite_args")
CLOCK_ERROR = 60
"""Seconds by which the clocks of the machines that playbooks run on may differ."""


class ActionModule(ControllerAction):
    """fleet_plan."""

    options: ClassVar = request.OPTIONS

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return plan, todo, changes and text; or fail with every problem of the input."""
        reader, offline, again = InventoryReader(facts), options["offline"], options["again"]
        knowledge = Knowledge(CATALOG)
        names = reader.hosts(options["hosts"])
        base, groups = reader.beside_inventory(names), reader.groups()
        inputs = {name: reader.host(name, offline) for name in names}
        everyone = dict.fromkeys([*names, *groups.get(BALANCERS, ())])
        foreign = other_runs({name: Lease.from_json(reader.lease(name)) for name in everyone if not offline})
        locking = bool(options["apply"] or options["operation"]) and not self._task.check_mode
        if locking and foreign and not options["take_over"]:
            raise FleetError(refused_plan(foreign))
        slips = [*reader.misspelled(everyone, public_variables())] if again is None else []
        slips += conflict_problems(reader, everyone, self._loader) if again is None else ()
        slips += [*reader.same_machine(names), *reader.clear_text_tokens(names)]
        raw = {name: reader.raw(name) for name in names}
        slips += [*unknown_benchmark_arguments(knowledge, raw), *_wrong_suites(knowledge, raw)]
        if again is None:
            slips += _wrong_datasets(knowledge, options, reader, names)
        slips += reader.token_problems(names) if offline else ()
        fleet = build_fleet(inputs, groups, load_gpus(), offline, slips)
        suites = _suites(options, reader, names)
        options = {**options, "kinds": _kinds(knowledge, options, suites)}
        wrong = request.check_request(options, canary_rules(options).wrong())
        if wrong:
            raise FleetError(wrong)
        latest = datetime.now(UTC) + timedelta(seconds=CLOCK_ERROR)
        checked = check_fleet(fleet, request.parse_request(options), latest.strftime("%Y-%m-%dT%H:%M:%SZ"))
        balancers, files = reader.balancers(offline), VaultReader(self._loader)
        going = {this_run().id, *(() if options["take_over"] else (lease.run for lease in foreign))}
        balancers = tuple(host.beside(going) for host in balancers)
        lock, fresh = self._pins(options, checked.candidates, reader, base)
        models = read_models(checked.candidates, base)
        policy = SecretsPolicy(
            make=options["apply"] and not self._task.check_mode,
            replace=tuple(options["new_secrets"]),
            check=not offline and options["operation"] != STOP,
            marks={host.name: host.state.instance_key for host in checked.fleet.hosts if host.state},
        )
        endpoint = load_endpoint(balancers, groups.get(FLEET, ()), base, policy, files)
        key = endpoint.assets.instance_key if endpoint else NO_KEY
        factory = InstanceFactory(knowledge, lock, load_renderer(), models, key, toolkit_release())
        former = former_balancers(
            {name: given.state for name, given in inputs.items()}, groups.get(BALANCERS, ())
        )
        former = with_removal(former, balancers, options["remove_load_balancer"])
        plan = news = replace(plan_fleet(checked, factory, endpoint, again), former=former)
        if again is not None:
            news = restrict_to(plan, again)
        else:
            late = outside_window(plan, latest) if not offline else ()
            if late and options["apply"] and not self._task.check_mode:
                raise FleetError(late)
            plan = replace(plan, warnings=(*plan.warnings, *(problem.text() for problem in late)))
            found = () if offline else resolve.access_warnings(checked.candidates, lock, fresh, reader.token)
            plan = news = replace(plan, warnings=(*plan.warnings, *warned(foreign), *found))
        others = set(groups.get(FLEET, ())) - set(names)
        data, rollout = plan.to_json(), request.requested_rollout(options, plan, endpoint, others)
        if rollout:
            data["rollout"] = rollout.to_json()
        new = request.requested_measurement(options, plan, rollout, endpoint)
        held = tuple(host for found in foreign.values() for host in found) if locking else None
        live = request.requested_live(options, plan)
        todo = live_todo(data, live) if live else todo_hosts(news, plan.balancers, data, rollout, held, new)
        warnings, cells = (
            _checked_cells(knowledge, suites, options["kinds"], todo) if any(suites.values()) else ((), ())
        )
        news = replace(news, warnings=(*news.warnings, *warnings))
        run, of_run = _benchmark_run(knowledge, options, reader, todo, cells, checked.fleet)
        lines = request.explain_request(options, plan, data, rollout, endpoint, others)
        proof, wrong = proved(options, plan, todo, rollout, endpoint)
        if wrong and (options["apply"] or options["operation"]):
            raise FleetError(wrong)
        lines += [*proof, *(f"site.yml and deploy.yml refuse this: {item.text()}" for item in wrong)]
        text = "\n".join([explain(news, options["explain"]), *lines, *of_run])
        self.show(f"\n{text}")
        if options["plan_file"]:
            # Also in check mode: it is what was asked for, and no change of the fleet.
            write_json(Path(options["plan_file"]), data)
        return {
            "changed": False,
            "plan": data,
            # What was not looked at is not acted on.
            "todo": [] if offline else todo,
            "rollout": rollout.to_json() if rollout else None,
            "kinds": list(options["kinds"]),
            "run": run,
            "partial": list(news.partial),
            "ignored": plan.ignored,
            "hold": request.hold_seconds(options, data),
            "changes": news.changes,
            "text": text,
        }

    def _pins(
        self, options: Mapping[str, Any], fleet: Fleet, reader: InventoryReader, base: Path
    ) -> tuple[Lock, Lock]:
        """Return all pins, which the lock file has afterwards, and those that this run resolved."""
        path = Path(options["lock_file"] or base / LOCK)
        kept = read_lock(path)
        if options["offline"]:
            return kept, Lock()
        refresh = options["refresh"] and options["again"] is None
        fresh = resolve.resolve_pins(fleet, kept, refresh, reader.token)
        lock = merge_built(fleet, merge_probed(fleet, kept.merged(fresh)))
        lock = resolve.confirm_pushes(fleet, lock, options["check_pushes"] or refresh)
        if lock != kept and not self._task.check_mode:
            lock = update_lock(path, kept, lock, refresh, write_json)
        return without_lost(fleet, lock) if refresh else lock, fresh

    def error_message(self, error: Exception, facts: Mapping[str, Any]) -> str:
        """Every problem of the input, with the place where it was written."""
        problems = error.problems if isinstance(error, FleetError) else ()
        reader = InventoryReader(facts)
        lines = [problem.text(reader.origin(problem), reader.deployment(problem)) for problem in problems]
        count = plural(len(lines), "problem")
        return f"The plan has {count}; nothing was changed.\n" + "\n".join(f"* {line}" for line in lines)


# What follows imports where it is needed: most runs measure no suite, and every run would wait for it.


def _wrong_suites(knowledge: Knowledge, raw: Mapping[str, Mapping[str, Any]]) -> Iterable[Problem]:
    """Return what is wrong with the suites of the hosts' variables."""
    if not any(SUITE_VARIABLES[0] in given for given in raw.values()):
        return ()
    from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.compose import wrong_suites

    return wrong_suites(knowledge, raw)


def _measuring(options: Mapping[str, Any]) -> str | None:
    """Return the operation of a run: BENCHMARK also of a deploy that measures."""
    return BENCHMARK if options["measure"] else options["operation"]


def _wrong_datasets(
    knowledge: Knowledge, options: Mapping[str, Any], reader: InventoryReader, names: Iterable[str]
) -> Iterable[Problem]:
    """Return what is wrong with the files of data sets that a run reads."""
    measuring = _measuring(options)
    if measuring not in (BENCHMARK, UPGRADE):
        return ()
    from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.datasets import (
        OF_OPERATIONS,
        wrong_datasets,
    )

    given = {name: reader.values(name, OF_OPERATIONS[measuring]) for name in names}
    return wrong_datasets(knowledge, measuring, given)


def _suites(
    options: Mapping[str, Any], reader: InventoryReader, names: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Return by what each host is measured: its suite, and what it leaves open; nothing of other runs."""
    if _measuring(options) != BENCHMARK:
        return {}
    return {name: reader.values(name, SUITE_VARIABLES) for name in names}


def _kinds(
    knowledge: Knowledge, options: Mapping[str, Any], suites: Mapping[str, Mapping[str, Any]]
) -> tuple[str, ...]:
    """Return the kinds of benchmarks of a run. Raise FleetError for suites that it cannot measure."""
    if not any(suites.values()):
        return tuple(options["kinds"]) or ("serve",)
    from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.request import (
        requested_kinds,
    )

    return requested_kinds(knowledge, suites, options["kinds"], options["measure"])


def _checked_cells(
    knowledge: Knowledge,
    suites: Mapping[str, Mapping[str, Any]],
    kinds: Sequence[str],
    todo: Iterable[Mapping[str, Any]],
) -> tuple[Sequence[str], Sequence[Any]]:
    """Return the warnings of suites, and their cells. Raise FleetError with what would make their measurement fail."""
    from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.request import (
        check_cells,
        measured_instances,
    )

    return check_cells(knowledge, suites, kinds, measured_instances(todo))


def _benchmark_run(
    knowledge: Knowledge,
    options: Mapping[str, Any],
    reader: InventoryReader,
    todo: Iterable[Mapping[str, Any]],
    cells: Sequence[Any],
    fleet: Fleet,
) -> tuple[dict[str, Any] | None, Sequence[str]]:
    """Return the run of a benchmark, and lines about one that goes on; None of another operation, or without one."""
    if options["operation"] != BENCHMARK:
        return None, ()
    from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.begin import (
        begin_run,
        benchmark_variables,
    )
    from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.suites.request import (
        measured_instances,
    )

    instances = measured_instances(todo)
    if not instances:
        return None, ()
    kept = {host.name: host.state.benchmarks for host in fleet.hosts if host.state}
    names = benchmark_variables(options["kinds"])
    given = {host: reader.values(host, names) for host in reader.hosts(options["hosts"])}
    return begin_run(knowledge, options, given, instances, cells, kept)


def canary_rules(options: Mapping[str, Any]) -> CanaryTolerances:
    """The operator's rules for canaries."""
    given = options["canary_terms"] or {}
    return CanaryTolerances(
        *(given.get(name, public_variables()[name].default) for name in request.CANARY_SETTINGS)
    )
