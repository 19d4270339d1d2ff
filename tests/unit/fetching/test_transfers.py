# SPDX-License-Identifier: Apache-2.0
"""What several hosts lack, one of them fetches, and they pass it on; a host with nothing to do takes no part."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.content.transfer_names import (
    image_name,
    model_name,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain

from tests.worlds.plan_world import COMMIT, DIGEST, GIB, IMAGE, REPO, deployment, plan, state

Json = dict[str, Any]
FILES = {"config.json": 700, "model-1.safetensors": 5127868416}
MODEL = model_name(REPO, COMMIT, {**FILES, "original/params.npz": 12 * GIB - FILES["model-1.safetensors"]})
STORED = image_name(DIGEST)


def _fleet(count: int, **own: Json) -> tuple[dict[str, Json], Json]:
    """Hosts with addresses; `own` has variables of single ones."""
    names = [f"n{number}" for number in range(1, count + 1)]
    variables = {
        name: {"ansible_host": f"10.0.0.{at}", **own.get(name, {})} for at, name in enumerate(names, 1)
    }
    return {name: state(hostname=name) for name in names}, variables


def _plan(states: dict[str, Json], variables: Json, **common: Any) -> Json:
    wanted = [deployment(instances_per_host=1)]
    return plan(states, wanted, own=variables, **common).to_json()


def _transfers(data: Json) -> dict[str, Json]:
    return {item["name"]: item for item in data.get("transfers", [])}


def test_one_fetches_and_the_others_get_it_from_each_other() -> None:
    data = _plan(*_fleet(4))
    found = _transfers(data)
    assert found.keys() == {STORED, MODEL}
    image, model = found[STORED], found[MODEL]
    assert (image["seed"], image["origin"], image["bytes"]) == ("n1", "registry.lab:5000", 4 * GIB)
    assert (model["seed"], model["origin"], model["bytes"]) == (
        "n1",
        "https://huggingface.co",
        12 * GIB + 700,
    )
    assert image["offer"]["image"]["pull"].endswith(DIGEST)
    assert model["offer"]["model"]["commit"] == COMMIT
    assert [(item["name"], item["address"], item["serves"]) for item in image["members"]] == [
        ("n1", "10.0.0.1", True),
        ("n2", "10.0.0.2", False),
        ("n3", "10.0.0.3", False),
        ("n4", "10.0.0.4", False),
    ]
    ports = [{item["port"] for item in one["members"]} for one in (image, model)]
    assert ports[0] | {port + 1 for port in ports[0]} != ports[1], "two at once do not meet"
    for name, host in data["hosts"].items():
        assert host["transfers"] == [STORED, MODEL]
        assert host["todo"][1:4] == ["distribution", "vllm_image", "hf_model"]
        offered = [item.get("offered", False) for item in (*host["images"], *host["models"])]
        assert offered == [name == "n1"] * 2


@pytest.mark.parametrize(
    ("hosts", "fetch_from", "shared"),
    [
        (1, "auto", False),
        (2, "auto", False),
        (3, "auto", True),
        (1, "peers", False),
        (2, "peers", True),
        (5, "origin", False),
    ],
)
def test_how_many_must_lack_it(hosts: int, fetch_from: str, shared: bool) -> None:
    data = _plan(*_fleet(hosts), fetch_from=fetch_from)
    assert bool(_transfers(data)) is shared
    assert any("distribution" in host["todo"] for host in data["hosts"].values()) is shared


def test_hosts_that_fetch_for_themselves_are_left_out() -> None:
    own = {"fetch_from": "origin"}
    members = _transfers(_plan(*_fleet(5, n1=own, n4=own)))[STORED]["members"]
    assert [item["name"] for item in members] == ["n2", "n3", "n5"]


def _having(found: dict[str, Json], name: str) -> dict[str, Json]:
    """This host has everything already."""
    cached = {
        "cache_dir": "/var/lib/instinct-fleet/hf",
        "repo": REPO,
        "commit": COMMIT,
        "complete": True,
        "bytes": 12 * GIB + 700,
        "files": 3,
        "exclude": [],
        "include": [],
        "verified": True,
    }
    image = {"id": "sha256:1", "tags": [IMAGE], "digests": [f"{IMAGE.rpartition(':')[0]}@{DIGEST}"]}
    found[name] = state(hostname=name, models=[cached], images=[{**image, "bytes": 1}], stored=[STORED])
    return found


def test_who_has_it_offers_it_and_the_origin_sends_nothing() -> None:
    states, variables = _fleet(5)
    data = _plan(_having(states, "n4"), variables)
    for item in _transfers(data).values():
        assert (item["seed"], item["origin"]) == ("n4", None)
        assert [one["name"] for one in item["members"]] == ["n4", "n1", "n2", "n3", "n5"]
    offers = [item for item in data["hosts"]["n4"]["actions"] if item["kind"] == "transfer"]
    assert [(item["before"], item["after"]) for item in offers] == [
        ("present", "n4 has it, and 4 hosts get it there and from each other")
    ] * 2
    assert (data["hosts"]["n4"]["images"], data["hosts"]["n4"]["models"]) == ([], [])


def test_a_single_host_gets_it_from_another_one_when_it_has_to() -> None:
    states, variables = _fleet(2)
    assert not _transfers(_plan(_having(states, "n2"), variables))
    found = _transfers(_plan(_having(states, "n2"), variables, fetch_from="peers"))
    assert [item["seed"] for item in found.values()] == ["n2", "n2"]


def test_a_host_with_nothing_to_do_is_in_no_group() -> None:
    states, variables = _fleet(5)
    data = _plan(_having(_having(states, "n4"), "n5"), variables)
    assert "distribution" not in data["hosts"]["n5"]["todo"]
    assert "transfers" not in data["hosts"]["n5"]


@pytest.mark.parametrize(
    ("own", "interfaces", "address"),
    [
        ({}, [], "10.0.0.1"),
        ({"distribution_interface": "fab0"}, [("fab0", ["192.168.7.1"], True)], "192.168.7.1"),
        ({"distribution_interface": "fab0"}, [("fab0", ["192.168.7.1"], False)], None),
        ({"distribution_interface": "fab0"}, [], None),
        ({"ansible_host": "n1.example"}, [("eno1", ["10.9.0.1", "fd00::1"], True)], "10.9.0.1"),
        (
            {"ansible_host": "n1.example"},
            [("eno1", ["10.9.0.1"], True), ("docker0", ["172.17.0.1"], True)],
            "10.9.0.1",
        ),
        ({"ansible_host": "n1.example"}, [("eno1", ["10.9.0.1"], True), ("eno2", ["10.8.0.1"], True)], None),
        ({"ansible_host": "127.0.0.1"}, [("eno1", ["10.9.0.1"], True)], None),
    ],
)
def test_where_others_reach_a_host(own: Json, interfaces: list[Any], address: str | None) -> None:
    states, variables = _fleet(4, n1=own)
    states["n1"]["interfaces"] = [
        {"name": name, "addresses": addresses, "up": up, "mtu": 1500, "speed": None}
        for name, addresses, up in interfaces
    ]
    data = _plan(states, variables)
    found = {item["name"]: item["address"] for item in _transfers(data)[STORED]["members"]}
    assert found.get("n1") == address
    warned = [
        text for text in data["warnings"] if text.startswith("n1: each host fetches images and weights")
    ]
    assert len(warned) == (address is None)


def test_a_full_disk_leaves_a_host_to_fetch_for_itself() -> None:
    """A compressed image is there besides the unpacked one; weights are the same files."""
    states, variables = _fleet(4)
    docker = {"path": "/var/lib/docker", "free_bytes": 500 * GIB, "total_bytes": 900 * GIB, "device": 1}
    data = {
        "path": "/var/lib/instinct-fleet/hf",
        "free_bytes": 14 * GIB,
        "total_bytes": 900 * GIB,
        "device": 2,
    }
    states["n2"]["disk"] = [docker, data, {**data, "path": "/var/lib/instinct-fleet"}]
    found = _plan(states, variables)
    members = {name: [one["name"] for one in item["members"]] for name, item in _transfers(found).items()}
    assert members == {STORED: ["n1", "n3", "n4"], MODEL: ["n1", "n2", "n3", "n4"]}
    assert f"n2: image {IMAGE} comes from its origin" in "".join(found["warnings"])


@pytest.mark.parametrize(
    ("rates", "minutes", "bound"),
    [
        ({}, None, None),
        ({"uplink": 1000, "interface": 25000, "disk": 3000}, 0.64, "uplink"),
        ({"uplink": 100000, "interface": 25000, "disk": 100}, 0.8, "disk"),
        ({"interface": 1000}, 0.64, "interface"),
    ],
)
def test_the_time_is_told_where_rates_are_declared(
    rates: Json, minutes: float | None, bound: str | None
) -> None:
    image = _transfers(_plan(*_fleet(3), distribution_rates=rates))[STORED]
    assert image["bound"] == bound
    if minutes is None:
        assert image["seconds"] is None
    else:
        assert image["seconds"] == pytest.approx(minutes * 60, rel=0.05)


def test_the_text_tells_bytes_by_source() -> None:
    states, variables = _fleet(4)
    text = explain(
        plan(states, [deployment()], own=variables, distribution_rates={"uplink": 1000, "interface": 25000})
    )
    assert (
        f"\nTransfers\n  image {IMAGE}: 4.0 GiB from registry.lab:5000 to n1, then 12.0 GiB between hosts, to n2, n3, "
        "n4; about 1 min, as the uplink allows\n"
    ) in text
    assert (
        f"share image {IMAGE}: absent → n1 fetches 4.0 GiB from registry.lab:5000, and 3 hosts get it" in text
    )
    assert "n1, n2, n3, n4: 8 x MI300X" in text, "they have the same to do"


def test_without_observation_nothing_is_promised() -> None:
    _unused, variables = _fleet(4)
    data = _plan(dict.fromkeys(variables), variables, offline=True, instinct_gpus={"model": "MI300X"})  # type: ignore[arg-type]
    assert not _transfers(data)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"fetch_from": "peer"}, "fetch_from"),
        ({"distribution_rates": {"uplnk": 1}}, "uplink"),
        ({"distribution_rates": {"uplink": "fast"}}, "distribution_rates.uplink"),
        ({"distribution_port": 80}, "distribution_port"),
        ({"distribution_interface": "a/b"}, "distribution_interface"),
    ],
)
def test_what_is_wrong_is_refused(variables: Json, said: str) -> None:
    from tests.worlds.plan_world import problems

    states, own = _fleet(3)
    assert said in "".join(problems(states, [deployment()], own=own, **variables))
