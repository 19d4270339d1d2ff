# SPDX-License-Identifier: Apache-2.0
"""Engines of several servers in plans: their groups, their mates, and what does not go together."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import ImageSoftware
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    ImagePin,
    Lock,
    ModelPin,
    model_key,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan

from tests.worlds.network_world import node, rail
from tests.worlds.plan_world import (
    COMMIT,
    CONFIG,
    DIGEST,
    FILES_OF_REPO,
    GIB,
    IMAGE,
    REPO,
    apply_to_state,
    deployment,
    plan,
    problems,
)

SPAN = {"nodes": 2, "tensor_parallel_size": 8, "pipeline_parallel_size": 2}
OWN = {"n1": {"ansible_host": "10.0.0.1"}, "n2": {"ansible_host": "10.0.0.2"}}


def lock(version: str = "0.11.1") -> Lock:
    """Pins with another vLLM in the image."""
    software = ImageSoftware(version, "rocm", "7.0.0", "2.9.0", "3.12", ("gfx942",))
    model = ModelPin(COMMIT, FILES_OF_REPO, {**CONFIG, "num_experts": 8})
    return Lock({IMAGE: ImagePin(DIGEST, 4 * GIB, software)}, {model_key("", REPO, "main"): model})


def made(version: str = "0.11.1", states: Any = None, **keys: Any) -> FleetPlan:
    states = states or {"n1": node(1), "n2": node(2)}
    return plan(states, [deployment(**{**SPAN, **keys})], lock(version), own=OWN)


def script(found: FleetPlan, host: int, name: str = "serve.sh") -> str:
    server = found.to_json()["hosts"][f"n{host}"]["servers"][0]
    return str(server["files"][name]["text"])


def options(found: FleetPlan, host: int) -> dict[str, str]:
    """Options of the supervisor of a host's first server; of repeated ones the last."""
    text = script(found, host).partition("supervise.py")[2].partition("\n  -- ")[0]
    return dict(re.findall(r"(--[a-z-]+)[ =]([^\s\\]+)", text))


# ---- what a server is started with -------------------------------------------------------------------


def test_supervisors_of_an_engine_meet_at_its_first_host() -> None:
    found = made()
    head, other = options(found, 1), options(found, 2)
    assert (head["--group"], head["--hosts"], head["--rank"]) == ("10.0.0.1:23000", "n1,n2", "0")
    assert {**head, "--rank": "1"} == other
    assert re.fullmatch(r"llama-0@[0-9a-f]{12}", head["--engine"])
    assert "--ray-head" not in head
    for host, address in ((1, "10.0.0.1"), (2, "10.0.0.2")):
        env = script(found, host, "env")
        assert f"VLLM_HOST_IP={address}\n" in env.replace("'", "")
        assert "NCCL_SOCKET_IFNAME==eth0" in env.replace("'", "")
        devices = json.loads(script(found, host, "container.json"))["HostConfig"]["Devices"]
        assert devices[-1]["PathOnHost"] == "/dev/infiniband"


@pytest.mark.parametrize(
    ("keys", "same"),
    [({}, True), ({"port": 9000}, True), ({"engine_args": {"max_model_len": 4096}}, False),
     ({"env": {"NCCL_DEBUG": "INFO"}}, False), ({"pipeline_parallel_size": 1, "tensor_parallel_size": 16}, False)],
)  # fmt: skip
def test_servers_of_another_configuration_are_another_engine(keys: dict[str, Any], same: bool) -> None:
    assert (options(made(), 1)["--engine"] == options(made(**keys), 2)["--engine"]) == same


def test_the_operators_variables_win() -> None:
    env = script(made(env={"NCCL_SOCKET_IFNAME": "bond", "NCCL_IB_GID_INDEX": "1"}), 2, "env").replace(
        "'", ""
    )
    assert "NCCL_SOCKET_IFNAME=bond\n" in env
    assert "NCCL_IB_GID_INDEX=1\n" in env
    assert "GLOO_SOCKET_IFNAME=eth0\n" in env


def test_an_engine_by_ray() -> None:
    found = made("0.11.0")
    head, other = options(found, 1), options(found, 2)
    assert (head["--ray-head"], head["--ray-ip"], head["--ray-gpus"]) == ("28000", "10.0.0.1", "8")
    assert (other["--ray-worker"], other["--ray-ip"]) == ("10.0.0.1:28000", "10.0.0.2")
    for host in (1, 2):
        text = script(found, host)
        assert text.count("--distributed-executor-backend ray") == 1
        assert "--nnodes" not in text
        assert "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES=1" in script(found, host, "env").replace("'", "")
    assert "HIP_VISIBLE_DEVICES=" not in script(found, 1, "env").replace("NOSET_HIP_VISIBLE_DEVICES", "")


def test_ray_by_the_operators_word_is_named_once() -> None:
    found = made("0.15.0", engine_args={"distributed_executor_backend": "ray"})
    assert script(found, 1).count("--distributed-executor-backend ray") == 1
    assert options(found, 1)["--ray-head"] == "28000"


def test_servers_of_data_parallel_ranks_are_a_group_too() -> None:
    keys = {"nodes": 1, "tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 2}
    found = made(
        states={"n1": node(1), "n2": node(2)}, **keys, data_parallel_balancing="external", hosts=["n1"]
    )
    first = options(found, 1)
    assert (first["--group"], first["--hosts"], first["--rank"]) == (
        "127.0.0.1:23000",
        "llama-0,llama-1",
        "0",
    )
    assert "VLLM_HOST_IP" not in script(found, 1, "env")
    spread = made(**{**keys, "nodes": 2, "data_parallel_size": 4}, data_parallel_balancing="external")
    assert options(spread, 2)["--hosts"] == "n1/llama-0,n1/llama-1,n2/llama-0,n2/llama-1"
    assert options(spread, 2)["--rank"] == "2"
    assert "VLLM_HOST_IP" in script(spread, 2, "env")


@pytest.mark.parametrize(("version", "flags"), [
    ("0.11.1", ("--all2all-backend allgather_reducescatter", "--disable-nccl-for-dp-synchronization")),
    ("0.15.0", ()),  # it does both by itself
])  # fmt: skip
@pytest.mark.parametrize("balancing", ["internal", "hybrid", "external"])
def test_data_and_expert_parallel_over_hosts(balancing: str, version: str, flags: tuple[str, ...]) -> None:
    """AMD's guide, Data parallelism; every server has the network of its own host, and the head's address."""
    keys = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 16}
    found = made(version, **keys, data_parallel_balancing=balancing, settings={"expert_parallel": True})
    for host in (1, 2):
        text = script(found, host).replace("\\\n", "")
        words = " ".join(text.split())
        for flag in ("--enable-expert-parallel", "--data-parallel-address 10.0.0.1", *flags):
            assert f" {flag} " in f"{words} ", flag
        assert f"VLLM_HOST_IP=10.0.0.{host}" in script(found, host, "env").replace("'", "")
        assert len(found.to_json()["hosts"][f"n{host}"]["servers"]) == (8 if balancing == "external" else 1)
        assert ("--headless" in words) == (host == 2 and balancing == "internal")


# ---- mates -------------------------------------------------------------------------------------------


def served(**keys: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both hosts as they are when the deployment has been applied."""
    states = {"n1": node(1), "n2": node(2)}
    todo = made(states=states, **keys).to_json()["hosts"]
    first, second = (apply_to_state(states[name], todo[name]) for name in ("n1", "n2"))
    return first, second


def test_nothing_to_do_is_nothing() -> None:
    first, second = served()
    found = made(states={"n1": first, "n2": second}).to_json()["hosts"]
    assert [found[name]["servers"] for name in ("n1", "n2")] == [[], []]


def test_a_server_that_is_started_takes_its_running_mates_along() -> None:
    first, second = served()
    second["instances"][0]["state"] = "exited"
    found = made(states={"n1": first, "n2": second}).to_json()["hosts"]
    assert [found[name]["spans"] for name in ("n1", "n2")] == [["llama-0"], ["llama-0"]]
    (mate,) = [item for item in found["n1"]["actions"] if item["kind"] == "server"]
    assert (mate["before"], mate["after"], mate["reason"]) == (
        "running", "running, with its engine", "llama-0 on n2 is started, and the servers of an engine start together",
    )  # fmt: skip
    first["instances"][0]["state"] = "exited"
    found = made(states={"n1": first, "n2": second}).to_json()["hosts"]
    assert [item["reason"] for item in found["n1"]["actions"] if item["kind"] == "server"] == [
        "it is not running"
    ]


# ---- mismatches --------------------------------------------------------------------------------------


def test_ray_gives_the_heads_variables_to_all() -> None:
    other = node(2, rdma=[rail(number, gid_index=5) for number in range(8)])
    texts = problems({"n1": node(1), "n2": other}, [deployment(**SPAN)], lock=lock("0.11.0"), own=OWN)
    assert texts == [
        "vllm_deployments[0].nodes (host n2): NCCL_IB_GID_INDEX is 5 on n2 and 3 on n1, but with Ray all hosts get "
        "the head's value. "
        "Use vLLM's own launcher (vLLM 0.11.1 or newer, no executor), or give interfaces and devices the same "
        "names on all hosts."
    ]
    assert problems({"n1": node(1), "n2": other}, [deployment(**SPAN)], lock=lock(), own=OWN) == []


def test_images_that_hosts_built_themselves_may_differ() -> None:
    build = {"repo": "https://example.org/vllm.git", "ref": "a" * 40, "tag": "own/vllm:1"}
    states = {}
    for number, version in ((1, "0.15.0"), (2, "0.15.1")):
        probe = plan({"n1": node(1)}, [deployment(image=None, build=build, vllm_version="0.15.0", hosts=["n1"])],
                     own=OWN).to_json()  # fmt: skip
        tag = probe["hosts"]["n1"]["builds"]["build"][0]["ref"]
        software = {"vllm": version, "platform": "rocm", "rocm": "7.0.0", "pytorch": "2.9.0", "python": "3.12",
                    "gfx": ["gfx942"]}  # fmt: skip
        image = {"id": f"sha256:{number}", "tags": [tag], "digests": [], "bytes": 1, "software": software}
        states[f"n{number}"] = node(number, images=[image])
    (text,) = problems(states, [deployment(image=None, build=build, **SPAN)], lock=lock(), own=OWN)
    assert "llama-0 would run own/vllm:1" in text
    assert "with vLLM 0.15.0 on n1" in text
    assert "with vLLM 0.15.1 on n2" in text
