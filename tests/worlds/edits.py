# SPDX-License-Identifier: Apache-2.0
"""Random fleets, and random edits of their inventories: what operators do in a week, one or several at once."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

from tests.worlds.edited_fleet import MACHINES, RENAMED, Inventory, machine
from tests.worlds.plan_world import IMAGE, NEXT_IMAGE, OTHER_REPO, REPO, deployment

T = TypeVar("T")
NAMES = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal")
MODELS = ("lab/tiny-llama", "chat", "chat-fast", "assistant")
GPUS = 8


class Draw(Protocol):
    """Makes the choices of an edit."""

    def number(self, low: int, high: int) -> int:
        """A whole number, both bounds included."""

    def one_of(self, values: Sequence[T]) -> T:
        """One of some values."""

    def some_of(self, values: Sequence[T], least: int = 0, most: int | None = None) -> list[T]:
        """Some of some values, each at most once, in any order."""


@dataclass(frozen=True)
class Drawn:
    """Choices of hypothesis."""

    draw: Callable[[Any], Any]

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def one_of(self, values: Sequence[T]) -> T:
        found: T = self.draw(st.sampled_from(values))
        return found

    def some_of(self, values: Sequence[T], least: int = 0, most: int | None = None) -> list[T]:
        return list(self.draw(st.lists(st.sampled_from(values), min_size=least, max_size=most, unique=True)))


@dataclass(frozen=True)
class Seeded:
    """Choices of a random generator."""

    source: random.Random

    def number(self, low: int, high: int) -> int:
        return self.source.randint(low, high)

    def one_of(self, values: Sequence[T]) -> T:
        return self.source.choice(values)

    def some_of(self, values: Sequence[T], least: int = 0, most: int | None = None) -> list[T]:
        bound = len(values) if most is None else min(most, len(values))
        return self.source.sample(values, self.source.randint(least, bound))


def without_gpus(name: str) -> bool:
    """A machine on which only a load balancer can be."""
    return name.startswith("lb")


@dataclass(frozen=True)
class Bounds:
    """How large fleets may be."""

    hosts: int = 6
    balancers: int = 3
    deployments: int = 5


def inventory_of(
    draw: Draw, bounds: Bounds = Bounds(), machines: Mapping[str, Sequence[str]] = MACHINES
) -> Inventory:
    """A fleet of one host at least, and of one deployment at least."""
    all_names = [name for name in machines if not without_gpus(name)]
    names = all_names[: draw.number(1, min(bounds.hosts, len(all_names)))]
    places = [*names, *(name for name in machines if without_gpus(name))]
    balancers = draw.some_of(places, most=bounds.balancers)
    modes = {name: "CPX" for name in names if draw.number(0, 5) == 0}
    deployments: list[dict[str, Any]] = []
    for number in range(draw.number(1, bounds.deployments)):
        made = _new_deployment(draw, deployments, names, NAMES[number])
        deployments += [made] if made else []
    return Inventory(
        {name: machines[name][0] for name in names},
        {name: machines[name][0] for name in balancers},
        tuple(deployments),
        modes,
        machines=machines,
    )


@st.composite
def inventories(draw: Callable[[Any], Any]) -> Inventory:
    """A fleet of one to six hosts, none to three load balancers and one to five deployments."""
    return inventory_of(Drawn(draw))


def _free(deployments: list[dict[str, Any]]) -> list[int]:
    used = {gpu for item in deployments for gpu in item["gpus"]}
    return [gpu for gpu in range(GPUS) if gpu not in used]


def _new_deployment(
    draw: Draw, there: list[dict[str, Any]], hosts: list[str], name: str
) -> dict[str, Any] | None:
    free = _free(there)
    if not free:
        return None
    count = draw.number(1, min(3, len(free)))
    made = deployment(
        name=name,
        gpus=free[:count],
        instances_per_host=count,
        port=8000 + 20 * NAMES.index(name),
        served_model_name=draw.one_of((*MODELS, name)),
    )
    if draw.number(0, 1) and len(hosts) > 1:
        made["hosts"] = draw.some_of(hosts, least=1)
    if len(hosts) > 1 and draw.number(0, 4) == 0:
        _span(made, hosts[:2])
    return made


def _span(made: dict[str, Any], hosts: list[str]) -> None:
    """Make a deployment one engine over two hosts."""
    made.update(
        nodes=2, tensor_parallel_size=1, pipeline_parallel_size=2, hosts=list(hosts), gpus=made["gpus"][:1]
    )
    made["instances_per_host"] = 1


# ---- edits -------------------------------------------------------------------------------------------

VIRTUAL = ("", "192.0.2.200/24", "192.0.2.201/24")
# With their defaults first.
ENDPOINT = {
    "load_balancer_auth": (True, False),
    "load_balancer_body_limit": (32, 64),
    "load_balancer_hang_timeout": (30, 45),
    "load_balancer_metrics_port": (8405, 8415),
    "load_balancer_queue_timeout": (60, 90),
    "load_balancer_repeat_unanswered": (False, True),
    "load_balancer_timeout": (3600, 1800),
}
OPENED_AT = {
    "load_balancer_listen": ("0.0.0.0", "127.0.0.1"),
    "load_balancer_port": (8443, 9443),
    "load_balancer_tls": (True, False),
}
ROLLOUT = {"serial": ([1, "20%"], [1], [2], ["100%"]), "min_available": (None, 1, 2, "75%", "25%")}
Parts = dict[str, Any]
"""An inventory in a form that edits change: its fields by name, of which "deployments" is a list."""


def _one(draw: Draw, parts: Parts) -> dict[str, Any] | None:
    there = parts["deployments"]
    return there[draw.number(0, len(there) - 1)] if there else None


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
        item["served_model_name"] = draw.one_of(MODELS)


def another_served_name(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item:
        item["served_model_name"] = list(dict.fromkeys((*_names(item), draw.one_of(MODELS))))


def fewer_served_names(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item and len(_names(item)) > 1:
        item["served_model_name"] = _names(item)[1:]


def port(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item:
        there = item["port"]
        item["port"] = draw.one_of((there + 1, there + 400, max(8000, there - 1)))


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
        item["engine_args"] = {"max_num_seqs": draw.one_of((16, 32, 64))}


def image(draw: Draw, parts: Parts) -> None:
    if item := _one(draw, parts):
        item["image"] = NEXT_IMAGE if item["image"] == IMAGE else IMAGE


def model(draw: Draw, parts: Parts) -> None:
    """Other weights, under the same names or another."""
    if item := _one(draw, parts):
        item["model"] = OTHER_REPO if item["model"] == REPO else REPO
        if draw.number(0, 1):
            item["served_model_name"] = draw.one_of(MODELS)


def weight(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item:
        item["weight"] = draw.number(1, 4)


def scale(draw: Draw, parts: Parts) -> None:
    item = _one(draw, parts)
    if item and item.get("nodes", 1) == 1:
        gpus = [*item["gpus"], *_free(parts["deployments"])]
        item["gpus"] = gpus[: draw.number(1, min(4, len(gpus)))]
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
        item["hosts"] = draw.some_of(sorted(parts["hosts"]), least=1)


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
    others = [name for name in parts["machines"] if without_gpus(name)]
    used = [machine(name) for name in parts["balancers"]]
    places = [name for name in (*sorted(parts["hosts"]), *others) if machine(name) not in used]
    if places and len(parts["balancers"]) < 3:
        name = draw.one_of(places)
        parts["balancers"][name] = parts["hosts"].get(name, parts["machines"][machine(name)][0])


def remove_balancer(draw: Draw, parts: Parts) -> None:
    if parts["balancers"]:
        parts["balancers"].pop(draw.one_of(sorted(parts["balancers"])))


def add_host(draw: Draw, parts: Parts) -> None:
    there = [machine(name) for name in (*parts["hosts"], *parts["balancers"])]
    name = next((name for name in parts["machines"] if name not in there and not without_gpus(name)), None)
    if name:
        parts["hosts"][name] = parts["machines"][name][0]


def remove_host(draw: Draw, parts: Parts) -> None:
    name = draw.one_of(sorted(parts["hosts"]))
    if len(parts["hosts"]) > 1 and name not in parts["balancers"]:
        parts["hosts"].pop(name)
        parts["modes"].pop(name, None)
        for item in parts["deployments"]:
            if "hosts" in item and name in item["hosts"]:
                item["hosts"] = [one for one in item["hosts"] if one != name] or sorted(parts["hosts"])[:1]


def readdress_host(draw: Draw, parts: Parts) -> None:
    name = draw.one_of(sorted(parts["hosts"]))
    parts["hosts"][name] = draw.one_of(parts["machines"][machine(name)])
    if name in parts["balancers"]:
        parts["balancers"][name] = parts["hosts"][name]


def rename_host(draw: Draw, parts: Parts) -> None:
    """The same machine under another name."""
    name = draw.one_of(sorted({*parts["hosts"], *parts["balancers"]}))
    new = machine(name) + ("" if name.endswith(RENAMED) else RENAMED)
    for key in ("hosts", "balancers", "modes"):
        parts[key] = {new if there == name else there: value for there, value in parts[key].items()}
    for item in parts["deployments"]:
        if "hosts" in item:
            item["hosts"] = [new if there == name else there for there in item["hosts"]]


def compute_mode(draw: Draw, parts: Parts) -> None:
    name = draw.one_of(sorted(parts["hosts"]))
    parts["modes"][name] = "SPX" if parts["modes"].get(name) == "CPX" else "CPX"


def another_key(draw: Draw, parts: Parts) -> None:
    parts["key"] = "second" if parts["key"] == "first" else "first"


def instance_auth(draw: Draw, parts: Parts) -> None:
    """Instances ask for the load balancers' key, or no longer."""
    name = "load_balancer_instance_auth"
    parts["endpoint"][name] = not parts["endpoint"].get(name, True)


def endpoint(draw: Draw, parts: Parts) -> None:
    """A setting of the load balancers that clients need not know."""
    _another_setting(draw, parts, ENDPOINT)


def opened_at(draw: Draw, parts: Parts) -> None:
    """Clients open another address of the load balancers."""
    _another_setting(draw, parts, OPENED_AT)


def _another_setting(draw: Draw, parts: Parts, among: Mapping[str, Sequence[Any]]) -> None:
    name = draw.one_of(sorted(among))
    old = parts["endpoint"].get(name, among[name][0])
    parts["endpoint"][name] = draw.one_of([value for value in among[name] if value != old])


def rollout(draw: Draw, parts: Parts) -> None:
    """How much changes at a time, and how much stays in service."""
    name = draw.one_of(sorted(ROLLOUT))
    parts["rollout"][name] = draw.one_of(ROLLOUT[name])


def virtual_address(draw: Draw, parts: Parts) -> None:
    """One that comes, another one, or none any more."""
    parts["virtual"] = draw.one_of([item for item in VIRTUAL if item != parts["virtual"]])


EDITS: tuple[Callable[[Draw, Parts], None], ...] = (
    rename, rename_with_its_model, served_name, another_served_name, fewer_served_names, port, swap_ports, listen,
    flags, image, model, weight, scale, move_gpus, swap_gpus, turn_gpus, move_hosts, add_deployment, remove_deployment,
    blue_green, split, join, nodes, add_balancer, remove_balancer, add_host, remove_host, rename_host, readdress_host,
    compute_mode, another_key, instance_auth, endpoint, opened_at, rollout, virtual_address,
)  # fmt: skip


Edit = Callable[[Draw, Parts], None]


def edit(
    draw: Draw, inventory: Inventory, most: int = 4, edits: Sequence[Edit] = EDITS
) -> tuple[Inventory, list[str]]:
    """An inventory after one to four edits in one commit, and what they are called."""
    parts: Parts = {
        "hosts": dict(inventory.hosts),
        "balancers": dict(inventory.balancers),
        "modes": dict(inventory.modes),
        "key": inventory.key,
        "virtual": inventory.virtual,
        "endpoint": dict(inventory.endpoint),
        "rollout": dict(inventory.rollout),
        "machines": inventory.machines,
        "deployments": copy.deepcopy(list(inventory.deployments)),
    }
    chosen = [draw.one_of(edits) for _ in range(draw.number(1, most))]
    for change in chosen:
        change(draw, parts)
    parts["deployments"] = tuple(parts["deployments"])
    return replace(inventory, **parts), [change.__name__ for change in chosen]
