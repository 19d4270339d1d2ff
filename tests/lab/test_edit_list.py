# SPDX-License-Identifier: Apache-2.0
"""What operators edit in a week, one commit after the other on a fleet of three nodes, under load and watched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.worlds.edited_fleet import Inventory

from .conftest import Lab, copy_inventory, lab_command, reset_lab
from .edited import NEW_KEY, EditedLab, edited, machines

pytestmark = pytest.mark.deep
NODES = ("lab-n1", "lab-n2", "lab-n3")
Edit = Callable[[Inventory], Inventory]


@pytest.fixture(scope="module")
def three_nodes(lab_up: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab with a node more."""
    before = os.environ.get("LAB_NODES")
    os.environ["LAB_NODES"] = str(len(NODES))
    lab_command("up")
    reset_lab()
    yield copy_inventory(list(NODES), tmp_path_factory.mktemp("three"))
    os.environ["LAB_NODES"] = before or str(len(lab_up))
    lab_command("up")
    reset_lab()


@pytest.fixture(scope="module")
def fleet(three_nodes: Lab) -> EditedLab:
    """Two hosts that serve two models, and a load balancer on the first."""
    there = machines(NODES)
    hosts = {name: there[name][0] for name in NODES[:2]}
    deployments = (
        {"name": "ada", "gpus": [0, 1], "instances_per_host": 2, "port": 8000, "served_model_name": "chat"},
        {"name": "bob", "gpus": [2], "instances_per_host": 1, "port": 8020, "served_model_name": "code"},
    )
    balancers = {NODES[0]: there[NODES[0]][0]}
    return EditedLab.deployed(three_nodes, Inventory(hosts, balancers, deployments, machines=there))


def changed(*changes: dict[str, Any], **parts: Any) -> Edit:
    """The deployments get these keys, in their order."""
    return lambda inventory: edited(inventory, *changes, **parts)


def both(*edits: Edit) -> Edit:
    """Several edits in one commit."""

    def after(inventory: Inventory) -> Inventory:
        for edit in edits:
            inventory = edit(inventory)
        return inventory

    return after


def balancers(*names: str) -> Edit:
    return lambda inventory: replace(
        inventory,
        balancers={name: inventory.hosts.get(name, inventory.machines[name][0]) for name in names},
    )


def host(name: str, number: int = 0, machine: str = "") -> Edit:
    """A host of this name, on a machine, at one of its addresses; its load balancer, if it has one, too."""

    def after(inventory: Inventory) -> Inventory:
        address = inventory.machines[machine or name][number]
        balancers = (
            {**inventory.balancers, name: address} if name in inventory.balancers else inventory.balancers
        )
        return replace(inventory, hosts={**inventory.hosts, name: address}, balancers=balancers)

    return after


def without(name: str) -> Edit:
    return lambda inventory: replace(
        inventory, hosts={one: address for one, address in inventory.hosts.items() if one != name}
    )


def split(inventory: Inventory) -> Inventory:
    """The second instance of the first deployment becomes a deployment of its own, under the same name."""
    first, *others = inventory.deployments
    one = {**first, "gpus": first["gpus"][:1], "instances_per_host": 1}
    other = {**one, "name": "eve", "gpus": first["gpus"][1:2], "port": 8060}
    return replace(inventory, deployments=(one, *others, other))


def join(inventory: Inventory) -> Inventory:
    first, *others, last = inventory.deployments
    gpus = [*first["gpus"], *last["gpus"]]
    return replace(inventory, deployments=({**first, "gpus": gpus, "instances_per_host": len(gpus)}, *others))


def swapped(key: str) -> Edit:
    def after(inventory: Inventory) -> Inventory:
        one, other = inventory.deployments[:2]
        return edited(inventory, {key: other[key]}, {key: one[key]})

    return after


def spanning(inventory: Inventory) -> Inventory:
    """An engine over two hosts beside the instances of the second deployment, under its name."""
    second = inventory.deployments[1]
    over = {
        "nodes": 2,
        "pipeline_parallel_size": 2,
        "tensor_parallel_size": 1,
        "hosts": sorted(inventory.hosts)[:2],
    }
    engine = {**second, **over, "name": "gus", "gpus": [4], "port": 8400}
    return replace(inventory, deployments=(*inventory.deployments, engine))


def only(name: str) -> Edit:
    """Of the deployments that share the second one's model name, this one stays."""

    def after(inventory: Inventory) -> Inventory:
        shared = inventory.deployments[1]["served_model_name"]
        kept = [
            item
            for item in inventory.deployments
            if item["name"] == name or item["served_model_name"] != shared
        ]
        return replace(inventory, deployments=tuple(kept))

    return after


def beside_the_engine(inventory: Inventory) -> Inventory:
    """An instance on each host beside the engine over two hosts."""
    first, engine = inventory.deployments
    gone = ("nodes", "pipeline_parallel_size", "tensor_parallel_size", "hosts")
    single = {key: value for key, value in engine.items() if key not in gone}
    return replace(
        inventory, deployments=(first, {**single, "name": "dan", "gpus": [2], "port": 8220}, engine)
    )


FLAGS = {"engine_args": {"max_num_seqs": 40}}
AUTH = "load_balancer_instance_auth"
EDITS: dict[str, Edit] = {
    "another served name": changed({"served_model_name": "talk"}),
    "a name more": changed({"served_model_name": ["talk", "chat"]}),
    "a name less, and another flag": changed({"served_model_name": "chat", **FLAGS}),
    "renamed with its model's name": changed({"name": "cyd", "served_model_name": "dialog"}),
    "renamed back": changed({"name": "ada", "served_model_name": "chat"}),
    "all addresses": changed({"listen": "0.0.0.0"}, {"listen": "0.0.0.0"}),
    "the next port": changed({"port": 8001}),
    "ports exchanged": swapped("port"),
    "ports exchanged back, with a flag": both(swapped("port"), changed({}, FLAGS)),
    "a second load balancer on its own": balancers("lab-n1", "lab-n2"),
    "a third one off the GPU hosts, and a port": both(
        balancers("lab-n1", "lab-n2", "lab-n3"), changed({}, {"port": 8220})
    ),
    "one less, and a rename": both(balancers("lab-n2", "lab-n3"), changed({}, {"name": "dan"})),
    "another key": changed(key="second"),
    "another key with a flag": changed({"engine_args": {"max_num_seqs": 56}}, key="first"),
    "no key, and another port": changed({"port": 8040}, endpoint={AUTH: False}),
    "a key again": changed(endpoint={}),
    "more instances": changed({"gpus": [0, 1, 3], "instances_per_host": 3}),
    "fewer instances": changed({"gpus": [0, 1], "instances_per_host": 2}),
    "GPUs in another order": changed({"gpus": [1, 0]}),
    "a GPU exchanged with another deployment": changed({"gpus": [2, 0]}, {"gpus": [1]}),
    "exchanged back": changed({"gpus": [1, 0]}, {"gpus": [2]}),
    "split in two": split,
    "joined again": join,
    "weights": changed({"weight": 3}),
    "on one host only": changed({"hosts": ["lab-n2"]}),
    "moved to the other one": changed({"hosts": ["lab-n1"]}),
    "on all hosts": changed({"hosts": ["lab-n1", "lab-n2"]}),
    "an engine over two hosts": spanning,
    "that alone": only("gus"),
    "an engine on each host beside it": beside_the_engine,
    "those alone, with a flag": both(only("dan"), changed(FLAGS)),
    "a host that was a load balancer": both(
        host("lab-n3"), changed({"hosts": ["lab-n1", "lab-n2", "lab-n3"]})
    ),
    "a host at its other address": host("lab-n3", 1),
    "a host of another name": both(
        without("lab-n3"),
        host("lab-x3", 1, "lab-n3"),
        changed({"hosts": ["lab-n1", "lab-n2", "lab-x3"]}),
        balancers("lab-n2"),
    ),
    "a host of another name and address": both(
        without("lab-x3"),
        host("lab-n3"),
        changed({"hosts": ["lab-n1", "lab-n2", "lab-n3"]}),
    ),
    "a host less": both(without("lab-n3"), changed({"hosts": ["lab-n1", "lab-n2"]})),
    "the host again, and a flag": both(
        host("lab-n3"),
        changed({"hosts": ["lab-n1", "lab-n2", "lab-n3"], "engine_args": {"max_num_seqs": 24}}),
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit(fleet: EditedLab, name: str) -> None:
    after = EDITS[name](fleet.inventory)
    fleet.edit(after, "deploy", *(NEW_KEY if after.key != fleet.inventory.key else ()))


def test_partition_modes_there_and_back(fleet: EditedLab) -> None:
    """By the command that site.yml names."""
    for mode in ("CPX", "SPX"):
        after = replace(fleet.inventory, modes={"lab-n3": mode})
        fleet.edit(after, "partition")


def test_a_virtual_address_comes_with_a_flag_and_moves(fleet: EditedLab) -> None:
    host_names = ("lab-n1", "lab-n2")
    fleet.edit(balancers(*host_names)(fleet.inventory))
    for number, seqs in ((90, 26), (91, 28)):
        fleet.variables = {"load_balancer_virtual_address": f"{fleet.address(number)}/24"}
        fleet.edit(edited(fleet.inventory, {"engine_args": {"max_num_seqs": seqs}}))
    fleet.variables = {}
    fleet.edit(fleet.inventory)


def test_a_server_that_is_replaced(fleet: EditedLab) -> None:
    """Another machine under the name of one that died: by the command of its runbook."""
    fleet.replace_node("lab-n3")
    fleet.edit(fleet.inventory)
