# SPDX-License-Identifier: Apache-2.0
"""node_state as Ansible runs it: a script with its arguments put in, printing JSON, on a tree of files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.hashing import spec_hash, text_hash
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import ImageSoftware
from ansible_collections.instinct.fleet.plugins.module_utils.observe import held_bytes as held
from ansible_collections.instinct.fleet.plugins.module_utils.observe.gpus import gfx_name, read_gpus
from ansible_collections.instinct.fleet.plugins.module_utils.observe.hashes import sha256
from ansible_collections.instinct.fleet.plugins.module_utils.observe.network import (
    MAPPED,
    parse_addresses,
    read_interfaces,
)
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source
from ansible_collections.instinct.fleet.plugins.module_utils.observe.supervisor import reset_state
from ansible_collections.instinct.fleet.plugins.module_utils.observe.supervisor_file import read_supervisor
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.node_state import NodeState

from tests.worlds.gpu_tree import VRAM, Tree, write
from tests.worlds.observe_world import MARKER, SCRIPT, Engine, captured_in_cpx, observed, places, put, run
from tests.worlds.plan_world import state as state_of_plan


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path).build()


# --- form --------------------------------------------------------------------------------------------------


def test_is_a_single_light_file() -> None:
    text = SCRIPT.read_text()
    assert text.count(MARKER) == 1
    assert "ansible_collections" not in text
    code = "import sys, node_state; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(SCRIPT.parent)},
    )  # fmt: skip
    heavy = {"typing", "dataclasses", "subprocess", "socket", "http.client", "urllib", "hashlib", "platform"}
    assert not heavy & set(done.stdout.split())


def test_library_link(root: Path) -> None:
    assert (root / "library/node_state.py").resolve() == SCRIPT


@pytest.mark.parametrize("pipe", [True, False])
def test_empty_machine(tmp_path: Path, pipe: bool) -> None:
    state = run({**places(tmp_path), "_ansible_check_mode": True}, pipe=pipe)["node_state"]
    assert state["gpus"] == state["images"] == state["models"] == state["instances"] == state["cmdline"] == []
    assert state["numa_balancing"] == {"runtime": None, "persisted": None, "file": None}
    assert state["driver"] == {"loaded": False, "version": None}
    assert state["rocm"] == {"version": None, "tools": {"amd-smi": None, "rocm-smi": None}}
    assert state["virtual_machine"] is None
    assert state["cpu"] == {"model": None, "sockets": None, "threads": None}
    assert state["os"] == {"id": None, "version_id": None, "pretty_name": None}
    assert state["device_gids"] == {"kfd": None, "render": None, "video": None}
    assert state["docker"]["available"] is False
    assert state["docker"]["installed"] is False
    assert state["docker"]["error"] == f"{tmp_path}/docker.sock: No such file or directory"
    assert state["benchmarks"] == []
    assert state["problems"] == []


def test_what_is_kept_of_benchmarks(tmp_path: Path) -> None:
    top = tmp_path / "var/lib/instinct-fleet/bench"
    for name in (
        "0.1.json",
        "0.2.json",
        "2.10.json",
        "1.0.json",
        "job.json",
        "output",
        ".0.3.json.7",
        "x.1.json",
    ):
        put(tmp_path, f"var/lib/instinct-fleet/bench/r1/llama-0-serve/{name}", "{}")
    put(tmp_path, "var/lib/instinct-fleet/bench/r1/llama-1-serve/job.json", "{}")
    (top / "r2").mkdir()
    put(tmp_path, "var/lib/instinct-fleet/bench/stray", "")
    state = run(places(tmp_path))["node_state"]
    assert state["benchmarks"] == [
        {"run": "r1", "target": "llama-0-serve", "runs": [2, 1]},
        {"run": "r1", "target": "llama-1-serve", "runs": []},
    ]
    assert state["problems"] == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"data_dirs": "/x"}, "unknown argument data_dirs. Did you mean data_dir?"),
        (
            {"zzz": 1},
            "unknown argument zzz. Valid: cache_dirs, data_dir, docker_socket, state_dir, sysfs_root.",
        ),
        ({"data_dir": "x"}, "data_dir must be an absolute path, not 'x'."),
        ({"data_dir": None}, "data_dir must be an absolute path, not None."),
        ({"cache_dirs": "/x"}, "cache_dirs must be a list of absolute paths, not '/x'."),
        ({"cache_dirs": ["/x", 1]}, "cache_dirs must be a list of absolute paths"),
        ([], "arguments must be a map."),
    ],
)
def test_bad_arguments(args: Any, says: str) -> None:
    result = run(args)
    assert result["failed"] is True
    assert says in result["msg"]


@pytest.mark.parametrize("value", ['"""', "'''", 'a"', "\\", "\\\\", "ü\n", '"', '""'])
def test_any_argument_survives_being_put_into_the_source(tmp_path: Path, value: str) -> None:
    result = run({**places(tmp_path), "cache_dirs": [f"/x{value}"]})
    assert result["node_state"]["disk"][1]["path"] == f"/x{value}"


# --- GPUs --------------------------------------------------------------------------------------------------


def test_gpus(tree: Tree) -> None:
    state = observed(tree.root)
    gpus = state["gpus"]
    assert [gpu["index"] for gpu in gpus] == list(range(8))
    assert [gpu["bdf"] for gpu in gpus] == [
        f"0000:{bus}:00.0" for bus in ["05", "26", "46", "65", "85", "a6", "c6", "e5"]
    ]
    assert gpus[4] == {
        "index": 4, "bdf": "0000:85:00.0", "sysfs_path": "/sys/class/drm/renderD160/device",
        "vendor_id": 4098, "device_id": 29857,
        "gfx": "gfx942", "unique_id": f"{0x85:016x}", "vram_total": VRAM,
        "vram_used": 283 << 20, "numa_node": 1, "compute_partition": "SPX",
        "available_compute_partitions": ["SPX", "DPX", "QPX", "CPX"], "memory_partition": "NPS1",
        "available_memory_partitions": ["NPS1", "NPS4"], "link_speed": "32.0 GT/s PCIe", "link_width": 16,
        "in_reset": False, "ecc_uncorrectable": None, "users": [],
        "partitions": [{
            "id": 0, "render_node": "renderD160", "render_minor": 160, "kfd_node": 50, "gpu_id": 30040,
            "simd_count": 1216, "num_xcc": 8, "memory_bytes": VRAM,
        }],
    }  # fmt: skip
    assert state["driver"] == {"loaded": True, "version": "6.12.12"}
    assert state["rocm"]["version"] == "6.4.1"
    (tree.root / "opt/rocm/.info/version").unlink()
    put(tree.root, "opt/rocm/core/.info/version", "7.14.0\n")
    assert observed(tree.root)["rocm"]["version"] == "7.14.0"
    assert state["problems"] == []


def test_partitions_are_grouped_under_their_gpu(tree: Tree) -> None:
    for index, mode in enumerate(("CPX", "SPX", "DPX", "QPX")):
        tree.set(index, mode)
    gpus = observed(tree.root)["gpus"]
    assert [len(gpu["partitions"]) for gpu in gpus] == [8, 1, 2, 4, 1, 1, 1, 1]
    assert [part["id"] for part in gpus[0]["partitions"]] == list(range(8))
    assert [part["render_minor"] for part in gpus[3]["partitions"]] == [152, 153, 154, 155]
    assert {part["memory_bytes"] for part in gpus[0]["partitions"]} == {VRAM // 8}


def test_captured_node_in_cpx_has_63_partitions(tree: Tree) -> None:
    captured_in_cpx(tree)
    gpus = observed(tree.root)["gpus"]
    assert [len(gpu["partitions"]) for gpu in gpus] == [8] * 7 + [7]
    assert [part["id"] for part in gpus[7]["partitions"]] == list(range(7))


def test_partition_numbers_in_the_high_bits(tree: Tree) -> None:
    """Newer drivers; and drivers that number nothing fall back to the order of render nodes."""
    nodes = tree.root / "sys/class/kfd/kfd/topology/nodes"
    tree.set(0, "CPX")
    for part in range(8):
        file = nodes / f"{10 + part}/properties"
        file.write_text(
            file.read_text().replace(f"location_id {0x500 + part}", f"location_id {0x500 + (part << 28)}")
        )
    assert [part["id"] for part in observed(tree.root)["gpus"][0]["partitions"]] == list(range(8))
    for part in range(8):
        file = nodes / f"{10 + part}/properties"
        file.write_text(
            file.read_text().replace(f"location_id {0x500 + (part << 28)}", f"location_id {0x500}")
        )
    parts = observed(tree.root)["gpus"][0]["partitions"]
    assert [(part["id"], part["render_minor"]) for part in parts] == [(n, 128 + n) for n in range(8)]


@pytest.mark.parametrize(
    ("version", "name"),
    [(90402, "gfx942"), (90500, "gfx950"), (90010, "gfx90a"), (110000, "gfx1100"), (None, None)],
)  # fmt: skip
def test_gfx_name(version: int | None, name: str | None) -> None:
    assert gfx_name(version) == name


def test_inbox_driver_has_no_version_and_may_lack_modes(tree: Tree) -> None:
    (tree.root / "sys/module/amdgpu/version").unlink()
    for name in ("current_compute_partition", "available_compute_partition", "available_memory_partition"):
        (tree.device(0) / name).unlink()
    (tree.device(1) / "available_compute_partition").write_text("Not supported\n")
    (tree.device(1) / "current_memory_partition").write_text("UNKNOWN\n")
    state = observed(tree.root)
    assert state["driver"] == {"loaded": True, "version": None}
    assert state["gpus"][0]["compute_partition"] is None
    assert state["gpus"][0]["available_compute_partitions"] == []
    assert state["gpus"][1]["available_compute_partitions"] == []
    assert state["gpus"][1]["memory_partition"] is None
    assert state["problems"] == []


def test_gpu_in_reset_and_unreadable_files_are_problems(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(str(tree.root))
    path = "/sys/class/drm/renderD136/device/"
    errors = {
        f"{tree.root}{path}current_compute_partition": PermissionError(1, "Operation not permitted"),
        f"{tree.root}{path}mem_info_vram_used": OSError(5, "Input/output error"),
    }
    real_open = os.open

    def open_(name: str, *rest: Any) -> int:
        if name in errors:
            raise errors[name]
        return real_open(name, *rest)

    (tree.device(0) / "numa_node").write_text("many\n")
    monkeypatch.setattr(os, "open", open_)
    gpus = read_gpus(source)
    assert len(gpus) == 8
    assert gpus[1]["compute_partition"] is None
    assert gpus[1]["vram_used"] is None
    assert gpus[0]["numa_node"] is None
    assert {problem["what"].rsplit("/", 1)[1]: problem["error"] for problem in source.problems} == {
        "numa_node": "not a number: 'many'",
        "mem_info_vram_used": "Input/output error",
        "current_compute_partition": "Operation not permitted: the GPU is being reset",
    }


def test_what_is_wrong_with_gpus(tree: Tree) -> None:
    """VRAM is told with the processes that KFD counts on the GPU, so that what nobody holds can be seen."""
    kfd = tree.root / "sys/class/kfd/kfd/proc"
    write(kfd / "77/vram_30010", "4096\n")
    write(kfd / "77/vram_30020", "4096\n")
    write(kfd / "78/vram_30010", "0\n")
    write(tree.root / "proc/78/stat", "78 (a ) b) Z 1 78 78 0 -1\n")
    write(tree.root / "proc/77/stat", "77 (vllm) S 1 77 77 0 -1\n")
    write(tree.device(3) / "ras/umc_err_count", "ue: 2\nce: 7\n")
    state = observed(tree.root)
    assert [gpu["users"] for gpu in state["gpus"]][:3] == [[], [77, 78], [77]]
    assert state["kfd_zombies"] == [78]
    assert [gpu["ecc_uncorrectable"] for gpu in state["gpus"]][2:4] == [None, 2]
    assert state["partition_change"] is None


@pytest.mark.parametrize(("text", "step"), [('{"step": "set"}', "set"), ("{", "unknown"), ("[]", "unknown")])
def test_a_change_of_partitions_that_was_cut_off(tree: Tree, text: str, step: str) -> None:
    data = tree.root / "data"
    write(data / "partition.json", text)
    assert observed(tree.root, data_dir=str(data))["partition_change"] == step


def test_kfd_processes_and_tools(tree: Tree) -> None:
    tree.hold(4242, "python3")
    tree.hold(77, "gpuagent")
    tree.install("amd-smi")
    put(tree.root, "usr/bin/rocm-smi", "")
    state = observed(tree.root)
    assert state["kfd_processes"] == [77, 4242]
    assert state["rocm"]["tools"] == {"amd-smi": "/opt/rocm/bin/amd-smi", "rocm-smi": "/usr/bin/rocm-smi"}


# --- host --------------------------------------------------------------------------------------------------


def test_host(tmp_path: Path) -> None:
    put(tmp_path, "etc/os-release", 'PRETTY_NAME="Ubuntu 24.04 LTS"\nID=ubuntu\nVERSION_ID="24.04"\n')
    put(tmp_path, "proc/cmdline", "quiet iommu=pt\n")
    put(tmp_path, "proc/meminfo", "MemTotal:  2113000000 kB\nMemFree: 1 kB\n")
    put(
        tmp_path,
        "proc/cpuinfo",
        "model name\t: AMD EPYC 9654\nflags\t: fpu hypervisor\n\nmodel name\t: other\n",
    )
    put(tmp_path, "sys/devices/system/cpu/online", "0-383\n")
    put(tmp_path, "sys/devices/system/cpu/cpu0/topology/package_cpus_list", "0-95,192-287\n")
    put(tmp_path, "sys/devices/system/cpu/cpu96/topology/core_siblings_list", "96-191,288-383\n")
    for node in (0, 1, 10):
        put(tmp_path, f"sys/devices/system/node/node{node}/cpulist", f"{node}\n")
        put(
            tmp_path, f"sys/devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:  {node + 1} kB\n"
        )
    put(tmp_path, "etc/group", "root:x:0:\nvideo:x:44:\nrender:x:109:\n")
    state = observed(tmp_path)
    assert state["os"] == {"id": "ubuntu", "version_id": "24.04", "pretty_name": "Ubuntu 24.04 LTS"}
    assert state["cmdline"] == ["quiet", "iommu=pt"]
    assert state["memory_bytes"] == 2113000000 * 1024
    assert state["cpu"] == {"model": "AMD EPYC 9654", "sockets": 2, "threads": 384}
    assert [node["id"] for node in state["numa_nodes"]] == [0, 1, 10]
    assert state["numa_nodes"][2] == {"id": 10, "cpus": "10", "memory_bytes": 11 * 1024}
    assert state["virtual_machine"] is True
    assert state["device_gids"] == {"kfd": None, "render": 109, "video": 44}
    assert state["hostname"] == os.uname().nodename


def test_device_groups_come_from_the_devices(tree: Tree) -> None:
    put(tree.root, "etc/group", "video:x:44444:\nrender:x:109999:\n")
    put(tree.root, "dev/kfd", "")
    gid = os.stat(tree.root / "dev/kfd").st_gid
    assert observed(tree.root)["device_gids"] == {"kfd": gid, "render": gid, "video": 44444}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (None, None)),
        ({"etc/sysctl.d/60-a.conf": "kernel.numa_balancing = 0\n"}, (0, "/etc/sysctl.d/60-a.conf")),
        ({"etc/sysctl.d/60-a.conf": "kernel.numa_balancing=0\n", "usr/lib/sysctl.d/70-b.conf":
          "kernel/numa_balancing=1\n"}, (1, "/usr/lib/sysctl.d/70-b.conf")),
        ({"etc/sysctl.d/60-a.conf": "# kernel.numa_balancing = 0\n"}, (None, None)),
        ({"etc/sysctl.d/60-a": "kernel.numa_balancing = 0\n"}, (None, None)),
        ({"etc/sysctl.d/60-a.conf": "", "usr/lib/sysctl.d/60-a.conf": "kernel.numa_balancing = 0"},
         (None, None)),
        ({"etc/sysctl.d/99-z.conf": "kernel.numa_balancing=1", "etc/sysctl.conf": "kernel.numa_balancing=0"},
         (0, "/etc/sysctl.conf")),
        ({"proc/cmdline": "numa_balancing=disable"}, (0, "/proc/cmdline")),
        ({"proc/cmdline": "numa_balancing=disable", "etc/sysctl.conf": "kernel.numa_balancing = 1"},
         (1, "/etc/sysctl.conf")),
    ],
)  # fmt: skip
def test_numa_balancing(tmp_path: Path, files: dict[str, str], expected: tuple[Any, Any]) -> None:
    for path, text in {"proc/sys/kernel/numa_balancing": "1\n", **files}.items():
        put(tmp_path, path, text)
    persisted, file = expected
    assert observed(tmp_path)["numa_balancing"] == {"runtime": 1, "persisted": persisted, "file": file}


# --- Docker, weights, disk ---------------------------------------------------------------------------------


def test_docker_images_and_instances(tmp_path: Path) -> None:
    files = {"serve.sh": "#!/bin/bash\nexec vllm — ü\r\n", "env": "", "container.json": "{}\n"}
    for name, text in files.items():
        path = put(tmp_path, f"etc/instinct-fleet/instances/llama-0/{name}", "")
        path.write_bytes(text.encode())
    put(tmp_path, "etc/instinct-fleet/instances/llama-0/startup.log", "not part of it")
    put(tmp_path, "etc/instinct-fleet/instances/llama-1/serve.sh", "the others are missing")
    with Engine(tmp_path) as docker:
        docker.add_container("somebody-elses", {})
        docker.add_image("r/vllm:1", "r/vllm@sha256:22")
        for index, status in enumerate(("running", "exited")):
            name = f"llama-{index}"
            labels = {"instinct-fleet.instance": name, "instinct-fleet.deployment": "llama",
                      "instinct-fleet.spec": "12ab"}  # fmt: skip
            body: dict[str, Any] = {"Labels": labels}
            if index:
                labels["instinct-fleet.restart"] = "on-failure:3"
                body["HostConfig"] = {"RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 3}}
            docker.add_container(f"instinct-{name}", body, status)
        docker.containers["instinct-llama-1"].exit_code = 137
        docker.containers["instinct-llama-1"].restarts = 3
        state = observed(tmp_path)
    assert "GET /info" not in docker.requests  # containers and headers contain the same
    assert state["docker"] == {
        "installed": False,
        "available": True,
        "version": "20.10.24",
        "api_version": "1.41",
        "root_dir": str(tmp_path),
        "error": None,
        "community": False,
        "buildx": False,
    }
    assert [image["digests"] for image in state["images"]] == [["r/vllm@sha256:22"]]
    first, second = state["instances"]
    assert first["name"] == "llama-0"
    assert first["deployment"] == "llama"
    assert first["container"] == "instinct-llama-0"
    assert first["state"] == "running"
    assert first["spec_hash"] == "12ab"
    assert first["artefact_hash"] == spec_hash(files)
    assert first["started_at"] == "2026-01-01T00:00:00Z"
    assert (second["state"], second["exit_code"], second["restart_count"]) == ("exited", 137, 3)
    policies = [(item["restart_policy"], item["own_restart_policy"]) for item in state["instances"]]
    assert policies == [("no", None), ("on-failure:3", "on-failure:3")]
    assert first["files"] == {name: text_hash(text) for name, text in files.items()}
    assert second["artefact_hash"] is None
    assert list(second["files"]) == ["serve.sh"]
    assert state["problems"] == []


@pytest.mark.parametrize("status", [None, "created"])
def test_docker_without_a_container_that_has_run_is_asked_where_its_files_are(
    tmp_path: Path, status: str | None
) -> None:
    with Engine(tmp_path) as docker:
        if status:
            docker.add_container(
                "instinct-llama-0", {"Labels": {"instinct-fleet.instance": "llama-0"}}, status
            )
        state = observed(tmp_path)
        assert "GET /info" in docker.requests
        docker.faults["GET /info"] = "cut"
        broken = observed(tmp_path)
    assert (state["docker"]["version"], state["docker"]["root_dir"]) == ("20.10.24", str(tmp_path))
    assert (broken["docker"]["available"], broken["docker"]["root_dir"]) == (True, None)
    assert [problem["what"] for problem in broken["problems"]] == ["docker info"]


def test_a_hash_is_the_one_of_hashlib(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = hashlib.sha256(b"text").hexdigest()
    assert sha256(b"text") == wanted
    for name in ("_sha2", "_sha256"):  # a Python that has neither
        monkeypatch.setitem(sys.modules, name, None)
    assert sha256(b"text") == wanted


@pytest.mark.parametrize(("place", "whole"), [("/sys", "first"), ("/proc", "first and second")])
def test_a_file_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch, place: str, whole: str) -> None:
    """procfs gives a long file in pieces; sysfs gives all at once, and is not asked again."""
    pieces = iter([b"first", b" and second", b""])
    monkeypatch.setattr("os.read", lambda _file, _size: next(pieces))
    monkeypatch.setattr("os.open", lambda *_args: 0)
    monkeypatch.setattr("os.close", lambda _file: None)
    assert Source().text(f"{place}/attribute") == whole


SAID = {
    "schema": 1, "state": "gave_up", "since": 12.5, "why": "3 failures", "asked": False, "peer": None,
    "failures": [
        {"at": 1, "kind": kind, "line": "a\n\x1b[31mline" + "x" * 9999, "next_step": "Do.", "log": "failure-1.log"}
        for kind in ("out_of_memory", "unknown", "unknown")
    ],
}  # fmt: skip
PEER = {"rank": 1, "host": "n2", "kind": "killed", "line": "Killed", "next_step": "Look.", "at": 2.0}


def test_what_a_supervisor_says(tmp_path: Path) -> None:
    put(tmp_path, "cache/supervise/state.json", json.dumps(SAID))
    found = read_supervisor(str(tmp_path / "cache"))
    assert found is not None
    line = found["first"].pop("line")
    assert line.startswith("a  [31mlinexxx")
    assert len(line) == 800
    assert found == {
        "state": "gave_up", "since": 12.5, "why": "3 failures", "failures": 3, "peer": None,
        "first": {"kind": "out_of_memory", "next_step": "Do."},
    }  # fmt: skip
    put(tmp_path, "cache/supervise/state.json", json.dumps({**SAID, "failures": [], "peer": PEER}))
    found = read_supervisor(str(tmp_path / "cache"))
    assert found is not None
    assert found["peer"] == {
        "kind": "peer_failed",
        "line": "n2 (rank 1) ended: killed: Killed",
        "next_step": "Look.",
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "null",
        '{"schema": 1}',
        json.dumps({**SAID, "failures": 3}),
        json.dumps({**SAID, "peer": 1}),
    ],
)
def test_a_supervisor_that_says_nonsense_says_nothing(tmp_path: Path, text: str) -> None:
    assert read_supervisor(str(tmp_path / "cache")) is None
    put(tmp_path, "cache/supervise/state.json", text)
    assert read_supervisor(str(tmp_path / "cache")) is None


@pytest.mark.parametrize("what", ["file", "directory", "cache", "pipe"])
def test_nothing_leads_out_of_what_a_container_writes(tmp_path: Path, what: str) -> None:
    """The container's root could make root of the node read its files."""
    put(tmp_path, "other/supervise/state.json", json.dumps(SAID))
    cache = tmp_path / "cache"
    if what == "cache":
        cache.symlink_to(tmp_path / "other")
    elif what == "directory":
        cache.mkdir()
        (cache / "supervise").symlink_to(tmp_path / "other/supervise")
    else:
        (cache / "supervise").mkdir(parents=True)
        if what == "pipe":
            os.mkfifo(cache / "supervise/state.json")
        else:
            (cache / "supervise/state.json").symlink_to(tmp_path / "other/supervise/state.json")
    assert read_supervisor(str(cache)) is None
    reset_state(str(cache))
    assert (tmp_path / "other/supervise/state.json").exists()


def test_what_images_answered(tmp_path: Path) -> None:
    answer = {
        "vllm": "0.11.2",
        "platform": "rocm",
        "rocm": None,
        "pytorch": None,
        "python": None,
        "gfx": None,
    }
    with Engine(tmp_path) as docker:
        ids = [docker.add_image(f"r/vllm:{index}")["Id"] for index in range(3)]
        place = "var/lib/instinct-fleet/images"
        put(tmp_path, f"{place}/{ids[0].partition(':')[2]}.json", json.dumps(answer))
        put(tmp_path, f"{place}/{ids[1].partition(':')[2]}.json", '{"vllm": ')
        put(tmp_path, f"{place}/{'f' * 64}.json", "of an image that was removed")
        state = observed(tmp_path)
    assert [image["software"] for image in state["images"]] == [answer, None, None]
    assert [problem["what"].rpartition("/")[2][:64] for problem in state["problems"]] == [ids[1][7:]]
    found = NodeState.from_json(state).images
    assert [image.software for image in found] == [ImageSoftware("0.11.2", "rocm"), None, None]


def test_an_answer_of_another_form_counts_as_none() -> None:
    image = {"id": "sha256:1", "tags": [], "digests": [], "software": {"vllm": "0.11.2"}}
    assert NodeState.from_json(state_of_plan(images=[image])).images[0].software is None


@pytest.mark.parametrize(
    ("files", "buildx", "community", "git"),
    [
        ([], False, False, False),
        (["usr/bin/git"], False, False, True),
        (["usr/libexec/docker/cli-plugins/docker-buildx"], True, False, False),
        (["usr/lib/docker/cli-plugins/docker-buildx"], True, False, False),
        (["var/lib/dpkg/info/docker-ce.list"], False, True, False),
    ],
)
def test_tools_for_builds(tmp_path: Path, files: list[str], buildx: bool, community: bool, git: bool) -> None:
    for path in files:
        put(tmp_path, path, "")
    state = observed(tmp_path)
    found = state["docker"]
    assert (found["buildx"], found["community"], state["git"]) == (buildx, community, git)


def test_docker_that_answers_with_an_error(tmp_path: Path) -> None:
    put(tmp_path, "usr/bin/dockerd", "")
    with Engine(tmp_path) as docker:
        docker.errors["GET /images/json"] = (500, "layer store is broken")
        state = observed(tmp_path)
    assert state["docker"]["available"] is False
    assert state["docker"]["installed"] is True
    assert "layer store is broken" in state["docker"]["error"]
    assert state["images"] == []


def test_models(tmp_path: Path) -> None:
    cache = tmp_path / "var/lib/instinct-fleet/hf"
    commit = "a" * 40

    def marker(repo: str, **fields: Any) -> Path:
        top = cache / "hub" / f"models--{repo.replace('/', '--')}"
        for name, text in {"config.json": "{}", "sub/model.safetensors": "12345"}.items():
            blob = put(top, f"blobs/{hashlib.sha256(name.encode()).hexdigest()}", text)
            link = top / "snapshots" / commit / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
        data = {
            "repo": repo, "commit": commit, "revision": "main", "bytes": 7,
            "exclude": ["original/*"], "include": [],
            "files": {"config.json": 2, "sub/model.safetensors": 5}, **fields,
        }  # fmt: skip
        put(top, f".instinct-fleet/{commit}.json", json.dumps(data))
        return top

    marker("lab/whole")
    short = marker("lab/short")
    (short / "snapshots" / commit / "sub/model.safetensors").resolve().write_text("1234")
    gone = marker("lab/gone")
    (gone / "snapshots" / commit / "config.json").resolve().unlink()
    broken = marker("lab/broken")
    put(broken, f".instinct-fleet/{commit}.json", '{"repo": "lab/broken"')
    marker("lab/keyless", files=None)
    put(cache, "hub/models--lab--unfetched/blobs/x.incomplete", "123")
    put(cache, "hub/models--lab--unfetched/blobs/y", "12345")
    state = observed(tmp_path)
    assert {model["repo"]: model["complete"] for model in state["models"]} == {
        "lab/gone": False, "lab/short": False, "lab/whole": True,
    }  # fmt: skip
    assert state["models"][2] == {
        "cache_dir": str(cache), "repo": "lab/whole", "commit": commit, "complete": True,
        "bytes": 7, "files": 2, "exclude": ["original/*"], "include": [], "verified": False,
    }  # fmt: skip
    marker("lab/whole2", verified={"config.json": "sha256:…"})
    assert [model["verified"] for model in observed(tmp_path)["models"]] == [False, False, False, True]
    assert [problem["error"].split(":")[0] for problem in state["problems"]] == ["broken marker"] * 2
    assert state["fetching"] == [{"cache_dir": str(cache), "repo": "lab/unfetched", "bytes": 8}]
    assert observed(tmp_path, cache_dirs=["/nowhere"])["models"] == []


def test_disk_is_that_of_the_nearest_parent(tmp_path: Path) -> None:
    state = observed(tmp_path, cache_dirs=[str(tmp_path / "not/yet/there"), str(tmp_path / "not/yet/there")])
    assert [entry["path"] for entry in state["disk"]] == [
        "/var/lib/docker", str(tmp_path / "not/yet/there"), str(tmp_path / "var/lib/instinct-fleet"),
    ]  # fmt: skip
    entry = state["disk"][1]
    assert entry["device"] == os.stat(tmp_path).st_dev
    assert 0 <= entry["free_bytes"] <= entry["total_bytes"]


def test_a_network_file_system_is_told_by_its_device(tmp_path: Path) -> None:
    device = os.stat(tmp_path).st_dev
    mounts = [
        "24 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw",
        f"90 24 {os.major(device)}:{os.minor(device)} / /weights rw shared:9 - nfs4 filer:/weights rw,vers=4.2",
    ]
    (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
    (tmp_path / "proc/self/mountinfo").write_text("\n".join(mounts))
    cache = str(tmp_path / "hf")
    disks = {entry["path"]: entry for entry in observed(tmp_path, cache_dirs=[cache])["disk"]}
    assert disks[cache]["network"] == "nfs4"
    (tmp_path / "proc/self/mountinfo").write_text(mounts[0])
    disks = {entry["path"]: entry for entry in observed(tmp_path, cache_dirs=[cache])["disk"]}
    assert "network" not in disks[cache]


# --- network -----------------------------------------------------------------------------------------------


def message(family: int, scope: int, index: int, **attributes: bytes) -> bytes:
    """RTM_NEWADDR as the kernel sends it, for `ip addr`."""
    numbers = {"address": 1, "local": 2, "label": 3}
    body = bytes([family, 24, 0, scope]) + index.to_bytes(4, sys.byteorder)
    for name, value in attributes.items():
        size = len(value) + 4
        body += size.to_bytes(2, sys.byteorder) + numbers[name].to_bytes(2, sys.byteorder)
        body += value + bytes(-size % 4)
    head = (len(body) + 16).to_bytes(4, sys.byteorder) + (20).to_bytes(2, sys.byteorder)
    return head + bytes(10) + body


DONE = (20).to_bytes(4, sys.byteorder) + (3).to_bytes(2, sys.byteorder) + bytes(14)


def test_addresses_of_the_kernels_answer() -> None:
    host, link = 254, 253
    data = (
        message(2, host, 1, address=bytes([127, 0, 0, 1]), local=bytes([127, 0, 0, 1]), label=b"lo\0")
        + message(2, 0, 2, label=b"bond0:1\0", address=bytes([10, 0, 0, 9]), local=bytes([10, 0, 0, 1]))
        + message(10, 0, 2, address=bytes([0xFD, *[0] * 14, 7]))
        + message(10, link, 2, address=bytes([0xFE, 0x80, *[0] * 13, 1]))
    )
    wanted = [("2", "10.0.0.1"), ("2", "fd00::7")]
    assert parse_addresses(data) == (wanted, False)
    assert parse_addresses(data + DONE) == (wanted, True)


def test_interfaces_of_this_machine_are_what_the_kernel_says() -> None:
    found = {item["name"]: item for item in read_interfaces(Source())}
    assert "lo" not in found
    for name, item in found.items():
        assert item["mtu"] == int(Path(f"/sys/class/net/{name}/mtu").read_text())
        assert item["addresses"]
    assert read_interfaces(Source("/nonexistent")) == []


def test_rdma_ports(tree: Tree) -> None:
    top = "sys/class/infiniband"
    empty = "0000:0000:0000:0000:0000:0000:0000:0000"
    for name, layer, state, gids in (
        ("ionic_0", "Ethernet", "4: ACTIVE", ("fe80::1", "fe80::1", f"{MAPPED}0a00:0001")),
        ("mlx5_0", "Ethernet", "1: DOWN", ("fe80::1", "fe80::1", empty, empty)),
        ("mlx5_9", "InfiniBand", "4: ACTIVE", (empty,)),
    ):
        port = f"{top}/{name}/ports/1"
        for file, text in {"state": state, "link_layer": layer, "rate": "400 Gb/sec (4X NDR)"}.items():
            put(tree.root, f"{port}/{file}", f"{text}\n")
        for index, gid in enumerate(gids):
            put(tree.root, f"{port}/gids/{index}", f"{gid}\n")
            put(tree.root, f"{port}/gid_attrs/types/{index}", "RoCE v2\n" if index else "IB/RoCE v1\n")
    put(tree.root, f"{top}/ionic_0/ports/1/gid_attrs/ndevs/0", "ens1\n")
    put(tree.root, f"{top}/mlx5_9/device/net/ib0/mtu", "4092\n")
    put(tree.root, "dev/infiniband/uverbs0", "")
    state = observed(tree.root)
    assert [tuple(item.values()) for item in state["rdma"]] == [
        ("ionic_0", 1, "ACTIVE", "Ethernet", 400, "ens1", 2),
        ("mlx5_0", 1, "DOWN", "Ethernet", 400, None, None),
        ("mlx5_9", 1, "ACTIVE", "InfiniBand", 400, "ib0", None),
    ]
    assert state["verbs"]
    assert not [item for item in state["problems"] if "infiniband" in item["what"]]
    found = NodeState.from_json(state)
    assert [(item.name, item.active, item.gid_index) for item in found.hcas] == [
        ("ionic_0", True, 2), ("mlx5_0", False, None), ("mlx5_9", True, None),
    ]  # fmt: skip


def test_what_the_content_store_has(tmp_path: Path) -> None:
    data = tmp_path / "var/lib/instinct-fleet"
    put(data, "store/manifests/2.json", '{"name": "model lab/m@1 x", "files": []}')
    put(data, "store/manifests/1.json", '{"name": "image sha256:1", "files": []}')
    put(data, "store/manifests/.3.json.tmp", "{")
    put(data, "store/manifests/4.json", "{")
    put(tmp_path, "var/lib/dpkg/info/python3-libtorrent.list", "")
    state = observed(tmp_path, data_dir=str(data))
    assert state["stored"] == ["image sha256:1", "model lab/m@1 x"]
    assert [problem["what"] for problem in state["problems"] if "broken manifest" in problem["error"]] == [
        str(data / "store/manifests/4.json")
    ]
    assert state["libtorrent"]


def test_bytes_that_are_held_count_once_and_on_own_disks_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, hub = tmp_path / "data", tmp_path / "data/hf/hub"
    put(hub, "models--a--b/.instinct-fleet/1.json", "{}")
    put(hub, "models--a--b/blobs/x", "x" * 100)
    put(hub, "models--a--b/blobs/y", "y" * 20)
    put(hub, "models--a--b/blobs/w.1a2b3c4d.incomplete", "w" * 5000)
    put(hub, "models--others--m/blobs/z", "z" * 3000)  # without a marker: another tool's
    put(data, "store/blobs/sha256/layer", "l" * 7)
    os.link(hub / "models--a--b/blobs/x", data / "store/blobs/sha256/x")
    put(data, "store/incoming/id/part", "p" * 5000)
    put(data, "store/manifests/1.json", "{}")
    put(data, "models/m/1/original/made", "m" * 300)
    (data / "models/m/1/link").symlink_to("nowhere")
    os.link(
        data / "models/m/1/original/made", data / "store/blobs/sha256/made"
    )  # it was given to another host
    assert held.held_bytes(str(data), [f"{data}/hf", f"{tmp_path}/none"]) == 427
    assert held.held_bytes(str(data), []) == 407
    device = (hub / "models--a--b/blobs/x").stat().st_dev
    shared = {f"{os.major(device)}:{os.minor(device)}": "nfs4"}
    monkeypatch.setattr(held, "network_devices", lambda _source: shared)
    assert held.held_bytes(str(data), [f"{data}/hf"]) == 0
