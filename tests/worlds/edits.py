# SPDX-License-Identifier: Apache-2.0
"""Random fleets, and random edits of their inventories: what operators do in a week, one or several at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.worlds.edited_fleet import Inventory
from tests.worlds.plan_world import deployment

Draw = Callable[[Any], Any]
NAMES = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal")
MODELS = ("lab/tiny-llama", "chat", "chat-fast", "assistant")
GPUS = 8


def address(name: str) -> str:
    """The address of a host by its name: n1 and its like, lb1 and its like."""
    return f"192.0.2.{(10 if name.startswith('n') else 100) + int(name.lstrip('nlbx'))}"


@st.composite
def inventories(draw: Draw) -> Inventory:
    """A fleet of one to six hosts, none to three load balancers and one to five deployments."""
    names = [f"n{number}" for number in range(1, draw(st.integers(1, 6)) + 1)]
    hosts = {name: address(name) for name in names}
    places = [*names, "lb1", "lb2"]
    balancers = draw(st.lists(st.sampled_from(places), max_size=3, unique=True))
    modes = {name: "CPX" for name in names if draw(st.integers(0, 5)) == 0}
    deployments: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 5))):
        made = _new_deployment(draw, deployments, names, NAMES[number])
        deployments += [made] if made else []
    return Inventory(
        hosts, {name: hosts.get(name, address(name)) for name in balancers}, tuple(deployments), modes
    )


def _free(deployments: list[dict[str, Any]]) -> list[int]:
    used = {gpu for item in deployments for gpu in item["gpus"]}
    return [gpu for gpu in range(GPUS) if gpu not in used]


def _new_deployment(
    draw: Draw, there: list[dict[str, Any]], hosts: list[str], name: str
) -> dict[str, Any] | None:
    free = _free(there)
    if not free:
        return None
    count = draw(st.integers(1, min(3, len(free))))
    made = deployment(
        name=name,
        gpus=free[:count],
        instances_per_host=count,
        port=8000 + 20 * NAMES.index(name),
        served_model_name=draw(st.sampled_from((*MODELS, name))),
    )
    if draw(st.booleans()) and len(hosts) > 1:
        made["hosts"] = draw(st.lists(st.sampled_from(hosts), min_size=1, unique=True))
    if len(hosts) > 1 and draw(st.integers(0, 4)) == 0:
        _span(made, hosts[:2])
    return made


def _span(made: dict[str, Any], hosts: list[str]) -> None:
    """Make a deployment one engine over two hosts."""
    made.update(
        nodes=2, tensor_parallel_size=1, pipeline_parallel_size=2, hosts=list(hosts), gpus=made["gpus"][:1]
    )
    made["instances_per_host"] = 1


# ---- edits -------------------------------------------------------------------------------------------

Parts = dict[str, Any]
"""An inventory in a form that edits change: hosts, balancers, modes, key, and a list of deployments."""


def _one(draw: Draw, parts: Parts) -> dict[str, Any] | None:
    there = parts["deployments"]
    return there[draw(st.integers(0, len(there) - 1))] if there else None


def _names(item: Mapping[str, Any]) -> list[str]:
    given = item["served_model_name"]
    return [given] if isinstance(given, str) else list(given)


def _unused_name(parts: Parts) -> str | None:
    used = {item["name"] for item in parts["deployments"]}
    return next((name for name in NAMES if name not in used), None)


def rename(draw: Draw, parts: Parts) -> None:
    item, name = _one(draw, parts), _unused_name(parts)
    if item and name:
        item["name"] = name


def rename_with_its_model(draw: Draw, parts: Parts) -> None:
    item, name = _one(draw, parts), _unused_name(parts)
    if item and name:
        item.update(name=name, served_model_name=f"{name}-model")


def served_name(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item:
        item["served_model_name"] = draw(st.sampled_from(MODELS))


def another_served_name(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item:
        item["served_model_name"] = list(dict.fromkeys((*_names(item), draw(st.sampled_from(MODELS)))))


def fewer_served_names(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item and len(_names(item)) > 1:
        item["served_model_name"] = _names(item)[1:]


def port(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item:
        item["port"] = draw(
            st.sampled_from((item["port"] + 1, item["port"] + 400, max(8000, item["port"] - 1)))
        )


def swap_ports(draw: Draw, parts: Parts) -> None:
    one, other = _one(draw, parts), _one(draw, parts)
    if one and other:
        one["port"], other["port"] = other["port"], one["port"]


def listen(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item:
        item.pop("listen", None) if "listen" in item else item.update(listen="0.0.0.0")


def flags(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item:
        item["engine_args"] = {"max_num_seqs": draw(st.sampled_from((16, 32, 64)))}


def weight(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item:
        item["weight"] = draw(st.integers(1, 4))


def scale(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item and item.get("nodes", 1) == 1:
        gpus = [*item["gpus"], *_free(parts["deployments"])]
        item["gpus"] = gpus[: draw(st.integers(1, min(4, len(gpus))))]
        item["instances_per_host"] = len(item["gpus"])


def move_gpus(draw: Draw, parts: Parts) -> None:
    item, free = _one(draw, parts), _free(parts["deployments"])
    if item and len(free) >= len(item["gpus"]):
        item["gpus"] = free[: len(item["gpus"])]


def swap_gpus(draw: Draw, parts: Parts) -> None:
    one, other = _one(draw, parts), _one(draw, parts)
    if one and other and len(one["gpus"]) == len(other["gpus"]):
        one["gpus"], other["gpus"] = other["gpus"], one["gpus"]


def turn_gpus(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item:
        item["gpus"] = [*item["gpus"][1:], item["gpus"][0]]


def move_hosts(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item and item.get("nodes", 1) == 1:
        item["hosts"] = draw(st.lists(st.sampled_from(sorted(parts["hosts"])), min_size=1, unique=True))


def add_deployment(draw: Draw, parts: Parts) -> None:
    name = _unused_name(parts)
    made = _new_deployment(draw, parts["deployments"], sorted(parts["hosts"]), name) if name else None
    if made:
        parts["deployments"].append(made)


def remove_deployment(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item and len(parts["deployments"]) > 1:
        parts["deployments"].remove(item)


def blue_green(draw: Draw, parts: Parts) -> None:
    """Another deployment that serves the names of one."""
    item, name, free = _one(draw, parts), _unused_name(parts), _free(parts["deployments"])
    if item and name and len(free) >= len(item["gpus"]):
        gpus = free[: len(item["gpus"])]
        made = {**copy.deepcopy(item), "name": name, "gpus": gpus, "port": 8000 + 20 * NAMES.index(name)}
        parts["deployments"].append({**made, "engine_args": {"max_num_seqs": 48}})


def split(draw: Draw, parts: Parts) -> None:
    """Two deployments of one, under the same names."""
    item, name = _one(draw, parts), _unused_name(parts)
    if item and name and len(item["gpus"]) > 1 and item.get("nodes", 1) == 1:
        rest = item["gpus"][1:]
        made = {**copy.deepcopy(item), "name": name, "gpus": rest, "instances_per_host": len(rest)}
        parts["deployments"].append({**made, "port": 8000 + 20 * NAMES.index(name)})
        item.update(gpus=item["gpus"][:1], instances_per_host=1)


def join(draw: Draw, parts: Parts) -> None:
    """One deployment of two that serve the same names."""
    one, other = _one(draw, parts), _one(draw, parts)
    alone = one and other and one.get("nodes", 1) == other.get("nodes", 1) == 1
    if one and other and alone and one is not other and _names(one) == _names(other):
        one["gpus"] = [*one["gpus"], *other["gpus"]]
        one["instances_per_host"] = len(one["gpus"])
        parts["deployments"].remove(other)


def nodes(draw: Draw, parts: Parts) -> None:
    """An engine over two hosts, or no longer."""
    item = _one(draw, parts)
    if item and item.get("nodes", 1) == 1 and len(parts["hosts"]) > 1:
        _span(item, sorted(parts["hosts"])[:2])
    elif item:
        for key in ("nodes", "tensor_parallel_size", "pipeline_parallel_size"):
            item.pop(key, None)


def add_balancer(draw: Draw, parts: Parts) -> None:
    places = [
        name for name in (*sorted(parts["hosts"]), "lb1", "lb2", "lb3") if name not in parts["balancers"]
    ]
    if places and len(parts["balancers"]) < 3:
        name = draw(st.sampled_from(places))
        parts["balancers"][name] = parts["hosts"].get(name, address(name))


def remove_balancer(draw: Draw, parts: Parts) -> None:
    if parts["balancers"]:
        parts["balancers"].pop(draw(st.sampled_from(sorted(parts["balancers"]))))


def add_host(draw: Draw, parts: Parts) -> None:
    name = next((f"n{number}" for number in range(1, 8) if f"n{number}" not in parts["hosts"]), None)
    if name:
        parts["hosts"][name] = address(name)


def remove_host(draw: Draw, parts: Parts) -> None:
    name = draw(st.sampled_from(sorted(parts["hosts"])))
    if len(parts["hosts"]) > 1 and name not in parts["balancers"]:
        parts["hosts"].pop(name)
        parts["modes"].pop(name, None)
        for item in parts["deployments"]:
            if "hosts" in item and name in item["hosts"]:
                item["hosts"] = [one for one in item["hosts"] if one != name] or sorted(parts["hosts"])[:1]


def readdress_host(draw: Draw, parts: Parts) -> None:
    name = draw(st.sampled_from(sorted(parts["hosts"])))
    parts["hosts"][name] = f"198.51.100.{10 + int(name[1:])}"
    if name in parts["balancers"]:
        parts["balancers"][name] = parts["hosts"][name]


def compute_mode(draw: Draw, parts: Parts) -> None:
    name = draw(st.sampled_from(sorted(parts["hosts"])))
    parts["modes"][name] = "SPX" if parts["modes"].get(name) == "CPX" else "CPX"


def another_key(draw: Draw, parts: Parts) -> None:
    parts["key"] = "second" if parts["key"] == "first" else "first"


EDITS: tuple[Callable[[Draw, Parts], None], ...] = (
    rename, rename_with_its_model, served_name, another_served_name, fewer_served_names, port, swap_ports, listen,
    flags, weight, scale, move_gpus, swap_gpus, turn_gpus, move_hosts, add_deployment, remove_deployment, blue_green,
    split, join, nodes, add_balancer, remove_balancer, add_host, remove_host, readdress_host, compute_mode, another_key,
)  # fmt: skip


def edit(draw: Draw, inventory: Inventory, most: int = 4) -> tuple[Inventory, list[str]]:
    """An inventory after one to four edits in one commit, and what they are called."""
    parts: Parts = {
        "hosts": dict(inventory.hosts),
        "balancers": dict(inventory.balancers),
        "modes": dict(inventory.modes),
        "key": inventory.key,
        "deployments": copy.deepcopy(list(inventory.deployments)),
    }
    chosen = draw(st.lists(st.sampled_from(EDITS), min_size=1, max_size=most))
    for change in chosen:
        change(draw, parts)
    parts["deployments"] = tuple(parts["deployments"])
    return replace(inventory, **parts), [change.__name__ for change in chosen]
