# SPDX-License-Identifier: Apache-2.0
"""Check a fleet before registries and hubs are contacted: which hosts can be planned, and where instances go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ....module_utils.common.errors import FleetError, Problem
from ....module_utils.service.generations import OperationRequest
from ..desired.exclusion import host_specific_reasons, joined_text, missing_gpu_reasons, without_excluded
from ..desired.fleet import Fleet
from ..generations.sources import NOT_REVIEWED, HoldReview, SourceSelection, choose_sources
from ..placement.layout import Layout, lay_out_fleet
from .stages import check_host

DEFAULT_REQUEST = OperationRequest()


@dataclass(frozen=True)
class CheckedFleet:
    """A fleet, where each of its deployments comes from in this run, and where their instances go.

    problems: of the layouts. now: when the run began (UTC), if that is known.
    """

    fleet: Fleet
    request: OperationRequest
    selection: SourceSelection
    layouts: Mapping[str, Layout]
    problems: tuple[Problem, ...] = ()
    now: str = ""

    @property
    def composed(self) -> Fleet:
        """Return the fleet with the deployments that are composed: those from records need nothing from elsewhere."""
        return self.selection.fleet

    @property
    def candidates(self) -> Fleet:
        """Return the fleet with these and the held deployments, which may turn out to be composed."""
        return self.selection.candidates


def check_fleet(
    fleet: Fleet,
    request: OperationRequest = DEFAULT_REQUEST,
    now: str = "",
    review: HoldReview = NOT_REVIEWED,
) -> CheckedFleet:
    """Lay out the instances on the hosts that can be planned, without contacting registries and hubs.

    review: of the holds. Raise FleetError for errors in the inventory and in the request, which leaving hosts out
    cannot solve.
    """
    fleet = without_excluded(fleet, request.operation)
    checked = _laid_out(fleet, request, now, review)
    unfit = {
        **{host.name: joined_text(check_host(host)) for host in checked.composed.hosts if check_host(host)},
        **host_specific_reasons(checked.composed, checked.problems),
        **missing_gpu_reasons(checked.composed, checked.problems),
    }
    if unfit:
        fleet = fleet.without(unfit)
        checked = _laid_out(fleet, request, now, review)
    raise_problems(checked.problems, fleet)
    return checked


def _laid_out(fleet: Fleet, request: OperationRequest, now: str, review: HoldReview) -> CheckedFleet:
    if fleet.excluded and not fleet.hosts:  # the hosts' own reasons say everything
        return CheckedFleet(fleet, request, SourceSelection(fleet, fleet, {}), {})
    try:
        selection = choose_sources(fleet, request, review, now)
    except FleetError as error:
        raise FleetError([*error.problems, *excluded_hosts(fleet)]) from None
    layouts, problems = lay_out_fleet(selection.fleet)
    return CheckedFleet(fleet, request, selection, layouts, problems, now)


def excluded_hosts(fleet: Fleet) -> Iterable[Problem]:
    """Yield the hosts that were left out: what a refused run misses may be on them."""
    for name, why in fleet.excluded:
        yield Problem((), f"is left out: {why}", "", (name,))


def raise_problems(problems: Iterable[Problem], fleet: Fleet) -> None:
    """Raise FleetError with these problems, if there are any, and with the hosts that were left out."""
    found = tuple(problems)
    if found:
        raise FleetError([*found, *excluded_hosts(fleet)])
