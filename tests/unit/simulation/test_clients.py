# SPDX-License-Identifier: Apache-2.0
"""Which clients have to change because of a run: those of a name, of an address, of a key, and of an instance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.api_keys import key_marks
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.clients import client_changes

from tests.worlds.balancer_world import KEYS
from tests.worlds.edited_fleet import Inventory, Site, edited, planned, settled
from tests.worlds.plan_world import deployment

HOSTS = {"n1": "192.0.2.11", "n2": "192.0.2.12"}
URL = "https://192.0.2.11:8443"
LLAMA: dict[str, Any] = deployment(gpus=[0], served_model_name=["llama", "chat"])
OTHER: dict[str, Any] = deployment(name="other", gpus=[1], port=8100, served_model_name="code")
PRIVATE: dict[str, Any] = deployment(
    name="private", gpus=[2], port=8200, endpoint=False, served_model_name="p"
)
WIDE: dict[str, Any] = {**PRIVATE, "nodes": 2, "tensor_parallel_size": 2}
BASE = Inventory(HOSTS, {"n1": "192.0.2.11"}, (LLAMA, OTHER, PRIVATE))
MOMENT = "from the moment when it is configured"
HELD = {"virtual": "192.0.2.200/24"}


def client_lines(base: Inventory = BASE, site: Site | None = None, **changes: Any) -> list[str]:
    return client_changes(planned(edited(base, **changes), site or settled(base)).plan)


def test_nothing_changes_for_them() -> None:
    assert client_lines() == []
    assert client_lines(deployments=({**LLAMA, "port": 8300}, OTHER, PRIVATE)) == []


# ---- names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deployments", "lines"),
    [
        (
            ({**LLAMA, "served_model_name": "llama"}, OTHER),
            ["model chat ends with its last instance: no deployment serves it any longer"],
        ),
        # Of two new names, the one of the deployment that served the former one.
        (
            (
                {**LLAMA, "served_model_name": ["llama", "talk"]},
                {**OTHER, "served_model_name": ["code", "sql"]},
            ),
            [
                "model chat ends with its last instance; clients ask for talk instead, which is served from its first "
                "instance on"
            ],
        ),
        # Of another deployment, where the one that served it is gone.
        (
            (OTHER, {**LLAMA, "name": "new", "gpus": [4], "port": 8400, "served_model_name": ["b", "a"]}),
            [
                f"model {name} ends with its last instance; clients ask for a, b instead, which are served from their "
                "first instances on"
                for name in ("chat", "llama")
            ],
        ),
    ],
)
def test_a_name_that_ends(deployments: tuple[dict[str, Any], ...], lines: list[str]) -> None:
    assert client_lines(deployments=(*deployments, PRIVATE)) == lines


# ---- addresses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ({}, {"load_balancer_port": 9443}, "https://192.0.2.11:9443 instead of https://…:8443"),
        ({}, {"load_balancer_tls": False}, "http://192.0.2.11:8443 instead of https://…:8443"),
        ({"load_balancer_tls": False}, {}, "https://192.0.2.11:8443 instead of http://…:8443"),
        ({}, {"load_balancer_listen": "192.0.2.99"}, "https://192.0.2.99:8443 instead of https://…:8443"),
    ],
)
def test_another_address(before: dict[str, Any], after: dict[str, Any], line: str) -> None:
    base = edited(BASE, endpoint=before)
    assert client_lines(base, endpoint=after) == [f"clients of load balancer n1 use {line} {MOMENT}"]


def test_a_virtual_address() -> None:
    assert client_lines(**HELD) == []  # the own one stays
    held = edited(BASE, **HELD)
    assert client_lines(held) == []
    assert client_lines(held, virtual="") == [f"the virtual address ends; clients use {URL}"]
    assert client_lines(held, virtual="192.0.2.201/24") == [
        "how the virtual address is held changes; clients use https://192.0.2.201:8443"
    ]


def test_a_load_balancer_that_comes_or_does_not_answer() -> None:
    assert client_lines(edited(BASE, balancers={}), balancers=BASE.balancers) == []
    site = settled(BASE)
    site.seen["n1"] = None
    assert client_lines(site=site, endpoint={"load_balancer_port": 9443}) == []


# ---- keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "endpoint", "lines"),
    [
        ([], {}, []),
        (["0" * 12], {}, ["1 API key of clients ends when it is configured"]),
        (["0" * 12, "1" * 12], {}, ["2 API keys of clients end when it is configured"]),
        # Whoever sends one is answered all the same.
        (["0" * 12], {"load_balancer_auth": False}, []),
    ],
)
def test_keys_that_end(more: list[str], endpoint: dict[str, Any], lines: list[str]) -> None:
    site = settled(BASE)
    site.seen["n1"] = {**site.seen["n1"], "keys": [*key_marks(KEYS), *more]}
    assert client_lines(site=site, endpoint=endpoint) == lines


def test_keys_that_are_to_be_made() -> None:
    """By the run itself: nothing is known of them."""
    site = settled(BASE)
    site.seen["n1"] = {**site.seen["n1"], "keys": ["0" * 12]}
    plan = planned(BASE, site).plan
    (balancer,) = plan.balancers
    unmade = replace(balancer, material=replace(balancer.material, keys_map=None))
    assert client_changes(replace(plan, balancers=(unmade,))) == []


# ---- instances that are asked directly ---------------------------------------------------------------


def test_an_instance_that_is_asked_directly() -> None:
    found = client_lines(deployments=(LLAMA, OTHER, {**PRIVATE, "port": 8300}))
    assert found == [
        f"clients that ask private on {host} directly find it at port 8300 instead of 8200 once it has changed"
        for host in HOSTS
    ]
    found = client_lines(deployments=(LLAMA, OTHER, {**PRIVATE, "listen": "0.0.0.0"}))
    assert found == [
        f"clients that ask private on {host} directly find it at another address once it has changed"
        for host in HOSTS
    ]


def test_the_server_of_an_engine_that_nobody_asks() -> None:
    """Of an engine over two hosts, only the first has an address."""
    base = edited(BASE, deployments=(LLAMA, OTHER, WIDE))
    assert client_lines(base, deployments=(LLAMA, OTHER, {**WIDE, "port": 8300})) == [
        "clients that ask private on n1 directly find it at port 8300 instead of 8200 once it has changed"
    ]


def test_an_instance_that_comes_behind_the_load_balancer_is_still_asked_there() -> None:
    """It was asked directly before, and its port is as it was."""
    assert client_lines(deployments=(LLAMA, OTHER, {**PRIVATE, "endpoint": True, "port": 8300})) == []


def test_a_host_that_does_not_answer() -> None:
    site = settled(BASE)
    site.states["n2"] = None
    assert client_lines(site=site, deployments=(LLAMA, OTHER, {**PRIVATE, "port": 8300})) == [
        "clients that ask private on n1 directly find it at port 8300 instead of 8200 once it has changed"
    ]


def test_an_instance_that_no_record_describes() -> None:
    site = settled(BASE)
    for item in site.states["n2"]["instances"]:
        item["spec_hash"] = "0" * 64
    found = client_lines(site=site, deployments=(LLAMA, OTHER, {**PRIVATE, "port": 8300}))
    assert [line.split()[5] for line in found] == ["n1"]


def test_a_load_balancer_of_which_nothing_is_known() -> None:
    """As when a plan is made without the hosts."""
    plan = planned(
        edited(BASE, deployments=(OTHER, PRIVATE), endpoint={"load_balancer_port": 9443}), settled(BASE)
    ).plan
    (balancer,) = plan.balancers
    unseen = replace(balancer, host=replace(balancer.host, observed=None))
    assert client_changes(replace(plan, balancers=(unseen,))) == []
