# SPDX-License-Identifier: Apache-2.0
"""What a run is planned from: what the operator said, what was observed, and what else was read for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ....module_utils.common.errors import Problem
from ...knowledge.catalog.gpus import GpuCatalog
from ..desired.endpoint_settings import BalancerHost
from ..desired.fleet import Fleet, HostInput
from ..endpoint.plan import EndpointInputs
from ..instances.factory import InstanceFactory
from ..inventory.groups import FLEET
from ..pins.lockfile import Lock
from ..plan.check import CheckedFleet
from .request import Options


@dataclass(frozen=True)
class OtherRuns:
    """Other runs whose leases hosts have.

    refusals: why this one may not change anything meanwhile. hosts: those with such a lease.
    """

    refusals: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """What a run is planned from before anything is asked of registries, hubs and vaults.

    options: of the module; `kinds` names the benchmarks of the run. hosts: of this run, with variables and states.
    groups: of the inventory, with all their hosts. problems: of variables, found while they were read.
    request_problems: of what is to be measured. latest: no record of a host can be from later. check_mode: nothing is
    changed.
    """

    options: Options
    hosts: Mapping[str, HostInput]
    groups: Mapping[str, Sequence[str]]
    gpus: GpuCatalog
    latest: datetime
    problems: tuple[Problem, ...] = ()
    request_problems: tuple[Problem, ...] = ()
    others: OtherRuns = OtherRuns()
    check_mode: bool = False

    @property
    def applies(self) -> bool:
        """Return whether the run carries out the plan itself."""
        return bool(self.options["apply"]) and not self.check_mode

    @property
    def changes(self) -> bool:
        """Return whether the run changes hosts, or works on what serves, so that it takes their leases."""
        return bool(self.options["apply"] or self.options["operation"]) and not self.check_mode

    @property
    def elsewhere(self) -> set[str]:
        """Return the fleet's GPU hosts that are not in this run."""
        return set(self.groups.get(FLEET, ())) - set(self.hosts)


@dataclass(frozen=True, kw_only=True)
class DesiredRun(RunInputs):
    """fleet: what the inventory says of each host, validated, with what was observed there."""

    fleet: Fleet


@dataclass(frozen=True, kw_only=True)
class CheckedRun(DesiredRun):
    """checked: where deployments come from and where their instances go, as far as hosts alone can tell."""

    checked: CheckedFleet


@dataclass(frozen=True)
class Resources:
    """What a checked run needs from elsewhere: pins, models, load balancers, secrets.

    resolved: the pins that this run has just resolved, which therefore may be fetched.
    """

    factory: InstanceFactory
    balancers: tuple[BalancerHost, ...] = ()
    endpoint: EndpointInputs | None = None
    resolved: Lock = field(default_factory=Lock)
