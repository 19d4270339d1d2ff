# SPDX-License-Identifier: Apache-2.0
"""One node says anything at all, in every string that it answers: the others, the balancer and the terminal stay."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    DEPLOY,
    ROLLBACK,
    OperationRequest,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.text import printable
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import node_data
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.plan import (
    EndpointAssets,
    EndpointInputs,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.node_records import (
    read_history,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan

from tests.worlds.balancer_world import DRAW, MATERIAL, applied, host
from tests.worlds.generations_world import HELD
from tests.worlds.plan_world import LOCK, apply_to_state, deployment, fleet, state, workshop

NAMES = ("n1", "n2", "n3")
OWN = {name: {"instinct_address": f"192.0.2.1{name[1:]}"} for name in NAMES}
LEAK = "x\nfrontend leak\n    bind *:1\n    http-request return status 200 file /etc/shadow"
SCREEN = "\x1b]52;c;Y3VybCBldmlsfHNo\x07\x1b[2J\x9b1mroot\u202e#"
HOSTILE = {
    "lines": LEAK,
    "an address and lines": f"::1]:8000\n{LEAK}",
    "escape sequences": SCREEN,
    "a null byte": "a\x00b",
    "Jinja": "{{ lookup('pipe', 'id') }}",
    "a quote": "it's",
    "two quotes": '" "',
    "words": "a b; c $(d) `e`",
    "a path": "../../../etc/shadow",
    "much": "9" * 300_000,
    "nothing": "",
    "another host": "n1",
    "another deployment": "other",
    "everywhere": "0.0.0.0",
    "no text": None,
    "a number": 1e308,
    "a list": [["x"]],
    "a map": {"x": {"y": 1}},
    "truth": True,
}


def wanted(seqs: int = 0) -> list[dict[str, Any]]:
    more = {"engine_args": {"max_num_seqs": seqs}} if seqs else {}
    return [
        deployment(gpus=[0, 1], **more),
        deployment(name="other", gpus=[2], port=9000, served_model_name="other"),
    ]


def plans(
    states: dict[str, Any], balancer: Any, operation: str, seqs: int = 16
) -> tuple[FleetPlan, dict[str, Any]]:
    """The plan of a run, from what node_state answered; and plan.json."""
    seen = {name: node_data(found) if found else None for name, found in states.items()}
    request = OperationRequest(operation, None if operation == DEPLOY else frozenset(["llama"]))
    there = fleet(seen, wanted(seqs), groups={"load_balancer": ["lb"]}, own=OWN)
    endpoint = EndpointInputs(
        (balancer,), frozenset(NAMES), EndpointAssets(DRAW, "agent\n", {"lb": MATERIAL})
    )
    made = plan_fleet(check_fleet(there, request), workshop(LOCK), endpoint)
    return made, made.to_json()


@cache
def served() -> tuple[dict[str, Any], Any]:
    """Three hosts behind a load balancer that ran generation 1, and run 2; and their balancer."""
    states: dict[str, Any] = {name: state(hostname=name, interfaces=[], problems=[]) for name in NAMES}
    balancer = host(name="lb")
    for seqs in (0, 16):
        made, data = plans(states, balancer, DEPLOY, seqs)
        states = {name: apply_to_state(found, data["hosts"][name]) for name, found in states.items()}
        (plan,) = made.balancers
        balancer = host(applied(plan), name="lb")
    for name, found in states.items():
        found["generations"][0]["lifted"] = "2026-11-20T23:00:00Z"
        found["docker"] = {**found["docker"], "error": "none"}
        found["images"][0]["software"] = {
            "vllm": "0.11.1", "platform": "rocm", "rocm": "7.0", "pytorch": "2.9", "python": "3.12", "gfx": ["gfx942"],
        }  # fmt: skip
        found["problems"] = [{"what": "/proc/x", "error": "odd"}]
        found["interfaces"] = [
            {"name": "eno1", "addresses": [OWN[name]["instinct_address"]], "up": True, "mtu": 1500}
        ]
    return states, balancer


def held(states: dict[str, Any]) -> dict[str, Any]:
    """The hosts with a hold, by which a deploy takes what the records say."""
    found = copy.deepcopy(states)
    for one in found.values():
        next(item for item in one["generations"] if item["deployment"] == "llama")["held"] = dict(HELD)
    return found


def texts(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a state has texts; of a list, the first item stands for all."""
    if isinstance(value, str):
        yield place
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts(item, (*place, key))
    elif isinstance(value, list):
        for index, item in enumerate(value[:1]):
            yield from texts(item, (*place, index))


def with_text(value: Any, place: tuple[Any, ...], text: Any) -> Any:
    """A copy of a value with another text at a place."""
    if not place:
        return text
    key, *rest = place
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[key] = with_text(value[key], tuple(rest), text)
    return copied


def directives(made: FleetPlan) -> set[tuple[str, str]]:
    """What haproxy.cfg has: the first word of each line, in its section."""
    found, section = set(), ""
    for plan in made.balancers:
        for files in (plan.files, plan.files_before):
            for line in files["haproxy.cfg"].splitlines():
                if line[:1] not in ("", " ", "#"):
                    section = NUMBERED.sub("", line)
                found.add((section, line.split()[0] if line.split() else ""))
    return found


OTHERS = ("n1", "n3")
# A record may say that its instances answer to other names: these get a backend of their own, of the same form.
NUMBERED = re.compile(r"(?<=^backend llama):\d+$")


def without_texts(data: dict[str, Any]) -> list[Any]:
    """What a plan does on the other hosts."""
    return [data["hosts"].get(name) for name in OTHERS]


OFTEN = ("lines", "escape sequences", "a quote", "everywhere", "another deployment", "a map")


@pytest.mark.parametrize(
    ("kind", "run"),
    [
        pytest.param(kind, run, marks=() if run == "held" and kind in OFTEN else pytest.mark.deep)
        for kind in HOSTILE
        for run in ("deploy", "held", "rollback")
    ],
)
def test_every_string_of_an_answer(kind: str, run: str) -> None:
    states, balancer = served()
    states = held(states) if run == "held" else states
    operation = ROLLBACK if run == "rollback" else DEPLOY
    honest, usual = plans(states, balancer, operation)
    alone, excluded = plans({**states, "n2": None}, balancer, operation)
    allowed = directives(honest) | directives(alone)
    places = list(texts(states["n2"]))
    assert len(places) > 50
    for place in places:
        changed = {**states, "n2": with_text(states["n2"], place, HOSTILE[kind])}
        made, data = plans(changed, balancer, operation)
        assert without_texts(data) in (without_texts(usual), without_texts(excluded)), place
        assert directives(made) <= allowed, place
        text = explain(made, full=True) + "".join(f"{name}: {why}" for name, why in made.excluded)
        assert text == printable(text), place
        json.dumps(data)


@pytest.mark.parametrize("listen", ["203.0.113.9", "127.0.0.1", "elsewhere", "0.0.0.0"])
def test_requests_go_where_the_inventory_says(listen: str) -> None:
    """A record that a rollback restores names an address of its own choice."""
    states, balancer = served()
    changed = copy.deepcopy(states)
    for record in changed["n2"]["generations"]:
        for made in record["kept"]:
            made["listen"] = listen
    (plan,) = plans(changed, balancer, ROLLBACK)[0].balancers
    targets = {
        server.host: server.to_json()["target"]
        for backend in plan.backends
        if backend.name == "llama"
        for server in backend.members
    }
    expected = {"n1": "192.0.2.11:8000", "n2": "192.0.2.12:8000", "n3": "192.0.2.13:8000"}
    if listen == "127.0.0.1":  # of its own host, where this load balancer is not
        del expected["n2"]
    assert targets == expected


def test_a_model_of_another_deployment_excludes_who_claims_it() -> None:
    states, balancer = served()
    changed = copy.deepcopy(states)
    for record in changed["n2"]["generations"]:
        for made in record["kept"] if record["deployment"] == "llama" else ():
            made["models"] = ["other"]
    made, _unused = plans(changed, balancer, ROLLBACK)
    assert [name for name, _why in made.excluded] == ["n2"]
    assert "which the inventory gives to another deployment" in dict(made.excluded)["n2"]


@pytest.mark.parametrize("kind", HOSTILE)
def test_every_string_of_a_record(kind: str) -> None:
    """What is taken of a record can be shown and split into words, and a damaged one says what is wrong in a line."""
    states, _unused = served()
    for record in states["n2"]["generations"]:
        for place in texts(record):
            try:
                found = read_history(node_data(with_text(record, place, HOSTILE[kind])))
            except ValueError:
                assert place == ("deployment",)
                continue
            assert len(found.broken) < 300
            for made in found.kept:
                for member in made.members:
                    assert made.backend(member).listen == printable(made.listen)
                    assert json.dumps(made.server(member))


@pytest.mark.parametrize(
    "together", [{LEAK: 1}, {"other": -1}, {"other": 10**9}, {"other": "x"}, ["other"], "other"]
)
def test_what_goes_back_together_is_names_and_generations(together: Any) -> None:
    states, _unused = served()
    record = states["n2"]["generations"][0]
    trial = {"generation": 2, "why": "", "since": HELD["since"], "units": [], "baseline": {}, "before": 1}
    assert read_history({**record, "trial": {**trial, "together": {"other": 1}}}).broken == ""
    broken = read_history({**record, "trial": {**trial, "together": together}}).broken
    assert broken
    assert len(broken) < 300


def test_a_hold_of_the_future_binds_nobody() -> None:
    """A node whose clock is fast, or that wants its hold to be the last word."""
    states, balancer = served()
    found = copy.deepcopy(states)
    record = next(item for item in found["n2"]["generations"] if item["deployment"] == "llama")
    record["held"] = {**HELD, "since": "2099-01-01T00:00:00Z"}
    seen = fleet({name: node_data(one) for name, one in found.items()}, wanted(16), own=OWN)
    now = "2026-11-25T00:00:00Z"
    assert check_fleet(seen, now=now).selection.sources["llama"].kind == "inventory"
    record["held"]["since"] = "2026-11-24T00:00:00Z"
    seen = fleet({name: node_data(one) for name, one in found.items()}, wanted(16), own=OWN)
    assert check_fleet(seen, now=now).selection.sources["llama"].kind == "held"
    del balancer
