# SPDX-License-Identifier: Apache-2.0
"""What has to stay in service of each name, and what two instances of a host cannot both have."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.rules import (
    CAPACITY,
    END,
    IN_USE,
    NEEDS,
    TAKEN,
    Requirement,
    requirements,
    resource_conflicts,
)

from tests.worlds.simulated_fleet import balancer, fleet, running, server

FOUR = [("n1", "llama-0", 8000), ("n1", "llama-1", 8001), ("n2", "llama-0", 8000), ("n2", "llama-1", 8001)]


def required(
    count: int = 4, minimum: Any = None, afterwards: int = 4, **changes: Any
) -> dict[Any, Requirement]:
    """What is required of the first so many instances. changes: of the load balancer."""
    there = balancer(*(server(*one) for one in FOUR[:count]))
    for name, value in changes.items():
        setattr(there, name, value)
    model = fleet(*(running(host, name, port=port) for host, name, port in FOUR[:count]), lbs=(there,))
    return requirements(model, {"lb": [server(*one) for one in FOUR[:afterwards]]}, minimum)


@pytest.mark.parametrize(
    ("count", "minimum", "afterwards", "changes", "expected"),
    [
        (4, None, 4, {}, (4, 4, 2, 4)),
        (3, None, 4, {}, (3, 3, 2, 4)),  # the half of three is rounded up
        (4, "75%", 4, {}, (4, 4, 3, 4)),
        (4, 9, 4, {}, (4, 4, 4, 4)),
        (4, 0, 4, {}, (4, 4, 0, 4)),
        (4, None, 1, {}, (4, 4, 1, 1)),  # no more than stay
        (1, None, 4, {}, (1, 1, 0, 4)),
        (1, 1, 4, {}, (1, 1, 1, 4)),
        (2, None, 4, {}, (2, 2, 1, 4)),
        (4, None, 4, {"drained": {"b/n1.llama-0:8000", "b/n1.llama-1:8001", "b/n2.llama-0:8000"}}, (4, 1, 1, 4)),
        (4, None, 4, {"by_operator": frozenset([("n1", "llama-0")])}, (4, 4, 2, 3)),
    ],
)  # fmt: skip
def test_how_many_have_to_stay(
    count: int, minimum: Any, afterwards: int, changes: dict[str, Any], expected: tuple[int, ...]
) -> None:
    found = required(count, minimum, afterwards, **changes)
    assert found == {("lb", "m"): Requirement(("llama",), *expected)}


@pytest.mark.parametrize("changes", [{"absent": True}, {"exists": False}, {"name": "other"}])
def test_load_balancers_of_which_nothing_is_required(changes: dict[str, Any]) -> None:
    assert required(**changes) == {}


def test_names_that_end_and_names_that_begin_are_not_required() -> None:
    there = balancer(server(models=("m", "old")))
    model = fleet(running(models=("m", "old")), lbs=(there,))
    assert list(requirements(model, {"lb": [server(models=("m", "new"))]}, None)) == [("lb", "m")]


def test_every_load_balancer_is_looked_at() -> None:
    lbs = (
        balancer(server(), absent=True, name="a"),
        balancer(server(), name="b"),
        balancer(server(models=("x",)), name="c"),
    )
    model = fleet(running(models=("m", "x")), lbs=lbs)
    after = [server(models=("m", "x"))]
    assert list(requirements(model, dict.fromkeys("abc", after), None)) == [("b", "m"), ("c", "x")]


@pytest.mark.parametrize(
    ("item", "lost", "total"),
    [
        (running(), (), 2),
        (running(port=9000), (), 1),  # another one's port, or nobody's: its instance has yet to come there
        (running(listen="127.0.0.1"), (), 1),  # it listens for its own host
        (running(port=None), (), 1),  # its instance works for another server
        (running(port=None, models=()), (), 2),  # no record says where it listens
        (running(models=()), (), 2),  # no record says what it answers to
        (running(port=9000, models=()), (), 1),  # it listens elsewhere, whatever it answers to
        (running(models=("other",)), (), 1),
        (None, (), 1),
        (None, ("n1",), 2),
        (running(port=9000), ("n1",), 2),
    ],
)
def test_which_servers_are_engines_before_the_run(item: Any, lost: tuple[str, ...], total: int) -> None:
    there = balancer(server(), server("n2"))
    model = fleet(*([item] if item else []), running("n2"), lbs=(there,))
    found = requirements(model, {"lb": [server(), server("n2")]}, None, lost)
    assert found["lb", "m"].total == total


def test_what_does_not_serve_yet_is_an_engine_all_the_same() -> None:
    model = fleet(running(ready=False), lbs=(balancer(server()),))
    assert requirements(model, {"lb": [server()]}, 1) == {("lb", "m"): Requirement(("llama",), 1, 0, 0, 1)}


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len({CAPACITY, NEEDS, IN_USE, TAKEN, END}) == 5


def test_deployments_of_a_name_are_named_once_each() -> None:
    there = balancer(server(), server(name="green-0", port=9000), server("n2"))
    model = fleet(running(), running(name="green-0", port=9000), running("n2"), lbs=(there,))
    found = requirements(model, {"lb": list(there.servers.values())}, None)
    assert found["lb", "m"] == Requirement(("llama", "green"), 3, 3, 2, 3)


# ---- used twice --------------------------------------------------------------------------------------


def using(name: str, gpus: str = "", share: float = 1.0, ports: tuple[int, ...] = ()) -> Any:
    return running("n1", name, gpus=frozenset(gpus), share=share, ports=frozenset(ports))


@pytest.mark.parametrize(
    ("there", "item", "found"),
    [
        ([], using("c-0", "x"), []),
        ([using("a-0", "x", ports=(1,))], using("c-0", "y", ports=(2,)), []),
        ([using("c-0", "x", ports=(1,))], using("c-0", "x", ports=(1,)), []),  # it starts in place of itself
        ([using("c-0", "x"), using("a-0", "x")], using("c-0", "x"), ["GPU x, which a-0 uses"]),
        ([using("a-0", ports=(3, 1, 2))], using("c-0", ports=(1, 3)),
         ["port 1, on which a-0 listens", "port 3, on which a-0 listens"]),
        ([using("a-0", "x", 0.5), using("b-0", "x", 0.3)], using("c-0", "x", 0.2), []),
        ([using("a-0", "x", 0.5), using("b-0", "x", 0.3)], using("c-0", "x", 0.3), ["GPU x, which a-0, b-0 uses"]),
        ([using("a-0", "yx")], using("c-0", "xy", 0.1), ["GPU x, which a-0 uses", "GPU y, which a-0 uses"]),
        ([using("a-0", "x", 0.7)], using("c-0", "xy", 0.3), []),
        ([using("a-0", "x", 0.1), using("b-0", "x", 0.2)], using("c-0", "x", 0.7), []),  # 1.0, but for its rounding
    ],
)  # fmt: skip
def test_what_is_used_twice(there: list[Any], item: Any, found: list[str]) -> None:
    assert resource_conflicts(there, item) == found
