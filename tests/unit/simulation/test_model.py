# SPDX-License-Identifier: Apache-2.0
"""The model of a fleet: who answers where a load balancer asks, and how many are in service after each change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.model import FORMER, PRESENT

from tests.worlds.simulated_fleet import balancer, fleet, running, server

ALL = "192.0.2.11"
KEYED = {"key": FORMER}


@pytest.mark.parametrize(
    ("item", "asked", "lb", "heard"),
    [
        (running(), server(), {}, True),
        (running(port=8001), server(), {}, False),
        (running(listen="198.51.100.1"), server(), {}, False),
        (running(listen="198.51.100.1"), server(address="198.51.100.1"), {}, True),
        (running(listen="0.0.0.0"), server(), {}, True),
        (running(listen="0.0.0.0"), server(address="198.51.100.1"), {}, False),
        (running(listen="0.0.0.0"), server(address="127.0.0.1"), {}, False),
        (running(listen="0.0.0.0"), server(address="127.0.0.1"), {"name": "n1"}, True),
        (running(listen="127.0.0.1"), server(address="127.0.0.1"), {"name": "n1"}, True),
        (running(listen="127.0.0.1"), server(address="127.0.0.1"), {"name": "n2"}, False),
        (running(listen="127.0.0.1"), server(), {"name": "n1"}, False),
        (running(), server(address="127.0.0.1"), {"name": "n1"}, False),
        (running("n9", listen="::"), server("n9", address="203.0.113.1"), {}, True),  # an unknown host's address
        # A host outside the inventory whose address is that of one inside is that one.
        (running(), server("gone", address=ALL), {}, True),
        (running(), server("gone", address="203.0.113.1"), {}, False),
        (running(listen="127.0.0.1"), server("gone", address="127.0.0.1"), {"name": "n1"}, True),
        (running(listen="127.0.0.1"), server("gone", address="127.0.0.1"), {}, False),
        # The key.
        (running(key=PRESENT), server(), {}, False),
        (running(key=PRESENT), server(), {"key": FORMER}, False),
        (running(key=PRESENT), server(), {"key": PRESENT}, True),
        (running(key=FORMER), server(), {"key": PRESENT}, False),
        (running(), server(), {"key": PRESENT}, True),
    ],
)  # fmt: skip
def test_who_answers(item: Any, asked: Any, lb: dict[str, Any], heard: bool) -> None:
    there = balancer(asked, **lb)
    model = fleet(item, lbs=(there,))
    name = f"b/{asked.name}"
    assert model.listener(there.name, asked) == (item if heard else None)
    assert model.serves(there.name, name) is heard
    assert model.asked(item.of) == ([(there.name, name)] if heard else [])
    assert model.counts.get((there.name, "m"), 0) == int(heard)


def test_a_host_with_the_present_key_takes_it_beside_the_one_of_its_instances() -> None:
    model = fleet(
        running(key=FORMER), running("n2", key=FORMER), lbs=(balancer(server(), server("n2"), key=PRESENT),)
    )
    assert model.counts.get(("lb", "m"), 0) == 0
    model.give_key("n1")
    assert model.counts["lb", "m"] == 1
    assert model.changed == {("lb", "m")}
    assert model.serves("lb", f"b/{server().name}")


@pytest.mark.parametrize(
    ("change", "served"),
    [
        ({}, True),
        ({"ready": False}, False),
        ({"models": ("other",)}, False),
        ({"models": ("other", "m")}, True),
    ],
)
def test_what_an_instance_has_to_be(change: dict[str, Any], served: bool) -> None:
    model = fleet(running(**change), lbs=(balancer(server()),))
    assert model.serves("lb", "b/n1.llama-0:8000") is served


@pytest.mark.parametrize(
    ("change", "served"),
    [({}, True), ({"exists": False}, False), ({"drained": {"b/n1.llama-0:8000"}}, False),
     ({"unproven": {"b/n1.llama-0:8000"}}, False), ({"absent": True}, True)],
)  # fmt: skip
def test_what_a_load_balancer_has_to_be(change: dict[str, Any], served: bool) -> None:
    there = balancer(server())
    for name, value in change.items():
        setattr(there, name, value)
    model = fleet(running(), lbs=(there,))
    assert model.serves("lb", "b/n1.llama-0:8000") is served
    # What may be checked at any moment may be asked from then on.
    assert bool(model.asked(("n1", "llama-0"))) is ((served or bool(there.unproven)) and not there.absent)


def test_the_first_name_of_a_server_decides_whether_it_is_in_service() -> None:
    """And each name counts where the instance has it."""
    there = balancer(server(models=("m", "x")), server("n2", models=("x", "m")))
    model = fleet(running(models=("m",)), running("n2", models=("m",)), lbs=(there,))
    assert [model.serves("lb", name) for name in there.servers] == [True, False]
    assert model.counts == {("lb", "m"): 1}


def test_an_engine_works_when_all_of_its_servers_are_there_ready_and_of_its_files() -> None:
    parts = [running(engine="e", spec="1"), running("n2", engine="e", spec="1", port=None)]
    model = fleet(*parts, lbs=(balancer(server()),))
    assert (model.works(parts[0].of), model.counts["lb", "m"]) == (True, 1)
    assert model.works(("n1", "nobody-0")) is False
    for broken in (replace(parts[1], ready=False), replace(parts[1], spec="2")):
        model.start(broken)
        assert (model.works(parts[0].of), model.counts["lb", "m"]) == (False, 0)
        model.start(parts[1])
        assert (model.works(parts[0].of), model.counts["lb", "m"]) == (True, 1)
    model.stop(parts[1].of)
    assert (model.works(parts[0].of), model.counts["lb", "m"]) == (False, 0)
    assert model.on("n2") == []
    model.start(replace(parts[1], ready=False))
    model.changed.clear()
    model.ready(parts[1].of)
    assert (model.counts["lb", "m"], model.changed) == (0, set())  # its load balancer does not know it yet
    model.count_on("lb")
    assert (model.counts["lb", "m"], model.changed) == (1, {("lb", "m")})
    model.stop(parts[1].of)
    model.start(replace(parts[0], ready=False))
    model.ready(parts[0].of)  # before the other one
    assert (model.works(parts[0].of), model.counts["lb", "m"]) == (False, 0)


def test_instances_come_and_go() -> None:
    model = fleet(
        running(),
        running("n1", "llama-1", port=8001),
        lbs=(balancer(server(), server(name="llama-1", port=8001)),),
    )
    assert [item.name for item in model.on("n1")] == ["llama-0", "llama-1"]
    assert model.counts["lb", "m"] == 2
    model.stop(("n1", "llama-0"))
    model.stop(("n1", "llama-0"))  # nothing is there any more
    assert (model.counts["lb", "m"], model.changed) == (1, {("lb", "m")})
    assert model.asked(("n1", "llama-0")) == []
    model.start(running(port=9000))  # elsewhere, where no load balancer asks
    assert model.counts["lb", "m"] == 1
    model.start(running())
    assert model.counts["lb", "m"] == 2
    assert {item.port for item in model.on("n1")} == {8000, 8001}


def test_a_port_is_that_of_whoever_listens_there() -> None:
    """Two instances that change places: the servers stay, and another instance answers."""
    there = balancer(server(), server(name="llama-1", port=8001))
    model = fleet(running(port=8001), lbs=(there,))
    other = there.servers["b/n1.llama-1:8001"]
    assert model.listener("lb", other) == running(port=8001)
    assert model.asked(("n1", "llama-0")) == [("lb", "b/n1.llama-1:8001")]
    model.set_drained("lb", "b/n1.llama-1:8001", True)
    assert (model.counts["lb", "m"], model.asked(("n1", "llama-0"))) == (0, [])
    model.set_drained("lb", "b/n1.llama-1:8001", False)
    assert model.counts["lb", "m"] == 0  # until it has been checked
    model.count_on("lb")
    assert model.counts["lb", "m"] == 1
    model.set_drained("lb", "b/n1.llama-1:8001", False)  # it was not drained
    assert model.counts["lb", "m"] == 1


def test_of_two_that_have_a_port_of_a_host_the_one_at_the_address_answers() -> None:
    outside, inside = running(), running(name="other-0", listen="127.0.0.1")
    model = fleet(inside, outside, lbs=(balancer(server()),))
    assert model.listener("lb", server()) == outside
    assert (model.asked(outside.of), model.asked(inside.of)) == ([("lb", "b/n1.llama-0:8000")], [])
    assert model.counts["lb", "m"] == 1
    model.stop(outside.of)
    assert model.counts["lb", "m"] == 0
    assert [item.name for item in model.on("n1")] == ["other-0"]


# ---- load balancers ----------------------------------------------------------------------------------


def test_a_new_configuration_is_checked_before_it_counts() -> None:
    model = fleet(running(), running("n2"), lbs=(balancer(server()),))
    before = {"b/n1.llama-0:8000": server()}
    model.configure("lb", {**before, "b/n2.llama-0:8000": server("n2")}, "")
    assert model.counts["lb", "m"] == 1
    assert model.balancers["lb"].unproven == {"b/n2.llama-0:8000"}
    model.prove("lb", ["b/n1.llama-0:8000"])
    assert model.counts["lb", "m"] == 1
    model.changed.clear()
    model.count_on("lb")
    assert (model.counts["lb", "m"], model.changed) == (2, {("lb", "m")})
    model.configure("lb", before, "")
    assert model.counts["lb", "m"] == 1
    model.configure("lb", {}, "")
    assert model.counts["lb", "m"] == 0


def test_what_has_not_been_checked_stays_so_over_another_configuration() -> None:
    """HAProxy's new process begins with the states of the former one: a server that was down is down."""
    model = fleet(running(ready=False), running("n2"), lbs=(balancer(server(), server("n2")),))
    model.ready(("n1", "llama-0"))
    there = model.balancers["lb"]
    assert there.unproven == {"b/n1.llama-0:8000"}
    renamed = {"c/n1.llama-0:8000": server(), "c/n2.llama-0:8000": server("n2")}
    model.configure("lb", renamed, "")
    assert (there.unproven, model.counts["lb", "m"]) == ({"c/n1.llama-0:8000"}, 1)
    model.count_on("lb", ["m"])
    assert (there.unproven, there.awaited, model.counts["lb", "m"]) == (set(), {"c/n1.llama-0:8000"}, 2)
    model.configure("lb", {"b/n1.llama-0:8000": server(), "b/n2.llama-0:8000": server("n2")}, "")
    assert (there.unproven, there.awaited, model.counts["lb", "m"]) == (set(), {"b/n1.llama-0:8000"}, 2)
    model.prove("lb", ["b/n1.llama-0:8000"])
    assert (there.unproven, there.awaited) == (set(), set())


def test_only_what_answers_to_a_model_is_waited_for_where_that_is_drained() -> None:
    there = balancer(server(), server("n2", models=("x",)))
    there.unproven = set(there.servers)
    model = fleet(running(), running("n2", models=("x",)), lbs=(there,))
    model.count_on("lb", ["x"])
    assert (there.unproven, there.awaited) == ({"b/n1.llama-0:8000"}, {"b/n2.llama-0:8000"})
    assert (model.counts.get(("lb", "m"), 0), model.counts["lb", "x"]) == (0, 1)
    model.set_drained("lb", "b/n2.llama-0:8000", True)
    model.set_drained("lb", "b/n2.llama-0:8000", False)
    assert there.awaited == set()  # it has to be checked again


def test_what_starts_again_behind_a_server_that_was_waited_for_has_to_be_checked_again() -> None:
    model = fleet(running(ready=False), lbs=(balancer(server()),))
    there = model.balancers["lb"]
    model.ready(("n1", "llama-0"))
    model.count_on("lb")
    assert (there.unproven, there.awaited) == (set(), set(there.servers))
    model.start(running(ready=False))
    model.ready(("n1", "llama-0"))
    assert (there.unproven, there.awaited) == (set(there.servers), set())
    assert model.counts["lb", "m"] == 0


def test_a_load_balancer_that_is_installed_in_the_run() -> None:
    model = fleet(running(key=PRESENT))
    model.configure("new", {"b/n1.llama-0:8000": server()}, PRESENT)
    assert (model.balancers["new"].exists, model.counts.get(("new", "m"), 0)) == (True, 0)
    model.count_on("new")
    assert model.counts["new", "m"] == 1
    model.configure("new", {"b/n1.llama-0:8000": server()}, FORMER)
    assert model.counts["new", "m"] == 0


def test_a_server_goes_on_under_another_name_with_its_drain() -> None:
    there = balancer(server(), server("n2"))
    there.drained = {"b/n1.llama-0:8000"}
    there.configure({"c/n1.llama-0:8000": server(models=("m", "x")), "c/n2.llama-0:8000": server("n2")})
    assert (there.drained, there.unproven) == ({"c/n1.llama-0:8000"}, set())
    there.configure(
        {"c/n1.llama-0:8000": server(models=("y",)), "c/n2.llama-0:9000": server("n2", port=9000)}
    )
    assert there.drained == set()
    assert there.unproven == {"c/n1.llama-0:8000", "c/n2.llama-0:9000"}


def test_a_load_balancer_that_is_taken_down_has_nothing_in_service() -> None:
    model = fleet(running(), lbs=(balancer(server()), balancer(server(), name="lb2")))
    model.remove_balancer("lb")
    assert model.counts == {("lb", "m"): 0, ("lb2", "m"): 1}
    assert model.asked(("n1", "llama-0")) == [("lb2", "b/n1.llama-0:8000")]


def test_what_the_operator_has_drained_stays_so_wherever_it_listens() -> None:
    there = balancer(server())
    there.by_operator = frozenset([("n1", "llama-0")])
    there.configure({"b/n1.llama-0:9000": server(port=9000), "b/n2.llama-0:8000": server("n2")})
    assert there.drained == {"b/n1.llama-0:9000"}


def test_each_load_balancer_counts_for_itself() -> None:
    lbs = balancer(server()), balancer(server(), name="lb2")
    model = fleet(running(), lbs=lbs)
    model.set_drained("lb", "b/n1.llama-0:8000", True)
    assert model.counts == {("lb", "m"): 0, ("lb2", "m"): 1}
    assert model.asked(("n1", "llama-0")) == [("lb2", "b/n1.llama-0:8000")]


def test_an_instance_that_is_started_again_listens_at_its_new_port_only() -> None:
    there = balancer(server(), server(port=8001))
    model = fleet(running(), lbs=(there,))
    assert model.counts["lb", "m"] == 1
    model.start(running(port=8001))
    served = {name: model.serves("lb", name) for name in there.servers}
    assert served == {"b/n1.llama-0:8000": False, "b/n1.llama-0:8001": True}
    model.stop(("n1", "llama-0"))
    assert model.counts["lb", "m"] == 0
    assert model.on("n1") == []
    assert model.listener("lb", server(port=8001)) is None


# ---- what another configuration forgets --------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "forgotten"),
    [
        ([server()], []),
        ([], ["b/n1.llama-0:8000"]),
        ([server(port=8001)], ["b/n1.llama-0:8000"]),
        ([server("n2")], ["b/n1.llama-0:8000"]),
        # Another name of what listens there.
        ([server(name="chat-0")], []),
        ([server("gone", address=ALL)], []),
    ],
)
def test_what_is_forgotten_while_it_gets_requests(after: list[Any], forgotten: list[str]) -> None:
    servers = {f"b/{one.name}": one for one in after}
    model = fleet(running(), lbs=(balancer(server()),))
    assert model.forgotten("lb", servers) == forgotten
    assert model.forgotten("another", servers) == []
    model.set_drained("lb", "b/n1.llama-0:8000", drained=True)
    assert model.forgotten("lb", servers) == []
