# SPDX-License-Identifier: Apache-2.0
"""What node_state says of three trees stays what it was, to the byte: for changes that are meant to change nothing.

tests/data/observed_trees.json is what it said while it was still written as a single file. Where it is meant to say
something else, write the record anew, and look at what changed:

    python -m tests.unit.observe.test_observe_trees > tests/data/observed_trees.json
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.worlds.gpu_tree import Tree, write
from tests.worlds.observe_world import Engine, captured_in_cpx, observed, put

RECORD = ROOT / "tests/data/observed_trees.json"
STATE, DATA = "etc/instinct-fleet", "var/lib/instinct-fleet"
COMMIT = "a" * 40


def host(root: Path) -> None:
    """Processors, memory, kernel settings and groups of a server with two sockets."""
    for path, text in {
        "etc/os-release": 'PRETTY_NAME="Ubuntu 24.04 LTS"\nID=ubuntu\nVERSION_ID="24.04"\n',
        "etc/group": "root:x:0:\nvideo:x:44:\nrender:x:109:\n",
        "etc/sysctl.d/60-a.conf": "kernel.numa_balancing = 0\n",
        "usr/lib/sysctl.d/70-b.conf": "# a comment\nkernel/numa_balancing=1\nvm.swappiness = 1\n",
        "proc/cmdline": "quiet iommu=pt\n",
        "proc/meminfo": "MemTotal:  2113000000 kB\nMemFree: 1 kB\n",
        "proc/sys/kernel/numa_balancing": "1\n",
        "sys/devices/system/cpu/online": "0-383\n",
        "sys/devices/system/cpu/cpu0/topology/package_cpus_list": "0-95,192-287\n",
        "sys/devices/system/cpu/cpu96/topology/core_siblings_list": "96-191,288-383\n",
        "sys/devices/system/node/node0/cpulist": "0-95,192-287\n",
        "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:  1082000000 kB\n",
        "sys/devices/system/node/node1/cpulist": "96-191,288-383\n",
        "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:  many kB\n",
        "usr/bin/git": "",
    }.items():
        put(root, path, text)


def in_use(root: Path) -> dict[str, Any]:
    """Eight MI300X in four modes, with processes, errors, files that are missing or wrong, and RDMA."""
    tree = Tree(root).build()
    for index, mode in enumerate(("CPX", "SPX", "DPX", "QPX")):
        tree.set(index, mode)
    host(root)
    tree.hold(77, "gpuagent")
    tree.hold(4242, "python3")
    write(root / "sys/class/kfd/kfd/proc/77/vram_30010", "4096\n")
    write(root / "sys/class/kfd/kfd/proc/4242/vram_30002", "4096\n")
    write(root / "proc/4242/stat", "4242 (a ) b) Z 1 78 78 0 -1\n")
    write(tree.device(3) / "ras/umc_err_count", "ue: 2\nce: 7\n")
    write(tree.device(4) / "numa_node", "many\n")
    write(tree.device(5) / "available_compute_partition", "Not supported\n")
    write(tree.device(5) / "current_memory_partition", "UNKNOWN\n")
    (tree.device(6) / "current_compute_partition").unlink()
    put(root, "opt/rocm/bin/amd-smi", "")
    put(root, "usr/bin/rocm-smi", "")
    port = "sys/class/infiniband/ionic_0/ports/1"
    for name, text in {
        "state": "4: ACTIVE", "link_layer": "Ethernet", "rate": "400 Gb/sec (4X NDR)", "gid_attrs/ndevs/0": "ens1",
        "gids/0": "fe80::1", "gid_attrs/types/0": "IB/RoCE v1",
        "gids/1": "0000:0000:0000:0000:0000:ffff:0a00:0001", "gid_attrs/types/1": "RoCE v2",
    }.items():  # fmt: skip
        put(root, f"{port}/{name}", f"{text}\n")
    put(root, "dev/infiniband/uverbs0", "")
    return observed(root, cache_dirs=[str(root / "not/yet/there")])


def lost_a_partition(root: Path) -> dict[str, Any]:
    """A captured node in CPX, without ROCm, whose Docker does not answer."""
    tree = Tree(root).build()
    captured_in_cpx(tree)
    (root / "opt/rocm/.info/version").unlink()
    (root / "sys/module/amdgpu/version").unlink()
    put(root, "usr/bin/dockerd", "")
    put(root, f"{DATA}/partition.json", '{"step": "set"}')
    with Engine(root) as docker:
        docker.errors["GET /images/json"] = (500, "layer store is broken")
        return observed(root)


def serving(root: Path) -> dict[str, Any]:
    """A node with images, weights, instances, generations, a key and a load balancer, some of them broken."""
    Tree(root).build()
    host(root)
    for name, text in {"serve.sh": "exec vllm — ü\r\n", "env": "A=1\n", "container.json": "{}\n"}.items():
        put(root, f"{STATE}/instances/llama-0/{name}", "").write_bytes(text.encode())
    put(root, f"{STATE}/instances/llama-0/ready", f"{1:064x}\n")
    put(
        root,
        f"{STATE}/instances/llama-0/start.json",
        '{"key": "56ef", "lines": ["GPU KV cache size: 16 tokens"]}',
    )
    put(root, f"{STATE}/instances/llama-1/env", "the others are missing")
    put(root, f"{STATE}/keys/instances", "VLLM_API_KEY=sk-0123456789abcdef\n")
    failure = {"kind": "out_of_memory", "line": "HIP out of\n memory", "next_step": "Do."}
    for number, said in enumerate((
        {"state": "gave_up", "since": 12.5, "why": "3 failures", "failures": [failure] * 3, "peer": None},
        {"state": "waiting", "since": 1, "why": "", "failures": [], "peer": {**failure, "host": "n2", "rank": 1}},
    )):  # fmt: skip
        put(root, f"{DATA}/cache/llama-{number}/supervise/state.json", json.dumps({"schema": 1, **said}))
    generations = [{"generation": number, "members": [{"name": "llama-0"}]} for number in (1, 2)]
    for one in generations:
        members = [{**item, "server": {}, "described": {}} for item in one["members"]]
        for deployment in ("llama", "cut-off"):
            put(root, f"{STATE}/generations/{deployment}/{one['generation']}.json",
                json.dumps({**one, "members": members}))  # fmt: skip
    put(root, f"{STATE}/generations/llama/summary.json", json.dumps({"kept": generations}))
    put(root, f"{STATE}/generations/llama/state.json", json.dumps({"held": {"generation": 1}, "lifted": 3}))
    put(root, f"{STATE}/generations/broken/1.json", "{")
    put(root, f"{STATE}/balancer/current/balancer.json", '{"routers": {}}')
    put(root, f"{STATE}/balancer/current/haproxy.cfg", "global\n")
    put(root, f"{DATA}/balancer/applied", "12ab\n")
    put(root, f"{DATA}/balancer/out.json", '{"llama-0": "operator"}')
    put(root, "usr/sbin/haproxy", "")
    for repo, size in (("whole", 2), ("short", 3)):
        top = f"{DATA}/hf/hub/models--lab--{repo}"
        put(root, f"{top}/snapshots/{COMMIT}/config.json", "{}")
        marker = {
            "repo": f"lab/{repo}",
            "commit": COMMIT,
            "bytes": size,
            "exclude": ["original/*"],
            "include": [],
        }
        put(
            root,
            f"{top}/.instinct-fleet/{COMMIT}.json",
            json.dumps({**marker, "files": {"config.json": size}}),
        )
    put(root, f"{DATA}/hf/hub/models--lab--broken/.instinct-fleet/{COMMIT}.json", "{")
    put(root, f"{DATA}/hf/hub/models--lab--unfetched/blobs/x.incomplete", "123")
    with Engine(root) as docker:
        docker.add_image("r/vllm:1", "r/vllm@sha256:22")
        docker.add_image("<none>:<none>", "<none>@<none>")
        put(root, f"{DATA}/images/{1:064x}.json", '{"vllm": "0.11.2", "platform": "rocm"}')
        put(root, f"{DATA}/images/{2:064x}.json", '{"vllm": ')
        for index, status in enumerate(("running", "exited")):
            name = f"llama-{index}"
            labels = {
                "instinct-fleet.instance": name,
                "instinct-fleet.deployment": "llama",
                "instinct-fleet.spec": "1",
            }
            docker.add_container(f"instinct-{name}", {"Labels": labels}, status)
        docker.containers["instinct-llama-1"].exit_code = 137
        return observed(root)


TREES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "eight GPUs in use": in_use,
    "a captured node in CPX": lost_a_partition,
    "a node that serves": serving,
}


def recorded(root: Path, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """What the script says, without what it says of this machine: its kernel, Python, disks, user and group."""
    state = read(root)
    for key in ("hostname", "euid", "python", "kernel"):
        assert state.pop(key) is not None
    for entry in state["disk"]:
        assert entry.pop("free_bytes") <= entry.pop("total_bytes")
        del entry["device"]
    own = os.stat(root).st_gid
    state["device_gids"] = {kind: "own" if gid == own else gid for kind, gid in state["device_gids"].items()}
    text: dict[str, Any] = json.loads(json.dumps(state).replace(str(root), "/tree"))
    return text


@pytest.mark.parametrize("name", TREES)
def test_it_says_what_it_said(name: str, tmp_path: Path) -> None:
    said = json.loads(RECORD.read_text(encoding="utf-8"))[name]
    assert json.dumps(recorded(tmp_path, TREES[name]), indent=1) == json.dumps(said, indent=1)


def main() -> None:
    """Print the record."""
    found = {}
    for name, read in TREES.items():
        with tempfile.TemporaryDirectory() as directory:
            found[name] = recorded(Path(directory), read)
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
