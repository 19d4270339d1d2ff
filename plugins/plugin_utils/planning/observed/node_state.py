# SPDX-License-Identifier: Apache-2.0
"""Parse the part of a node_state result that the planner needs into frozen dataclasses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....module_utils.content.image_ref import ImageSoftware
from ....module_utils.observe.supervisor import SupervisorState
from ....module_utils.service.generations import History
from .local_repositories import ObservedRepository
from .node_records import NAME, read_history

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""The exceptions of a malformed result of node_state."""


def unreadable_state(error: Exception) -> str:
    """Return the message for a malformed node_state, with what to do."""
    return (
        f"its node_state cannot be read: {error!r}. It comes from another version of this toolkit, or is damaged: "
        "observe again."
    )


_VERSION = re.compile(r"[\w.+:-]{0,100}", re.ASCII)


@dataclass(frozen=True)
class ObservedProblem:
    """A part or file of the node that could not be read, and why."""

    what: str
    error: str


@dataclass(frozen=True)
class ObservedPartition:
    """One logical GPU as the driver currently provides it."""

    render_minor: int | None
    memory_bytes: int


@dataclass(frozen=True)
class ObservedGpu:
    """One physical GPU; GPUs are ordered by PCI address."""

    index: int
    pci_id: str
    gfx: str
    vram_total: int
    compute: str | None
    available_compute: tuple[str, ...]
    memory: str | None
    partitions: tuple[ObservedPartition, ...]
    numa_node: int | None = None
    available_memory: tuple[str, ...] = ()
    # Momentary values: hosts that differ only in them are equal for the planner.
    vram_used: int = field(default=0, compare=False)
    users: tuple[int, ...] = field(default=(), compare=False)
    in_reset: bool = field(default=False, compare=False)
    ecc_uncorrectable: int = field(default=0, compare=False)


@dataclass(frozen=True)
class NumaNode:
    """CPUs as a list in the kernel's form ("0-95,192-287")."""

    id: int
    cpus: str


@dataclass(frozen=True)
class Image:
    """An image in the node's Docker; software is None if it was not probed on this node.

    bytes: unpacked. build: what it was built from, by the names of its labels; empty for one that was pulled.
    """

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    software: ImageSoftware | None = None
    bytes: int = 0
    build: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class CachedWeights:
    """A snapshot of a model in one of the node's hub caches. verified: its content was compared, once."""

    cache_dir: str
    repo: str
    commit: str
    complete: bool
    bytes: int
    files: int
    exclude: tuple[str, ...]
    include: tuple[str, ...]
    verified: bool = True


@dataclass(frozen=True)
class PartialDownload:
    """The content of a cache for a repository without a finished download."""

    cache_dir: str
    repo: str
    bytes: int


@dataclass(frozen=True)
class RecordedStart:
    """What an instance's vLLM measured when it started: lines of its log.

    key: of all that this depends on (sizing/measurement_key.py), at: when (UTC).
    """

    key: str
    at: str
    lines: tuple[str, ...]

    @classmethod
    def from_json(cls, data: Any) -> RecordedStart | None:
        """Return the record; None if there is none, or it is damaged: the plan then uses estimates."""
        if not isinstance(data, dict) or not data.get("key"):
            return None
        return cls(str(data["key"]), str(data.get("at") or ""), _texts(data.get("lines")))


@dataclass(frozen=True)
class ObservedInstance:
    """An instance found on the node; state is Docker's, or None if only its directory exists.

    policy: its restart policy, None if unknown; own_policy: the policy while it should run, "" if that is left to
    Docker.
    """

    name: str
    deployment: str
    state: str | None
    spec_hash: str | None
    artefact_hash: str | None
    exit_code: int | None
    file_hashes: tuple[tuple[str, str], ...]
    ready: bool = True  # it has generated tokens since it was started
    supervisor: SupervisorState | None = None
    policy: str | None = None
    own_policy: str = ""
    start: RecordedStart | None = None


@dataclass(frozen=True)
class Interface:
    """A network interface with its global addresses; speed in Mb/s, None if unknown."""

    name: str
    addresses: tuple[str, ...]
    up: bool
    mtu: int
    speed: int | None = None


@dataclass(frozen=True)
class Hca:
    """A port of an RDMA device; rate in Gb/s.

    interface: its network interface. gid_index: of the GID for RoCE v2 over IPv4.
    """

    name: str
    port: int
    active: bool
    layer: str
    rate: int
    interface: str
    gid_index: int | None = None


@dataclass(frozen=True)
class Disk:
    """Free space of the file system that holds `path`. network: its type, if other hosts may use it too."""

    path: str
    free_bytes: int
    device: int
    network: str = ""


@dataclass(frozen=True)
class KeptRuns:
    """What is kept of a benchmark that was not reported: the runs of each cell of a target ("llama-0-serve")."""

    name: str
    target: str
    runs: tuple[int, ...]


@dataclass(frozen=True)
class NodeState:
    """A host as observed."""

    euid: int
    os_id: str
    os_name: str
    virtual_machine: bool
    numa_runtime: int | None
    numa_persisted: int | None
    gpus: tuple[ObservedGpu, ...]
    driver_loaded: bool
    driver_version: str
    kfd_processes: tuple[int, ...]
    device_gids: tuple[int, ...]
    docker_installed: bool
    docker_available: bool
    docker_error: str
    docker_root: str
    images: tuple[Image, ...]
    models: tuple[CachedWeights, ...]
    fetching: tuple[PartialDownload, ...]
    instances: tuple[ObservedInstance, ...]
    disks: tuple[Disk, ...]
    numa_nodes: tuple[NumaNode, ...] = ()
    os_version: str = ""
    docker_version: str = ""
    docker_community: bool = False  # installed from Docker's packages instead of the distribution's
    buildx: bool = False
    git: bool = False
    kfd_zombies: tuple[int, ...] = ()
    partition_change: str = ""  # the step at which a change of partition modes was interrupted
    generations: tuple[History, ...] = ()
    instance_key: str = ""  # a fingerprint of the key
    interfaces: tuple[Interface, ...] = ()
    hcas: tuple[Hca, ...] = ()
    verbs: bool = False  # programs can use the RDMA devices
    problems: tuple[ObservedProblem, ...] = ()
    repositories: tuple[ObservedRepository, ...] = ()
    stored: frozenset[str] = frozenset()  # what the content store has, by the names of transfer_names.py
    libtorrent: bool = False
    held_bytes: int = 0  # of weights, models made here and the content store; images are extra
    benchmarks: tuple[KeptRuns, ...] = field(default=(), compare=False)

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> NodeState:
        """Build from a node_state result; it raises KeyError or TypeError if the result is malformed."""
        system = state["os"]
        docker = state["docker"]
        numa = state["numa_balancing"]
        return cls(
            euid=int(state["euid"]),
            os_id=str(system.get("id") or ""),
            os_name=str(system.get("pretty_name") or system.get("id") or "unknown system"),
            virtual_machine=bool(state["virtual_machine"]),
            numa_runtime=_number(numa.get("runtime")),
            numa_persisted=_number(numa.get("persisted")),
            gpus=tuple(sorted((_gpu(item) for item in state["gpus"]), key=lambda gpu: gpu.index)),
            driver_loaded=bool(state["driver"].get("loaded")),
            driver_version=str(state["driver"].get("version") or ""),
            kfd_processes=tuple(sorted(int(pid) for pid in state["kfd_processes"] or ())),
            device_gids=tuple(sorted({int(gid) for gid in state["device_gids"].values() if gid is not None})),
            docker_installed=bool(docker.get("installed")),
            docker_available=bool(docker.get("available")),
            docker_error=str(docker.get("error") or ""),
            docker_root=str(docker.get("root_dir") or ""),
            images=tuple(
                Image(
                    str(item["id"]),
                    _texts(item.get("tags")),
                    _texts(item.get("digests")),
                    _software(item.get("software")),
                    int(item.get("bytes") or 0),
                    tuple(sorted((str(key), str(text)) for key, text in (item.get("build") or {}).items())),
                )
                for item in state["images"]
            ),
            models=tuple(_weights(item) for item in state["models"]),
            fetching=tuple(
                PartialDownload(str(item["cache_dir"]), str(item["repo"]), int(item["bytes"]))
                for item in state.get("fetching") or ()
            ),
            instances=tuple(
                sorted((_running(item) for item in state["instances"]), key=lambda found: found.name)
            ),
            disks=tuple(
                Disk(
                    str(item["path"]),
                    int(item["free_bytes"]),
                    int(item["device"]),
                    str(item.get("network") or ""),
                )
                for item in state["disk"]
            ),
            numa_nodes=tuple(
                NumaNode(int(item["id"]), str(item.get("cpus") or ""))
                for item in state.get("numa_nodes") or ()
            ),
            os_version=str(system.get("version_id") or ""),
            docker_version=str(docker.get("version") or ""),
            docker_community=bool(docker.get("community")),
            buildx=bool(docker.get("buildx")),
            git=bool(state.get("git")),
            kfd_zombies=tuple(int(pid) for pid in state.get("kfd_zombies") or ()),
            partition_change=str(state.get("partition_change") or ""),
            generations=tuple(map(read_history, state.get("generations") or ())),
            instance_key=str(state.get("instance_key") or ""),
            interfaces=tuple(_interface(item) for item in state.get("interfaces") or ()),
            hcas=tuple(_hca(item) for item in state.get("rdma") or ()),
            verbs=bool(state.get("verbs")),
            problems=tuple(
                ObservedProblem(str(item["what"]), str(item["error"])) for item in state.get("problems") or ()
            ),
            repositories=tuple(map(ObservedRepository.from_json, state.get("repositories") or ())),
            stored=frozenset(map(str, state.get("stored") or ())),
            libtorrent=bool(state.get("libtorrent")),
            held_bytes=int(state.get("held_bytes") or 0),
            benchmarks=tuple(
                KeptRuns(str(item["run"]), str(item["target"]), tuple(map(int, item["runs"])))
                for item in state.get("benchmarks") or ()
            ),
        )


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is not a text")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    return tuple([value if type(value) is str else str(_text(value)) for value in values or ()])


def _number(value: Any) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError(f"{value!r:.60} is not a number")
    return value


def _interface(item: Mapping[str, Any]) -> Interface:
    return Interface(
        name=str(item["name"]),
        addresses=tuple(str(address) for address in item.get("addresses") or ()),
        up=bool(item.get("up")),
        mtu=int(item.get("mtu") or 0),
        speed=_number(item.get("speed")),
    )


def _hca(item: Mapping[str, Any]) -> Hca:
    return Hca(
        name=str(item["name"]),
        port=int(item.get("port") or 1),
        active=item.get("state") == "ACTIVE",
        layer=str(item.get("layer") or ""),
        rate=int(item.get("rate") or 0),
        interface=str(item.get("interface") or ""),
        gid_index=_number(item.get("gid_index")),
    )


def _gpu(item: Mapping[str, Any]) -> ObservedGpu:
    vendor, device = item.get("vendor_id"), item.get("device_id")
    return ObservedGpu(
        index=int(item["index"]),
        pci_id=f"{vendor:04x}:{device:04x}" if vendor is not None and device is not None else "",
        gfx=str(item.get("gfx") or ""),
        vram_total=int(item.get("vram_total") or 0),
        compute=_text(item.get("compute_partition")),
        available_compute=_texts(item.get("available_compute_partitions")),
        memory=_text(item.get("memory_partition")),
        numa_node=_number(item.get("numa_node")),
        available_memory=_texts(item.get("available_memory_partitions")),
        vram_used=int(item.get("vram_used") or 0),
        users=tuple(int(pid) for pid in item.get("users") or ()),
        in_reset=bool(item.get("in_reset")),
        ecc_uncorrectable=int(item.get("ecc_uncorrectable") or 0),
        partitions=tuple(
            ObservedPartition(_number(part.get("render_minor")), int(part.get("memory_bytes") or 0))
            for part in sorted(item.get("partitions") or (), key=lambda part: int(part.get("id") or 0))
        ),
    )


def _software(item: Any) -> ImageSoftware | None:
    """Return what a probe found in an image; None if it is unreadable, so that the image is probed again."""
    try:
        found = ImageSoftware.from_json(item) if item else None
    except (KeyError, TypeError, ValueError):
        return None
    if found is None:
        return None
    texts = (found.vllm, found.platform, found.rocm, found.pytorch, found.python, *(found.gfx or ()))
    return found if all(text is None or _VERSION.fullmatch(text) for text in texts) else None


def _weights(item: Mapping[str, Any]) -> CachedWeights:
    return CachedWeights(
        cache_dir=str(item["cache_dir"]),
        repo=str(item["repo"]),
        commit=str(item["commit"]),
        complete=bool(item.get("complete")),
        bytes=int(item.get("bytes") or 0),
        files=int(item.get("files") or 0),
        exclude=_texts(item.get("exclude")),
        include=_texts(item.get("include")),
        verified=item.get("verified") is not False,
    )


def _running(item: Mapping[str, Any]) -> ObservedInstance:
    name, deployment = str(item["name"]), str(item.get("deployment") or "")
    if not NAME.fullmatch(name) or not (deployment == "" or NAME.fullmatch(deployment)):
        raise ValueError(f"a container claims to be instance {name[:60]!r} of {deployment[:60]!r}")
    return ObservedInstance(
        name=name,
        deployment=deployment,
        state=_text(item.get("state")),
        spec_hash=_text(item.get("spec_hash")),
        artefact_hash=_text(item.get("artefact_hash")),
        exit_code=_number(item.get("exit_code")),
        ready=item.get("ready") is not False,
        supervisor=SupervisorState.from_json(item.get("supervisor")),
        policy=_text(item.get("restart_policy")),
        own_policy=_text(item.get("own_restart_policy")) or "",
        start=RecordedStart.from_json(item.get("start")),
        file_hashes=tuple(sorted((str(name), str(text)) for name, text in (item.get("files") or {}).items())),
    )
