# SPDX-License-Identifier: Apache-2.0
"""Read what a run is planned from: variables and states of hosts, pins, secrets, other runs. Control node only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from ansible.parsing.dataloader import DataLoader

from ...module_utils.common.errors import FleetError, Problem
from ...module_utils.credentials.instance_key import NO_KEY
from ...module_utils.service.generations import BENCHMARK, STOP, UPGRADE
from ..base.text import plural
from ..knowledge.catalog.load import Knowledge, load_gpus
from ..knowledge.catalog.release import toolkit_release
from ..planning.desired.inventory_check import conflict_problems
from ..planning.desired.variables import InventoryReader
from ..planning.endpoint.assets import SecretsPolicy, VaultReader, load_endpoint
from ..planning.fetching.builds import drop_lost_builds, merge_built
from ..planning.instances.benchmark import unknown_benchmark_arguments
from ..planning.instances.factory import InstanceFactory
from ..planning.instances.render import load_renderer
from ..planning.inventory.groups import BALANCERS, FLEET
from ..planning.inventory.public_variables import public_variables
from ..planning.pins.lockfile import LOCK, Lock
from ..planning.resolving import resolve
from ..planning.resolving.lock_file import read_lock, update_lock
from ..planning.resolving.model_sources import read_models
from ..planning.rollout_run.inputs import CheckedRun, OtherRuns, Resources, RunInputs
from ..planning.rollout_run.passes import PlannedRun
from ..planning.rollout_run.request import Options
from ..planning.tuning.image_software import merge_probed
from .action_base import write_json
from .runs import Lease, other_runs, refused_plan, run_warnings, this_run

SUITE_VARIABLES = ("benchmark_suite", "benchmark_suite_args")
CLOCK_ERROR = 60
"""Seconds by which the clocks of the machines that playbooks run on may differ."""


@dataclass(frozen=True)
class RunReading:
    """Reads what a run is planned from, step by step, as the passes ask for it."""

    options: Options
    reader: InventoryReader
    loader: DataLoader
    knowledge: Knowledge
    check_mode: bool = False

    @cached_property
    def names(self) -> list[str]:
        """The hosts of the run."""
        return self.reader.hosts(self.options["hosts"])

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """The groups of the inventory, each with all its hosts."""
        return self.reader.groups()

    @cached_property
    def everyone(self) -> list[str]:
        """The hosts of the run, and all load balancers."""
        return list(dict.fromkeys([*self.names, *self.groups.get(BALANCERS, ())]))

    @cached_property
    def base(self) -> Path:
        """The inventory's directory."""
        return self.reader.inventory_directory(self.names)

    @cached_property
    def foreign(self) -> dict[Lease, list[str]]:
        """The leases of other runs, with their hosts."""
        asked = [] if self.options["offline"] else self.everyone
        return other_runs({name: Lease.from_json(self.reader.lease(name)) for name in asked})

    def inputs(self) -> RunInputs:
        """Return what the operator said, and what was observed. Raise FleetError for a variable that has no value."""
        hosts = {name: self.reader.host(name, self.options["offline"]) for name in self.names}
        foreign = self.foreign
        others = OtherRuns(
            refused_plan(foreign),
            run_warnings(foreign),
            tuple(host for found in foreign.values() for host in found),
        )
        kinds, wrong = self._kinds()
        return RunInputs(
            options={**self.options, "kinds": kinds},
            hosts=hosts,
            groups=self.groups,
            gpus=load_gpus(),
            latest=datetime.now(UTC) + timedelta(seconds=CLOCK_ERROR),
            problems=tuple(self._problems()),
            request_problems=wrong,
            others=others,
            check_mode=self.check_mode,
        )

    def _problems(self) -> Iterable[Problem]:
        """Yield what is wrong with variables as they are written; a second plan knows it from the first."""
        reader, names = self.reader, self.names
        first = self.options["again"] is None
        if first:
            yield from reader.misspelled(self.everyone, public_variables())
            yield from conflict_problems(reader, self.everyone, self.loader)
        yield from reader.same_machine(names)
        yield from reader.clear_text_tokens(names)
        raw = {name: reader.raw(name) for name in names}
        yield from unknown_benchmark_arguments(self.knowledge, raw)
        yield from _wrong_suites(self.knowledge, raw)
        if first:
            yield from self._wrong_datasets()
        if self.options["offline"]:
            yield from reader.token_problems(names)

    def _wrong_datasets(self) -> Iterable[Problem]:
        """Return what is wrong with the files of data sets that the run reads."""
        measuring = measuring_operation(self.options)
        if measuring not in (BENCHMARK, UPGRADE):
            return ()
        from ..measuring.suites.datasets import OF_OPERATIONS, wrong_datasets  # as _wrong_suites

        given = {name: self.reader.values(name, OF_OPERATIONS[measuring]) for name in self.names}
        return wrong_datasets(self.knowledge, measuring, given)

    def _kinds(self) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
        """Return the benchmarks of the run, and why its suites cannot be measured."""
        suites = self._suites()
        if not any(suites.values()):
            return tuple(self.options["kinds"]) or ("serve",), ()
        from ..measuring.suites.request import requested_kinds  # as _wrong_suites

        try:
            kinds = requested_kinds(self.knowledge, suites, self.options["kinds"], self.options["measure"])
        except FleetError as error:
            return (), error.problems
        return kinds, ()

    def _suites(self) -> dict[str, dict[str, Any]]:
        """Return what each host is measured with: its suite, and what that leaves open; {} for other runs."""
        if measuring_operation(self.options) != BENCHMARK:
            return {}
        return {name: self.reader.values(name, SUITE_VARIABLES) for name in self.names}

    def resources(self, run: CheckedRun) -> Resources:
        """Return pins, models, load balancers and secrets; what is missing is queried and stored."""
        options, fleet = run.options, run.checked.candidates
        going = {this_run().id, *(() if options["take_over"] else (lease.run for lease in self.foreign))}
        balancers = tuple(host.with_runs(going) for host in self.reader.balancers(options["offline"]))
        lock, resolved = self._pins(run)
        models = read_models(fleet, self.base)
        policy = SecretsPolicy(
            make=run.applies,
            replace=tuple(options["new_secrets"]),
            check=not options["offline"] and options["operation"] != STOP,
            marks={host.name: host.state.instance_key for host in run.checked.fleet.hosts if host.state},
        )
        members = self.groups.get(FLEET, ())
        endpoint = load_endpoint(balancers, members, self.base, policy, VaultReader(self.loader))
        key = endpoint.assets.instance_key if endpoint else NO_KEY
        factory = InstanceFactory(self.knowledge, lock, load_renderer(), models, key, toolkit_release())
        return Resources(factory, balancers, endpoint, resolved)

    def _pins(self, run: CheckedRun) -> tuple[Lock, Lock]:
        """Return all pins, as the lock file has them afterwards, and those that this run resolved."""
        options, fleet = run.options, run.checked.candidates
        path = Path(options["lock_file"] or self.base / LOCK)
        kept = read_lock(path)
        if options["offline"]:
            return kept, Lock()
        refresh = options["refresh"] and options["again"] is None
        fresh = resolve.resolve_pins(fleet, kept, refresh, self.reader.token)
        lock = merge_built(fleet, merge_probed(fleet, kept.merged(fresh)))
        lock = resolve.confirm_pushes(fleet, lock, options["check_pushes"] or refresh)
        if lock != kept and not self.check_mode:
            lock = update_lock(path, kept, lock, refresh, write_json)
        return drop_lost_builds(fleet, lock) if refresh else lock, fresh

    def access_warnings(self, run: PlannedRun) -> tuple[str, ...]:
        """Return where hosts may be refused what they would fetch. Raise FleetError where they certainly are."""
        if run.options["again"] is not None or run.options["offline"]:
            return ()
        resources = run.resources
        lock, fleet = resources.factory.lock, run.checked.candidates
        return resolve.access_warnings(fleet, lock, resources.resolved, self.reader.token)


def measuring_operation(options: Options) -> str | None:
    """Return the operation of a run: BENCHMARK also for a deploy that measures."""
    return BENCHMARK if options["measure"] else options["operation"]


def plan_problems(reader: InventoryReader, problems: Sequence[Problem]) -> str:
    """Return the message of a plan that is refused: every problem, with the place where it was written."""
    lines = [problem.text(reader.origin(problem), reader.deployment(problem)) for problem in problems]
    head = f"The plan has {plural(len(lines), 'problem')}; nothing was changed."
    return "\n".join([head, *(f"* {line}" for line in lines)])


def _wrong_suites(knowledge: Knowledge, raw: Mapping[str, Mapping[str, Any]]) -> Iterable[Problem]:
    """Return what is wrong with the suites of the hosts' variables."""
    if not any(SUITE_VARIABLES[0] in given for given in raw.values()):
        return ()
    # Imported here, as most runs measure no suite, and every run would wait for these imports.
    from ..measuring.suites.compose import wrong_suites

    return wrong_suites(knowledge, raw)
