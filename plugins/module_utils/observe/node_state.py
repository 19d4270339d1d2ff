# SPDX-License-Identifier: Apache-2.0
"""All facts that the planner needs about a node, in one dictionary."""

from __future__ import annotations

import os
import sys

from .balancer import NO_BALANCER, read_balancer
from .benchmarks import read_benchmarks
from .docker_root import read_info
from .driver import read_driver, read_rocm
from .engine import ask_docker, read_docker, read_images
from .generations import read_generations
from .gpu_users import partition_change, read_users
from .gpus import kfd_processes, read_gpus
from .held_bytes import held_bytes
from .host import kib, read_cpu, read_device_gids, read_numa_nodes
from .instances import read_instance_key, read_instances
from .lease import read_run
from .network import read_interfaces, read_rdma
from .repositories import read_repositories
from .source import Source, pairs
from .storage import read_disk, read_models, read_store
from .sysctl_files import read_numa_balancing

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from collections.abc import Callable
    from typing import Any
DEFAULTS = {
    "state_dir": "/etc/instinct-fleet",
    "data_dir": "/var/lib/instinct-fleet",
    "cache_dirs": None,
    "docker_socket": "/var/run/docker.sock",
    "sysfs_root": "/",
}


def node_state(args: dict[str, Any]) -> dict[str, Any]:
    """Read the node. A part that fails is null or empty, with a problem that names it."""
    source = Source(args["sysfs_root"])
    data_dir, state_dir = args["data_dir"], args["state_dir"]
    cache_dirs = args["cache_dirs"] or [os.path.join(data_dir, "hf")]
    # Docker answers while the rest is read.
    docker, requests = ask_docker(source, args["docker_socket"])
    state: dict[str, Any] = {
        "schema": 1,
        **_node_system(source),
        **_node_devices(source, data_dir),
        **_node_network(source),
        **_node_content(source, data_dir, cache_dirs),
    }
    images, containers = read_docker(docker, requests) if requests else ([], [])
    state["docker"] = docker
    state["git"] = source.exists("/usr/bin/git") or source.exists("/usr/local/bin/git")
    state["images"] = _part(source, "images", [], read_images, source, data_dir, images)
    state["instances"] = _part(
        source,
        "instances",
        [],
        read_instances,
        source,
        docker,
        args["docker_socket"],
        state_dir,
        data_dir,
        containers,
    )
    read_info(source, docker, args["docker_socket"])
    state["generations"] = _part(source, "generations", [], read_generations, source, state_dir)
    state["instance_key"] = read_instance_key(state_dir)
    state["balancer"] = _part(source, "balancer", {**NO_BALANCER}, read_balancer, source, state_dir, data_dir)
    state["lease"] = _part(source, "lease", None, read_run, source)
    state["benchmarks"] = _part(source, "benchmarks", [], read_benchmarks, data_dir)
    docker_root = docker["root_dir"] or "/var/lib/docker"
    state["disk"] = read_disk(source, [docker_root, *cache_dirs, data_dir])
    state["problems"] = source.problems
    return state


def _part(source: Source, name: str, default: Any, read: Callable[..., Any], *values: Any) -> Any:
    """Return what a function reads; the default and a problem where it fails, which must not hide the other parts."""
    try:
        return read(*values)
    except Exception as error:
        source.problem(name, f"{type(error).__name__}: {error}")
        return default


def _node_system(source: Source) -> dict[str, Any]:
    """Read the operating system, CPUs and memory."""
    release = pairs((source.text("/etc/os-release") or "").replace('"', ""), "=")
    cmdline = (source.text("/proc/cmdline") or "").split()
    # The first CPU's block is enough; on hundreds of CPUs the kernel is slow to produce the whole file.
    cpuinfo = pairs((source.text("/proc/cpuinfo", 8192) or "").split("\n\n", maxsplit=1)[0], ":")
    flags = cpuinfo.get("flags")
    system = os.uname()
    return {
        "hostname": system.nodename,
        "euid": os.geteuid(),
        "python": sys.version.split()[0],
        "os": {key: release.get(key.upper()) for key in ("id", "version_id", "pretty_name")},
        "kernel": system.release,
        "cmdline": cmdline,
        "numa_balancing": _part(source, "numa_balancing", {"runtime": None, "persisted": None, "file": None},
                                read_numa_balancing, source, cmdline),
        "cpu": _part(source, "cpu", {"model": None, "sockets": None, "threads": None},
                     read_cpu, source, cpuinfo),
        "numa_nodes": _part(source, "numa_nodes", [], read_numa_nodes, source),
        "memory_bytes": kib(pairs(source.text("/proc/meminfo"), ":"), "MemTotal"),
        "virtual_machine": "hypervisor" in flags.split() if flags is not None else None,
    }  # fmt: skip


def _node_devices(source: Source, data_dir: str) -> dict[str, Any]:
    """Read the driver, the GPUs and who uses them."""
    devices = {
        "driver": read_driver(source),
        "rocm": read_rocm(source),
        "gpus": _part(source, "gpus", [], read_gpus, source),
        "kfd_processes": kfd_processes(source),
        "partition_change": partition_change(source, data_dir),
        "device_gids": _part(source, "device_gids", {"kfd": None, "render": None, "video": None},
                             read_device_gids, source),
    }  # fmt: skip
    devices["kfd_zombies"] = _part(
        source, "users of GPUs", [], read_users, source, devices["gpus"], devices["kfd_processes"]
    )
    return devices


def _node_network(source: Source) -> dict[str, Any]:
    return {
        "interfaces": _part(source, "interfaces", [], read_interfaces, source),
        "rdma": _part(source, "rdma", [], read_rdma, source),
        "verbs": any(name.startswith("uverbs") for name in source.names("/dev/infiniband")),
    }


def _node_content(source: Source, data_dir: str, cache_dirs: list[str]) -> dict[str, Any]:
    """Read the weights and the content store."""
    models, fetching = _part(source, "models", ([], []), read_models, source, cache_dirs)
    return {
        "models": models,
        "fetching": fetching,
        "repositories": _part(source, "local repositories", [], read_repositories, data_dir),
        "stored": _part(source, "content store", [], read_store, source, data_dir),
        "held_bytes": _part(source, "held bytes", 0, held_bytes, data_dir, cache_dirs),
        "libtorrent": source.exists("/var/lib/dpkg/info/python3-libtorrent.list"),
    }


def check_args(given: Any) -> dict[str, Any]:
    """Return the arguments with defaults filled in. Raise ValueError that names the argument and the fix."""
    if not isinstance(given, dict):
        raise ValueError("node_state: arguments must be a map.")
    args: dict[str, Any] = dict(DEFAULTS)
    for key, value in given.items():
        if key.startswith("_ansible"):
            continue
        if key not in DEFAULTS:
            import difflib

            near = difflib.get_close_matches(key, DEFAULTS, 1)
            hint = f"Did you mean {near[0]}?" if near else f"Valid: {', '.join(sorted(DEFAULTS))}."
            raise ValueError(f"node_state: unknown argument {key}. {hint}")
        values = value if key == "cache_dirs" else [value]
        if value is None and key == "cache_dirs":
            continue
        if not isinstance(values, list) or any(
            not isinstance(item, str) or item[:1] != "/" for item in values
        ):
            kind = "a list of absolute paths" if key == "cache_dirs" else "an absolute path"
            raise ValueError(f"node_state: {key} must be {kind}, not {value!r}.")
        args[key] = value
    return args
