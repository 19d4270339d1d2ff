# SPDX-License-Identifier: Apache-2.0
"""An operator's ordinary edits, one by one: how many engines stay in service, and what the plan says to clients."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.clients import client_changes
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.rules import CAPACITY, IN_USE
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.text import (
    problems,
    proof_lines,
)

from tests.worlds.edited_fleet import Inventory, Planned, carried_out, edited, planned, settled
from tests.worlds.plan_world import deployment

HOSTS = {"n1": "192.0.2.11", "n2": "192.0.2.12"}
MODEL = "lab/tiny-llama"


def llama(**keys: Any) -> dict[str, Any]:
    """Two instances on each host."""
    return deployment(**{"gpus": [0, 1], "instances_per_host": 2, **keys})


BASE = Inventory(HOSTS, {"n1": "192.0.2.11"}, (llama(),))
SEQS = {"engine_args": {"max_num_seqs": 64}}
GREEN = deployment(name="green", gpus=[2, 3], instances_per_host=2, port=9000, **SEQS)
ELSEWHERE = {"lb": "192.0.2.1"}
NO_KEY = {"load_balancer_instance_auth": False}
ONE = {"gpus": [0], "instances_per_host": 1}

# What changes, the fewest of four engines in service of the model name before (None: it ends), and lines for clients.
EDITS: dict[str, tuple[dict[str, Any], int | None, list[str]]] = {
    "a flag": ({"deployments": (llama(**SEQS),)}, 2, []),
    "rename a deployment": ({"deployments": (llama(name="chat"),)}, 3, []),
    "rename it with its model name": (
        {"deployments": (llama(name="chat", served_model_name="chat"),)},
        None,
        [f"model {MODEL} ends with its last instance; clients ask for chat instead, which is served from its first "
         "instance on"],
    ),
    "add a served name": ({"deployments": (llama(served_model_name=[MODEL, "chat"]),)}, 2, []),
    "another served name": (
        {"deployments": (llama(served_model_name="chat"),)},
        None,
        [f"model {MODEL} ends with its last instance; clients ask for chat instead, which is served from its first "
         "instance on"],
    ),
    "another port": ({"deployments": (llama(port=8200),)}, 2, []),
    "ports that move up by one": ({"deployments": (llama(port=8001),)}, 2, []),
    "listen on all addresses": ({"deployments": (llama(listen="0.0.0.0"),)}, 2, []),
    "a second load balancer": ({"balancers": {**BASE.balancers, **ELSEWHERE}}, 2, []),
    "a second load balancer, and a flag": (
        {"balancers": {**BASE.balancers, **ELSEWHERE}, "deployments": (llama(**SEQS),)}, 2, [],
    ),
    "another deployment beside it, of the same name": ({"deployments": (llama(), GREEN)}, 4, []),
    "the other one instead": ({"deployments": (GREEN,)}, 4, []),
    "fewer instances": ({"deployments": (llama(**ONE),)}, 2, []),
    "more instances": ({"deployments": (llama(gpus=[0, 1, 2], instances_per_host=3),)}, 4, []),
    "other GPUs": ({"deployments": (llama(gpus=[2, 3]),)}, 2, []),
    "GPUs in another order": ({"deployments": (llama(gpus=[1, 0]),)}, 2, []),
    "one host only": ({"deployments": (llama(hosts=["n1"]),)}, 2, []),
    "one deployment becomes two": (
        {"deployments": (llama(**ONE), {**GREEN, **ONE, "gpus": [1]})}, 3, [],
    ),
    "another partition mode of a host": ({"modes": {"n1": "CPX"}}, 2, []),
    "another partition mode of all hosts": ({"modes": dict.fromkeys(HOSTS, "CPX")}, 2, []),
    "another key": ({"key": "second"}, 2, []),
    "instances without the key": ({"endpoint": NO_KEY}, 2, []),
    "instances without the key, which is another one": ({"endpoint": NO_KEY, "key": "second"}, 2, []),
    "a weight": ({"deployments": (llama(weight=2),)}, 4, []),
    "a host more": ({"hosts": {**HOSTS, "n3": "192.0.2.13"}}, 4, []),
    "a host less": ({"hosts": {"n1": "192.0.2.11"}}, 2, []),
    "a host at another address": ({"hosts": {"n1": "192.0.2.11", "n2": "198.51.100.12"}}, 2, []),
}  # fmt: skip


def deployed(
    operation: str = "deploy", base: Inventory = BASE, canary: bool = True, **changes: Any
) -> Planned:
    return planned(edited(base, **changes), settled(base), operation, canary=canary)


@pytest.mark.parametrize("name", EDITS)
def test_what_stays_in_service(name: str) -> None:
    changes, least, clients = EDITS[name]
    done = deployed(**changes)
    found = done.simulate()
    assert found.violations == ()
    assert found.least.get(("n1", MODEL)) == least
    assert client_changes(done.plan) == clients
    inventory = edited(BASE, **changes)
    after = carried_out(done, inventory, settled(BASE))
    assert planned(inventory, after).plan.changes == 0


def test_instances_that_ask_for_the_key_again_one_that_came_meanwhile() -> None:
    done = deployed(base=edited(BASE, endpoint=NO_KEY), endpoint={}, key="second")
    found = done.simulate()
    assert (found.violations, found.least.get(("n1", MODEL))) == ((), 2)


def test_the_first_load_balancer_with_an_edit_of_a_deployment() -> None:
    alone = edited(BASE, balancers={})
    done = deployed(base=alone, balancers=ELSEWHERE, deployments=(llama(**SEQS),))
    assert done.simulate().violations == ()
    (balancer,) = [item for item in done.todo if item["name"] == "lb"]
    assert balancer["plan"]["balancer"]["first"]  # instances are drained from it before they change


def test_no_load_balancer_is_left() -> None:
    done = deployed(balancers={}, deployments=(llama(**SEQS),))
    assert done.simulate().violations == ()


def test_what_a_plan_says() -> None:
    done = deployed(deployments=(llama(name="chat"),))
    assert proof_lines(done.simulate()) == ["llama: never fewer than 3 of 4 in service"]
    assert proof_lines(deployed(deployments=(llama(), GREEN)).simulate()) == [
        "llama: all 4 that serve stay in service"
    ]
    assert proof_lines(deployed().simulate()) == []  # nothing changes


def test_clients_that_ask_instances_themselves() -> None:
    alone = edited(BASE, balancers={})
    done = deployed(base=alone, deployments=(llama(port=8200),))
    assert client_changes(done.plan) == [
        f"clients that ask llama on {host} directly find it at port 8200, 8201 instead of 8000, 8001 once it has "
        "changed"
        for host in ("n1", "n2")
    ]


def test_the_steps_of_a_plan_in_a_wrong_order_are_refused_with_the_edit_and_the_way_out() -> None:
    """As if no load balancer were asked to drain what a batch changes."""
    done = deployed(deployments=(llama(**SEQS),), canary=False)
    for item in done.todo:
        for phases in item["plan"].get("rollout", {}).get("steps", {}).values():
            phases.pop("drain", None)
    found = done.simulate()
    assert {item.rule for item in found.violations} >= {IN_USE}
    (first, *_) = problems(found, done.plan)
    assert (
        "phase serve: llama-0 stops while requests are sent to it by n1 as llama/n1.llama-0:8000"
        in first.what
    )
    assert first.what.endswith("The change: llama-0: its specification changed.")
    assert first.fix.endswith("or accept that clients get 503 in the meantime: -e at_once=true.")
    assert done.simulate(at_once=True).violations == ()


def test_too_few_in_service() -> None:
    done = deployed(deployments=(llama(**SEQS),))
    found = done.simulate(min_available="100%")
    assert [item.rule for item in found.violations] == [CAPACITY]
    assert found.violations[0].what == (
        f"load balancer n1 would have 2 of 4 engines of llama ({MODEL}) in service, and 4 must stay"
    )


@pytest.mark.parametrize("operation", ["upgrade", "deploy"])
def test_a_minimum_that_no_order_keeps_is_refused_before(operation: str) -> None:
    with pytest.raises(FleetError) as error:
        planned(edited(BASE, deployments=(llama(**SEQS),)), settled(BASE), operation, min_available="100%")
    assert "Capacity does not allow even one change at a time" in error.value.problems[0].text()


@pytest.mark.parametrize(("operation", "least"), [("restart", 3), ("benchmark", 3)])
def test_operations_that_change_nothing(operation: str, least: int) -> None:
    found = deployed(operation).simulate()
    assert (found.violations, found.least["n1", MODEL]) == ((), least)


def test_a_stop_leaves_nothing_in_service() -> None:
    done = planned(BASE, settled(BASE), "stop", at_once=True)
    found = done.simulate(at_once=True)
    assert (found.violations, found.least["n1", MODEL]) == ((), 0)
    assert [item.rule for item in done.simulate().violations] == [CAPACITY]
