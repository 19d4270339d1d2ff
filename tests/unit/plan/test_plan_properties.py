# SPDX-License-Identifier: Apache-2.0
"""What holds for every plan: nothing is used twice, order is no matter, applying it leaves nothing to do."""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.worlds.plan_world import COUNTS, IMAGE, apply_to_state, deployment, gpus, plan, state

TIMES = int(os.environ.get("PLAN_EXAMPLES", "1"))
"""How many times as many examples are drawn; `make edits` draws twenty times as many."""
MODES = list(COUNTS)
# What an instance may be made of, on the two GPUs that each deployment below has for itself.
SHAPES: list[dict[str, Any]] = [
    {"tensor_parallel_size": 2},
    {"pipeline_parallel_size": 2},
    {"data_parallel_size": 2},
    {"data_parallel_size": 2, "data_parallel_balancing": "external"},
    {"instances_per_host": 2},
    {"instances_per_host": "max"},
    {"instances_per_host": 3, "instances_per_gpu": 2},
    {"instances_per_host": "max", "instances_per_gpu": 3},
]
SPANNING: list[dict[str, Any]] = [
    {"nodes": 2, "tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    {"nodes": 2, "tensor_parallel_size": 4},
    {"nodes": 4, "pipeline_parallel_size": 4, "instances_per_host": "max"},
    {"nodes": 2, "data_parallel_size": 4},
    {"nodes": 2, "data_parallel_size": 4, "data_parallel_balancing": "hybrid"},
    {"nodes": 4, "data_parallel_size": 8, "data_parallel_balancing": "external"},
]


@st.composite
def deployments(draw: st.DrawFn, clash: bool = False) -> list[dict[str, Any]]:
    """Some deployments, side by side; with clash perhaps in each other's way, so that most are refused."""
    found = []
    count = draw(st.integers(1, 4))
    for index in range(count):
        own = [2 * index, 2 * index + 1]
        ports, places = [8000 + 10 * index, 65530 - 10 * index], [own, own[::-1]]
        keys: dict[str, Any] = {
            "name": f"d{index}",
            "port": draw(st.sampled_from([*ports, 8001, 65535] if clash else ports)),
            **draw(st.sampled_from([{}, *SHAPES])),
            "gpus": draw(st.sampled_from([*places, *([None] if clash or count == 1 else [])])),
            "hosts": draw(st.none() | st.sampled_from([["n1"], ["blue"], ["n2", "n10"], []])),
            "engine_args": draw(
                st.sampled_from(
                    [
                        None,
                        {"max_model_len": 1024},
                        {"override_generation_config": {"top_p": 1, "top_k": 2}, "enforce_eager": True},
                        {"lora_modules": ["a=org/lora"], "tokenizer": "org/draft"},
                        {
                            "speculative_config": {
                                "method": "eagle3",
                                "model": "org/draft",
                                "revision": "d" * 40,
                            }
                        },
                    ]
                )
            ),
            "exclude": draw(st.none() | st.just(["original/*"])),
            "revision": draw(st.sampled_from(["main", "c" * 40])),
        }
        if draw(st.booleans()):
            keys.update(image=None, build={"repo": "https://x/y", "ref": "v1"}, vllm_version="0.11.1")
        found.append(deployment(**keys))
    return found


@st.composite
def variables(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "gpu_partition_compute": draw(st.none() | st.sampled_from(MODES)),
        "host_prep_numa_balancing": draw(st.booleans()),
    }


@st.composite
def states(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """Three hosts, each bare in its own way, or with what another plan left, half broken."""
    found = {}
    for name in ("n1", "n2", "n10"):
        changes: dict[str, Any] = {"gpus": gpus(draw(st.sampled_from(MODES)))}
        if draw(st.booleans()):
            changes["docker"] = {"installed": False, "available": False, "root_dir": None, "error": "absent"}
        host = state(**changes)
        if draw(st.booleans()):
            earlier = [deployment(name=draw(st.sampled_from(["d0", "gone"])), instances_per_host=2)]
            host = apply_to_state(host, plan({"n1": host}, earlier).to_json()["hosts"]["n1"])
            for instance in host["instances"]:
                instance["state"] = draw(st.sampled_from(["running", "exited", "restarting"]))
                instance["artefact_hash"] = draw(st.sampled_from([instance["artefact_hash"], None, "0" * 64]))
            if draw(st.booleans()):
                host["models"][0]["complete"] = False
        found[name] = host
    return found


ADDRESSES = {name: {"ansible_host": f"10.0.0.{at}"} for at, name in enumerate(("n1", "n2", "n10"), 1)}
"""Without one, a host gets no image that another builds."""


def try_plan(found: Any, wanted: Any, **keys: Any) -> dict[str, Any] | None:
    try:
        return plan(found, wanted, groups={"blue": ["n2"]}, own=ADDRESSES, **keys).to_json()
    except FleetError:
        return None


ACCEPTED: list[bool] = []
"""Of each example of the property that runs, whether there was a plan to hold against it."""


def planned(found: Any, wanted: Any, **keys: Any) -> dict[str, Any]:
    """The plan; an example without one is not counted, and another one is drawn."""
    data = try_plan(found, wanted, **keys)
    ACCEPTED.append(data is not None)
    assume(data is not None)
    assert data is not None
    return data


def proves(examples: int, part: float = 0.9) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Draw so many examples, times TIMES; the property also fails when fewer than this part of them had a plan."""

    def made(given_test: Callable[..., None]) -> Callable[[], None]:
        drawn = settings(max_examples=examples * TIMES)(given_test)

        def run() -> None:
            ACCEPTED.clear()
            drawn()
            assert sum(ACCEPTED) >= part * examples * TIMES, (
                f"{sum(ACCEPTED)} plans in {len(ACCEPTED)} examples"
            )

        run.__name__, run.__doc__ = given_test.__name__, given_test.__doc__
        return run

    return made


@proves(20)
@given(states(), deployments(), variables())
def test_nothing_is_used_twice(found: Any, wanted: Any, chosen: Any) -> None:
    data = planned(found, wanted, **chosen)
    for host in data["hosts"].values():
        ports = [port for item in host["instances"] for port in item["ports"]]
        for things in (ports, [item["name"] for item in host["instances"]]):
            assert len(things) == len(set(things))
        assert all(share <= 1 for share in memory_in_use(host, wanted).values())
        used = [gpu for item in host["instances"] for gpu in item["gpus"]]
        assert all(0 < port < 65536 for port in ports)
        assert all(gpu < host["gpus"]["logical"] for gpu in used)
        mounts = [item["server"]["cache_directory"] for item in host["instances"]]
        assert len(mounts) == len(set(mounts))


def memory_in_use(host: dict[str, Any], wanted: list[dict[str, Any]]) -> dict[str, Fraction]:
    """The part of each render node's memory that the host's instances may take."""
    shares = {item["name"]: Fraction(1, item.get("instances_per_gpu", 1)) for item in wanted}
    found: dict[str, Fraction] = defaultdict(Fraction)
    for item in host["instances"]:
        for node in item["render_nodes"]:
            found[node] += shares[item["deployment"]]
    return found


@st.composite
def groups(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Deployments over groups of hosts, on GPUs of their own; sometimes with ports that meet."""
    return [
        deployment(
            name=f"d{index}",
            port=draw(st.sampled_from([*[8000 + 10 * index] * 4, 18000])),
            gpus=[2 * index, 2 * index + 1],
            **draw(st.sampled_from([*SPANNING, *SHAPES])),
        )
        for index in range(draw(st.integers(1, 3)))
    ]


@proves(10)
@given(groups(), st.randoms(use_true_random=False))
def test_groups_follow_from_names_and_stay(wanted: Any, chance: random.Random) -> None:
    names = ["n1", "n2", "n9", "n10"]
    data = planned({name: state() for name in names}, wanted)
    after = {name: apply_to_state(state(), data["hosts"][name]) for name in chance.sample(names, 4)}
    again = try_plan(after, chance.sample(wanted, len(wanted)))
    assert again is not None
    for name, host in again["hosts"].items():
        assert (host["actions"], host["instances"]) == ([], data["hosts"][name]["instances"])


def listens(item: dict[str, Any]) -> set[int]:
    """Ports of an instance, with the one where its engine's servers meet."""
    rank = item["rank"]
    first = rank and rank["node_rank"] == rank["data_rank"] == 0
    return {*item["ports"], rank["master_port"]} if first else set(item["ports"])


@proves(20)
@given(groups(), st.randoms(use_true_random=False))
def test_ranks_of_an_engine_are_complete(wanted: Any, chance: random.Random) -> None:
    names = ["n1", "n2", "n9", "n10"]
    data = planned({name: state() for name in chance.sample(names, 4)}, wanted)
    sizes = {item["name"]: item for item in wanted}
    engines: dict[tuple[Any, ...], list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    for name, host in data["hosts"].items():
        assert all(share <= 1 for share in memory_in_use(host, wanted).values())
        listening = Counter(port for item in host["instances"] for port in listens(item))
        assert all(count == 1 for count in listening.values())
        for item in host["instances"]:
            if item["rank"]:
                rank = item["rank"]
                within = name if len(rank["hosts"]) < 2 else ""
                engines[item["deployment"], rank["group"], rank["master_port"], within].append((name, item))
    for (name, *_), servers in engines.items():
        shape = sizes[name]
        nodes, ranks = shape.get("nodes", 1), [item["rank"] for _, item in servers]
        external = shape.get("data_parallel_balancing") == "external"
        each = shape["data_parallel_size"] // nodes if external else 1
        assert len({(rank["node_rank"], rank["data_rank"]) for rank in ranks}) == len(ranks) == nodes * each
        assert Counter(rank["node_rank"] for rank in ranks) == dict.fromkeys(range(nodes), each)
        assert len({(rank["master"], rank["master_port"]) for rank in ranks}) == 1
        assert len({len(item["gpus"]) for _, item in servers}) == 1
        if nodes > 1:
            assert [rank["hosts"][rank["node_rank"]] for rank in ranks] == [host for host, _ in servers]
        assert [bool(item["ports"]) for _, item in servers] == [not rank["headless"] for rank in ranks]


# What is refused is refused in any order, too. Which examples are drawn depends on what else a process has imported.
@proves(30, 0.1)
@given(
    states(),
    deployments() | deployments() | deployments(clash=True),
    variables(),
    st.randoms(use_true_random=False),
)
def test_order_does_not_matter(found: Any, wanted: Any, chosen: Any, chance: random.Random) -> None:
    data = try_plan(found, wanted, **chosen)
    ACCEPTED.append(data is not None)
    names = list(found)
    chance.shuffle(names)
    other = [dict(chance.sample(list(item.items()), len(item))) for item in wanted]
    chance.shuffle(other)
    shuffled = {}
    for name in names:
        host = dict(found[name])
        for key in ("gpus", "images", "models", "instances", "disk"):
            host[key] = chance.sample(host[key], len(host[key]))
        shuffled[name] = host
    assert try_plan(shuffled, other, **chosen) == data


@proves(20)
@given(states(), deployments(), variables())
def test_after_a_plan_is_applied_nothing_is_left_to_do(found: Any, wanted: Any, chosen: Any) -> None:
    data = planned(found, wanted, **chosen)
    after = {name: apply_to_state(host, data["hosts"][name]) for name, host in found.items()}
    again = try_plan(after, wanted, **chosen)
    assert again is not None
    for name, host in again["hosts"].items():
        assert host["actions"] == [], name
        assert (host["todo"], host["servers"], host["remove"], host["images"], host["models"]) == (
            [],
            [],
            [],
            [],
            [],
        )
        assert host["instances"] == data["hosts"][name]["instances"]


@proves(20)
@given(states(), deployments(), variables(), st.integers(1, 5))
def test_a_run_that_was_cut_off_goes_on_to_the_same_end(
    found: Any, wanted: Any, chosen: Any, done: int
) -> None:
    """Roles run in order; whatever was finished before the cut, the next plan leads to the same state."""
    data = planned(found, wanted, **chosen)
    for name, host in found.items():
        whole = apply_to_state(host, data["hosts"][name])
        part = partial(data["hosts"][name], done)
        between = apply_to_state(host, part)
        rest = try_plan({**found, name: between}, wanted, **chosen)
        assert rest is not None
        end = apply_to_state(between, rest["hosts"][name])
        for key in ("gpus", "numa_balancing", "docker"):
            assert end[key] == whole[key]
        for key in ("instances", "images", "models"):
            assert sorted(map(str, end[key])) == sorted(map(str, whole[key]))


def partial(host: dict[str, Any], roles: int) -> dict[str, Any]:
    """A host's plan of which only the first roles were applied."""
    nothing = {
        "packages": [],
        "numa_balancing": None,
        "partition": None,
        "images": [],
        "models": [],
        "servers": [],
        "remove": [],
        "generations": [],
        "bindings": [],
    }
    records = ["generations", "bindings"]
    keys = [
        ["packages", "numa_balancing"],
        ["images"],
        ["models"],
        [*records, "partition"],
        ["servers", "remove"],
    ]
    return {**nothing, **{key: host[key] for group in keys[:roles] for key in group}}


def test_every_shape_has_a_plan() -> None:
    """What the properties above draw from."""
    wanted = [deployment(name="d0"), deployment(name="d1", port=9000, gpus=[1], image=IMAGE)]
    assert try_plan({name: state() for name in ("n1", "n2", "n10")}, wanted) is not None
    for shape in (*SHAPES, *SPANNING):
        hosts = {name: state() for name in ("n1", "n2", "n9", "n10")}
        assert try_plan(hosts, [deployment(**shape, gpus=[0, 1])]) is not None, shape
