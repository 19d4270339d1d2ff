# SPDX-License-Identifier: Apache-2.0
"""One engine over two nodes: started, lost and brought back as a group.

The stand-in shows the group's logic, as it hangs when a rank is lost; the real vLLM (CPU) that tokens are made by
tensor and pipeline parallel groups over two hosts.
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from lab.config import RAY_TAG, STANDIN_REPOSITORY, VLLM_VERSION
from tests import ROOT

from .conftest import Lab, container, lab_command, node_address
from .endpoint import Endpoint
from .helpers import MODEL, deployment, wait_for

REAL = f"registry.lab:5000/lab/vllm:cpu_vllm_{VLLM_VERSION}"
HEAD, OTHER = "lab-n1", "lab-n2"
RUNBOOK = (ROOT / "docs/runbooks/multinode.md").read_text(encoding="utf-8")
PLAYS = set(re.findall(r"^\$ ansible-playbook -i inventory/mine playbooks/(.+)$", RUNBOOK, re.MULTILINE))
ON_HOST = set(
    re.findall(r"^# (.+)$", "".join(re.findall(r"```console\n(.+?)```", RUNBOOK, re.DOTALL)), re.MULTILINE)
)
RAY_STATUS = "docker exec instinct-llama-0 ray status"
BODY = {"model": MODEL, "prompt": "Hello", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def endpoint(balanced_lab: Lab) -> Endpoint:
    return Endpoint(balanced_lab)


def over_two(**keys: Any) -> dict[str, Any]:
    """A deployment over both nodes: a GPU on each."""
    return deployment(**{"nodes": 2, "tensor_parallel_size": 2, **keys})


def real(*, eager: bool = True, **keys: Any) -> dict[str, Any]:
    """The same with the real vLLM. Pipeline parallel needs compiled code on the CPU (vLLM 0.32)."""
    args = {"max_model_len": 512, "max_num_seqs": 4, "shutdown_timeout": 5, "enforce_eager": eager}
    return over_two(
        image=REAL,
        engine_args={key: value for key, value in args.items() if value is not False},
        env={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
        **keys,
    )


def deploy(endpoint: Endpoint, wanted: dict[str, Any], **variables: Any) -> Any:
    endpoint.lab.write_vars(vllm_deployments=[wanted], **variables)
    run = endpoint.lab.play("deploy")
    assert run.rc == 0, run.out[-4000:]
    endpoint.trust()
    return run


def answers(endpoint: Endpoint) -> bool:
    """Tokens through the load balancer."""
    try:
        status, answer = endpoint.ask("/v1/completions", BODY)
    except OSError:
        return False
    return status == 200 and answer["usage"]["completion_tokens"] == 4


@pytest.fixture
def standin(endpoint: Endpoint) -> Endpoint:
    """The stand-in over both nodes, whatever ran before."""
    image = endpoint.lab.on(HEAD, "docker inspect -f '{{.Config.Image}}' instinct-llama-0", check=False)
    if not image.startswith(f"registry.lab:5000/{STANDIN_REPOSITORY}") or not answers(endpoint):
        deploy(endpoint, over_two())
        wait_for("tokens", lambda: answers(endpoint))
    return endpoint


def supervisor(lab: Lab, host: str) -> dict[str, Any]:
    text = lab.on(host, "cat /var/lib/instinct-fleet/cache/llama-0/supervise/state.json", check=False)
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    return found


def restarts(lab: Lab, host: str) -> int:
    return int(lab.on(host, "docker inspect -f '{{.RestartCount}}' instinct-llama-0"))


def kill(lab: Lab, host: str, what: str) -> None:
    """SIGKILL to a rank: to its vLLM, or to its container's first process."""
    if what == "container":
        pid = lab.on(host, "docker inspect -f '{{.State.Pid}}' instinct-llama-0").strip()
    else:
        inside = lab.on(host, "docker inspect -f '{{.State.Pid}}' instinct-llama-0").strip()
        pid = lab.on(host, f"pgrep -o -f '/bin/vllm serve' --ns {inside}").strip()
    lab.on(host, f"kill -9 {pid}")


def comes_back(endpoint: Endpoint, host: str, what: str) -> None:
    """A rank is killed: both ranks end, start again, and answer."""
    lab = endpoint.lab
    before = {name: restarts(lab, name) for name in lab.hosts}
    kill(lab, host, what)
    wait_for("both ranks to be started again", lambda: all(restarts(lab, h) > before[h] for h in lab.hosts))
    wait_for("tokens", lambda: answers(endpoint))
    # An engine answers before its supervisor has read that it does, and has told the other one.
    wait_for("both supervisors", lambda: all(supervisor(lab, h).get("state") == "running" for h in lab.hosts))


# ---- the group -----------------------------------------------------------------------------------------


def test_a_group_starts_on_all_hosts_before_one_waits(endpoint: Endpoint) -> None:
    lab = endpoint.lab
    endpoint.lab.write_vars(vllm_deployments=[over_two()])
    # One host at a time: a host that waited for tokens would keep the other one from starting.
    run = lab.play("deploy", "--forks", "1")
    assert run.rc == 0, run.out[-4000:]
    endpoint.trust()
    wait_for("tokens", lambda: answers(endpoint))  # HAProxy looks for itself whether it is up
    again = lab.play("deploy")
    assert (again.rc, again.changed()) == (0, [])
    shown = again.plan()["hosts"][OTHER]["instances"][0]["env"]
    assert (shown["VLLM_HOST_IP"], shown["NCCL_SOCKET_IFNAME"], shown["GLOO_SOCKET_IFNAME"]) == (
        node_address(2), "=eth0", "eth0",
    )  # fmt: skip
    assert shown["NCCL_IB_HCA"] == "=" + ",".join(f"mlx5_{number}:1" for number in range(8))
    assert shown["NCCL_IB_GID_INDEX"] == "3"
    inside = "docker exec instinct-llama-0 sh -c 'ls /dev/infiniband | wc -l'"
    assert [lab.on(host, inside).strip() for host in lab.hosts] == ["9", "9"]
    ports = lab.on(HEAD, "ss -Hltn | awk '{print $4}' | grep -v 127.0.0.11").split()
    assert {f"{node_address(1)}:{port}" for port in (23000, 28000)} >= {
        port for port in ports if port.startswith("172.")
    }


@pytest.mark.parametrize(
    ("host", "what"),
    [
        (HEAD, "container"),
        pytest.param(HEAD, "vllm", marks=pytest.mark.deep),
        pytest.param(OTHER, "vllm", marks=pytest.mark.deep),
        pytest.param(OTHER, "container", marks=pytest.mark.deep),
    ],
)
def test_a_rank_that_is_killed_takes_its_group_along_and_back(
    standin: Endpoint, host: str, what: str
) -> None:
    comes_back(standin, host, what)


@pytest.mark.deep
def test_a_rank_that_is_stopped_is_waited_for_by_name(standin: Endpoint) -> None:
    endpoint = standin
    lab = endpoint.lab
    lab.on(OTHER, "docker stop instinct-llama-0")
    wait_for("the head to wait", lambda: supervisor(lab, HEAD).get("why") == f"waits for {OTHER} (rank 1)")
    assert not answers(endpoint)
    run = lab.play("deploy")
    assert run.rc == 0, run.out[-4000:]
    assert "the servers of an engine start together" in json.dumps(run.plan()["hosts"][HEAD]["actions"])
    wait_for("tokens", lambda: answers(endpoint))


@pytest.mark.deep
def test_a_dead_node_is_waited_for_and_its_return_is_enough(standin: Endpoint) -> None:
    endpoint = standin
    lab = endpoint.lab
    assert sorted(PLAYS) == [
        "deploy.yml", "drain.yml -e deployment=llama -e at_once=true", "plan.yml -e explain=true",
        "undrain.yml -e deployment=llama",
    ]  # fmt: skip
    for command in ON_HOST - {RAY_STATUS}:
        for host in lab.hosts:
            assert lab.on(host, command), command
    explained = lab.play("plan", "-e", "explain=true")
    assert "where the other hosts reach this one; eth0 has it" in explained.out
    drained = lab.play("drain", "-e", "deployment=llama", "-e", "at_once=true")
    assert drained.rc == 0, drained.out
    subprocess.run(["docker", "kill", container(OTHER)], check=True, capture_output=True)
    wait_for("the head to wait", lambda: supervisor(lab, HEAD).get("why") == f"waits for {OTHER} (rank 1)")
    run = lab.play("deploy")
    assert any(f"this run {verb} {OTHER}" in run.out for verb in ("lacks", "does not have")), run.out
    assert not any(item for item in run.changed() if item.startswith(HEAD))
    lab.reboot(OTHER)
    back = lab.play("undrain", "-e", "deployment=llama")
    assert back.rc == 0, back.out
    wait_for("tokens", lambda: answers(endpoint))


def both_nodes(status: str) -> bool:
    """Ray's status has two nodes, and the GPU of each."""
    return status.count("1 node_") == 2 and "0.0/2.0 GPU" in status


# ---- Ray ------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_cluster_of_ray_around_an_engine(endpoint: Endpoint) -> None:
    """vLLM's CPU build refuses Ray, so the engine is the stand-in; the cluster is real."""
    lab_command("ray")
    lab = endpoint.lab
    image = f"registry.lab:5000/{STANDIN_REPOSITORY}:{RAY_TAG}"
    deploy(endpoint, over_two(image=image, settings={"executor": "ray"}))
    wait_for("tokens", lambda: answers(endpoint))
    head = f"{node_address(1)}:28000"
    nodes = f"docker exec instinct-llama-0 python3 -c \"import ray; ray.init(address='{head}'); "
    nodes += "print([(n['NodeManagerAddress'], n['Resources']['GPU']) for n in ray.nodes() if n['Alive']])\""
    found = lab.on(HEAD, f"{nodes} 2> /dev/null")
    assert all(f"('{address}', 1.0)" in found for address in map(node_address, (1, 2))), found
    for host in lab.hosts:
        # Ray's monitor hears of one node after the other.
        wait_for("Ray's monitor", lambda host=host: both_nodes(lab.on(host, RAY_STATUS, check=False)))  # type: ignore[misc]
    comes_back(endpoint, OTHER, "container")


# ---- the real vLLM --------------------------------------------------------------------------------------


@pytest.mark.deep  # six minutes of both cores; the group's logic is shown by the stand-in in every run
def test_tensor_parallel_over_two_hosts(standin: Endpoint) -> None:
    endpoint = standin
    deploy(endpoint, real())  # where the stand-in ran: the new head does not take the old rank for its own
    wait_for("tokens", lambda: answers(endpoint))
    assert all(supervisor(endpoint.lab, host)["failures"] == [] for host in endpoint.lab.hosts)
    log = endpoint.lab.on(OTHER, "docker logs instinct-llama-0 2>&1 | grep -c 'world_size=2 rank=1'")
    assert int(log) >= 1


@pytest.mark.deep
@pytest.mark.parametrize(
    ("host", "what"), [(OTHER, "vllm"), (OTHER, "container"), (HEAD, "vllm"), (HEAD, "container")]
)
def test_tensor_parallel_comes_back(endpoint: Endpoint, host: str, what: str) -> None:
    deploy(endpoint, real())
    comes_back(endpoint, host, what)


@pytest.mark.deep
def test_pipeline_parallel_over_two_hosts(endpoint: Endpoint) -> None:
    deploy(endpoint, real(eager=False, tensor_parallel_size=1, pipeline_parallel_size=2))
    wait_for("tokens", lambda: answers(endpoint))
    for host, what in ((OTHER, "vllm"), (HEAD, "container")):
        comes_back(endpoint, host, what)
