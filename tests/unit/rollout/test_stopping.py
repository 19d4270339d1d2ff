# SPDX-License-Identifier: Apache-2.0
"""Commands that stop what serves for a while: what they know of the fleet, and hosts by hosts that can be spared."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    DEPLOY,
    STOP,
    OperationRequest,
)
from ansible_collections.instinct.fleet.plugins.module_utils.service.minimum import ServingEngine
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    NOT_IN_RUN,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.plan import (
    EndpointAssets,
    EndpointInputs,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.plan import plan_rollout_steps
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.policy import RolloutRequest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.preconditions import (
    undrained_hosts,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.stopping import (
    HostStops,
    stop_problems,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.request import (
    OPTIONS,
    explain_request,
    requested_rollout,
)

from tests.worlds.balancer_world import DRAW, applied, host
from tests.worlds.plan_world import deployment
from tests.worlds.rollout_balancer_world import PAIR, States, planned, served


def engines(**hosts: str) -> list[ServingEngine]:
    """The engines of hosts: S serves, d does not."""
    return [
        ServingEngine("llama", f"llama-{index}", (name,), letter == "S", False)
        for name, letters in hosts.items()
        for index, letter in enumerate(letters)
    ]


EIGHT = {f"n{number}": "SS" for number in range(1, 9)}
TWENTY = [f"n{number}" for number in range(20)]
OVER = ServingEngine("wide", "wide-0", ("n1", "n2"), True, False)
ALONE = "no other load balancer answers, so no client would be served meanwhile."


def up(count: int) -> list[ServingEngine]:
    """One engine on each of twenty hosts, of which this many serve."""
    return engines(**{name: "S" if number < count else "d" for number, name in enumerate(TWENTY)})


@pytest.mark.parametrize(
    ("there", "stops", "said"),
    [
        (engines(**EIGHT), HostStops(list(EIGHT)), ""),
        (engines(**EIGHT), HostStops(list(EIGHT), (1, "50%")), ""),
        (engines(**EIGHT), HostStops(list(EIGHT), ("60%",)), ""),
        (engines(**EIGHT), HostStops(list(EIGHT), ("70%",)), "16 of 16 serve; this would leave 6, and 8 must stay"),
        (engines(**EIGHT), HostStops(["n1", "n2"], (2,)), ""),
        (engines(n1="SS", n2="SS"), HostStops(["n1", "n2"], (2,)), "this would leave 0, and 2 must stay in service "
         "(rollout_min_available: 50%). Take fewer at a time: --limit n1."),
        (engines(n1="SS", n2="SS"), HostStops(["n1", "n2"], (2,), "serial"), "(rollout_min_available: 50%). One host "
         "at a time can: -e serial=1. To do it anyway: -e at_once=true."),
        # The first one alone, then four.
        (up(20), HostStops(TWENTY), ""),
        (up(14), HostStops(TWENTY), ""),
        (up(13), HostStops(TWENTY, variable="serial"), "13 of 20 serve; this would leave 9, and 10 must stay in "
         "service (rollout_min_available: 50%). One host at a time can: -e serial=1."),
        (up(10), HostStops(TWENTY, variable="serial"), "10 of 20 serve; this would leave 9, and 10 must stay"),
        (up(10), HostStops(TWENTY[10:]), ""),
        # What does not serve stops whenever it likes to.
        (engines(n1="dd"), HostStops(["n1"]), ""),
        (engines(n1="dd", n2="SS"), HostStops(["n1"]), ""),
        (engines(n1="dd", n2="SS"), HostStops(["n1", "n2"]), "2 of 4 serve; this would leave 0"),
        ([], HostStops(["n1", "n2", "n3"]), ""),
        ([], HostStops([]), ""),
        # The only host: no part of it is offered, as all of it stops.
        (engines(n1="SS"), HostStops(["n1"]), "the last one must stay in service. First return others"),
        (engines(n1="S"), HostStops(["n1"], min_available=0), "the last one must stay in service."),
        (engines(n1="SS", n2="SS"), HostStops(["n1"], min_available="75%"), "3 must stay in service"),
        # An engine over two hosts is out until both are done, whichever comes first.
        ([OVER, replace(OVER, hosts=("n3", "n4"))], HostStops(["n1", "n2"]), ""),
        ([OVER, replace(OVER, hosts=("n3", "n4"))], HostStops(["n1", "n3"]), "wide: 2 of 2 serve"),
        # A load balancer is left.
        ([], HostStops(["n1", "n2"], (2,), balancers=frozenset(["n1", "n2"])), f"n1, n2: {ALONE}"),
        ([], HostStops(["n1", "n2"], balancers=frozenset(["n1", "n2"])), ""),
        ([], HostStops(["n1", "n2"], (2,), balancers=frozenset(["n1", "lb"])), ""),
        ([], HostStops(["n2", "n1"], balancers=frozenset(["n1"])), f"n1: {ALONE} Start another one first"),
    ],
)  # fmt: skip
def test_how_many_hosts_at_a_time(there: Any, stops: HostStops, said: str) -> None:
    problems = stop_problems(there, stops)
    assert bool(problems) == bool(said), problems
    assert said in "".join(problem.text() for problem in problems)
    for problem in problems:
        assert problem.fix.endswith(": -e at_once=true.")
        assert "instance=" not in problem.fix


def refused(
    states: States, balancer: Any, *hosts: str, unreachable: Mapping[str, str] | None = None
) -> list[str]:
    """The problems of a stop of all that runs on these hosts."""
    plan = planned(states, PAIR, [balancer], OperationRequest(STOP))
    here = tuple(item for item in plan.hosts if item.host.name in hosts)
    plan = replace(plan, hosts=here, unreachable=tuple((unreachable or {}).items()))
    return [problem.text() for problem in plan_rollout_steps(plan, RolloutRequest(STOP))[1]]


@pytest.mark.parametrize(
    ("only", "stopped"), [(None, {"n1", "n2"}), (["n1"], {"n1"}), (["n3"], set()), ([], set())]
)
def test_only_some_hosts_of_the_run_stop(only: list[str] | None, stopped: set[str]) -> None:
    """As those that forget.yml takes apart: a load balancer's own instances go on."""
    states, (balancer,) = served(PAIR)
    plan = planned(states, PAIR, [balancer], OperationRequest(STOP))
    made, problems = plan_rollout_steps(plan, RolloutRequest(STOP, hosts=only))
    assert set(made.hosts) == stopped
    assert bool(problems) is (len(stopped) == 2)  # the minimum counts those that go on


def test_hosts_outside_the_run_count_as_the_load_balancers_have_them() -> None:
    states, (balancer,) = served(PAIR)
    assert refused(states, balancer, "n1") == []
    (text,) = refused(states, balancer, "n1", "n2")
    assert text.startswith(
        "llama: 4 of 4 serve; this would leave 0, and 2 must stay in service (rollout_min_available: 50%)."
    )
    # A host that was not reached is no capacity; nor is what the operator drained there.
    (text,) = refused(states, balancer, "n1", unreachable={"n2": "no route to host"})
    assert text.startswith("llama: 2 of 4 serve; this would leave 0")
    names = [f"llama/n2.llama-{number}:{8000 + number}" for number in range(2)]
    drained = {name: {"state": "drain", "by": "operator", "since": ""} for name in names}
    there = applied(planned(states, PAIR, [balancer]).balancers[0], out=drained)
    (text,) = refused(states, host(there), "n1")
    assert text.startswith("llama: 2 of 4 serve; this would leave 0")


# ---- other partition modes ---------------------------------------------------------------------------


def modes(states: States, *hosts: str) -> States:
    """The hosts' GPUs have other modes than the inventory wants."""
    found = copy.deepcopy(states)
    for name in hosts:
        found[name]["gpus"][0]["compute_partition"] = "CPX"
    return found


def asked(
    states: States,
    balancers: Any,
    others: Sequence[str] = (),
    endpoint: EndpointInputs | None = None,
    **given: Any,
) -> str:
    """Why a run that changes modes is refused; "" if it is not. It tells a run that only plans the same."""
    plan = planned(states, PAIR, balancers, gpu_partition_compute="SPX")
    plan = replace(plan, hosts=tuple(item for item in plan.hosts if item.host.name not in others))
    options = {name: option.get("default") for name, option in OPTIONS.items()}
    options |= {"apply": True, "operation": None, **given}
    printed = "\n".join(
        explain_request({**options, "apply": False}, plan, plan.to_json(), None, endpoint, others)
    )
    try:
        requested_rollout(options, plan, endpoint, others)
    except FleetError as error:
        text = str(error)
        assert text in printed
        return text
    assert "refuse this" not in printed or given
    return ""


def test_modes_change_where_enough_goes_on_serving() -> None:
    states, (balancer,) = served(PAIR)
    both = modes(states, "n1", "n2")
    assert asked(both, [balancer]) == asked(both, []) == ""
    text = asked(both, [balancer], partition_serial=2)
    assert text.startswith(
        "llama: 4 of 4 serve; this would leave 0, and 2 must stay in service (rollout_min_available: 50%)."
    )
    assert text.endswith(
        "One host at a time can: -e gpu_partition_serial=1. To do it anyway: -e at_once=true."
    )
    assert asked(both, [balancer], partition_serial=2, at_once=True) == ""
    assert asked(both, [balancer], operation=DEPLOY, partition_serial=2) == text
    assert asked(both, [balancer], min_available="75%").startswith(
        "llama: 4 of 4 serve; this would leave 2, and 3 must stay"
    )
    assert "gpu_partition_serial: 'x' is not a number" in asked(both, [balancer], partition_serial="x")
    # With --limit: what the load balancer has there counts, and decides. Without one, nothing is known.
    assert asked(modes(states, "n1"), [balancer], others=["n2"]) == ""
    assert asked(modes(states, "n1"), [], others=["n2"]) == ""


def test_modes_do_not_change_where_the_others_are_down() -> None:
    states, (balancer,) = served(PAIR)
    down = modes(states, "n1")
    for item in down["n2"]["instances"]:
        item.update(state="exited", exit_code=1, ready=False)
    for balancers in ([balancer], []):
        text = asked(down, balancers)
        assert text.startswith(
            "llama: 2 of 2 serve; this would leave 0, and the last one must stay in service."
        ), text
        assert "First return others to service (undrain.yml; status.yml shows them)." in text
    assert asked(modes(down, "n2"), [balancer], at_once=True) == ""


def left_out(name: str, why: str = NOT_IN_RUN) -> EndpointInputs:
    """A load balancer without a state."""
    balancer = replace(host(name=name), observed=None, absent=why)
    return EndpointInputs((balancer,), frozenset(["n1", "n2"]), EndpointAssets(DRAW, "agent\n", {}))


def test_modes_do_not_change_where_a_balancer_that_may_use_the_host_is_left_out() -> None:
    states, (balancer,) = served(PAIR)
    changed = modes(states, "n1")
    said = (
        "--limit: instances cannot be drained from load balancer lb before they change: it is not part of this run "
        "(add it to --limit). Run without --limit, or with lb in it. To stop them anyway, and lose the requests "
        "in progress: -e at_once=true."
    )
    for operation in (None, DEPLOY):
        assert asked(changed, [], ["n2"], left_out("lb"), operation=operation) == said
        assert asked(changed, [], ["n2"], left_out("lb"), operation=operation, at_once=True) == ""
    # One of two is left out.
    assert said.replace(" lb ", " far ") in asked(changed, [balancer], ["n2"], left_out("far"))
    # A dead one is only a warning.
    assert asked(changed, [], ["n2"], left_out("lb", "No route to host")) == ""
    # Reboots and burn-ins drain in all load balancers by themselves.
    assert asked(states, [], ["n2"], left_out("lb"), apply=False, reboots=["n1"]) == ""
    assert asked(states, [], ["n2"], left_out("lb"), apply=False, stops=["n1"]) == ""
    for item in changed["n1"]["instances"]:
        item.update(state="exited", exit_code=1, ready=False)
    assert asked(changed, [], ["n2"], left_out("lb")) == ""


def test_what_no_balancer_uses_may_change_without_it() -> None:
    found = {}
    for endpoint in (True, False):
        own = [deployment(gpus=[0, 1], instances_per_host=2, endpoint=endpoint)]
        plan = planned(modes(served(own)[0], "n1"), own, [], gpu_partition_compute="SPX")
        found[endpoint] = len(undrained_hosts(plan, ["n1"], [("lb", NOT_IN_RUN)]))
        assert undrained_hosts(plan, [], [("lb", NOT_IN_RUN)]) == ()
    assert found == {True: 1, False: 0}


# ---- reboots -----------------------------------------------------------------------------------------


def test_a_host_reboots_where_the_others_serve() -> None:
    states, (balancer,) = served(PAIR)
    assert asked(states, [balancer], apply=False, reboots=["n1", "n2"]) == ""
    text = asked(states, [balancer], apply=False, reboots=["n1", "n2"], reboot_serial=2)
    assert text.startswith("llama: 4 of 4 serve; this would leave 0, and 2 must stay in service")
    assert "One host at a time can: -e host_prep_serial=1." in text
    assert asked(states, [balancer], apply=False, reboots=["n1", "n2"], reboot_serial=2, at_once=True) == ""
    for item in states["n2"]["instances"]:
        item.update(state="exited", exit_code=1, ready=False)
    assert "llama: 2 of 2 serve" in asked(states, [balancer], apply=False, reboots=["n1"])
    assert asked(states, [balancer], apply=False, reboots=["n2"]) == ""


@pytest.mark.parametrize(
    ("balancers", "down", "said"),
    [
        (["n1"], [], f"n1: {ALONE} Start another one first (group load_balancer, site.yml), or"),
        (["n1", "far"], ["far"], f"n1: {ALONE}"),
        (["n1", "far"], [], ""),
        (["n1", "n2"], [], ""),
        (["n1", "n2"], ["n1"], f"n2: {ALONE}"),
        (["far"], [], ""),
        (["far"], ["far"], ""),
        (["n1"], ["n1"], ""),
    ],
)
def test_the_host_of_the_last_load_balancer_does_not_reboot(
    balancers: list[str], down: list[str], said: str
) -> None:
    states, running = served(PAIR, *balancers)
    plans = {item.host.name: item for item in planned(states, PAIR, running).balancers}
    there = [
        host(applied(plans[item.name], running=False), name=item.name) if item.name in down else item
        for item in running
    ]
    text = asked(states, there, apply=False, reboots=["n1", "n2"])
    assert text.startswith(said)
    assert bool(text) == bool(said), text
    assert asked(states, there, apply=False, reboots=["n1", "n2"], at_once=True) == ""


# ---- burn-ins, which need all GPUs of a host ---------------------------------------------------------


def test_instances_stop_for_a_burn_in_where_others_serve() -> None:
    states, (balancer,) = served(PAIR)
    assert asked(states, [balancer], apply=False, stops=["n1"]) == ""
    text = asked(states, [balancer], apply=False, stops=["n1", "n2"])
    assert text.startswith(
        "llama: 4 of 4 serve; this would leave 0, and 2 must stay in service (rollout_min_available: "
    )
    assert "Take fewer at a time: --limit n1,lb." in text
    assert asked(states, [balancer], apply=False, stops=["n1", "n2"], at_once=True) == ""
