# SPDX-License-Identifier: Apache-2.0
"""The state of one node's simulated GPUs: frozen dataclasses, and their JSON form.

Everything in sysfs, the device nodes and the tools' output is computed from a `Node` (and from the processes that hold
the devices). The driver's rules that change a Node are in driver/kernel.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby
from typing import Any

from .host import Cpu, Host, Nic, make_cpus
from .models import MODELS, Model, release_of
from .processors import APU, PROCESSORS, SOCKETS, Layout, Processor

SCHEMA = 2
DKMS_VERSION, DKMS_BUILD = "6.12.12", "2120656"
MEM_ALLOC_SINCE = (6, 16)  # drivers with compute_partition_mem_alloc_mode; the first one is not known
# The tools' driver version for the kernel's own amdgpu (/proc/version without blanks).
INBOX_VERSION = (
    "Linuxversion6.8.0-79-generic(buildd@lcy02-amd64-062)(x86_64-linux-gnu-gcc-13"
    "(Ubuntu13.3.0-6ubuntu2~24.04)13.3.0,GNUld(GNUBinutilsforUbuntu)2.42)#79-UbuntuSMPPREEMPT_DYNAMIC"
)
BDFS = ("0000:05:00.0", "0000:26:00.0", "0000:46:00.0", "0000:65:00.0",
        "0000:85:00.0", "0000:a6:00.0", "0000:c6:00.0", "0000:e5:00.0")  # fmt: skip
UNIQUE_IDS = (
    16404946649897475633, 2472748907779728154, 15565237874008425757, 12035684874187068538,
    15304831566906821053, 13644590235195043050, 13326531576914550249, 15931900197903628278,
)  # fmt: skip
APU_BDFS = ("0000:01:00.0", "0001:01:00.0", "0002:01:00.0", "0003:01:00.0")
SPX_KFD_IDS = (28851, 23018, 29122, 22683, 53458, 63883, 53667, 63738)
OAM_IDS = (7, 6, 5, 4, 3, 2, 1, 0)
PLATFORMS = ("baremetal", "guest", "passthrough")


class StateError(ValueError):
    """An unusable state file or setting; the message names the key and the fix."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest name, or all known names."""
    import difflib  # only wrong input needs it

    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"


@dataclass(frozen=True)
class Sensors:
    """Readings of one GPU: W, degrees Celsius, MHz, percent, counts."""

    power: int = 142
    hotspot: int = 40
    memory: int = 35
    gfx_clock: int = 132
    memory_clock: int = 900
    gfx_busy: int = 0
    memory_busy: int = 0
    uncorrectable: int = 0


@dataclass(frozen=True)
class Gpu:
    """One physical GPU. `kfd_ids` overrides the computed gpu_id of its partitions, in order."""

    bdf: str
    unique_id: int
    oam: int
    numa_node: int
    compute: str = "SPX"
    boot_compute: str = "SPX"
    kfd_ids: tuple[int, ...] = ()
    mem_alloc: str = "CAPPING"
    reset: bool = False  # the GPU is in reset: partition files answer EPERM
    link_speed: float = 32.0  # GT/s, of 32
    link_width: int = 16  # lanes, of 16
    stranded: int = 0  # bytes of VRAM that no process owns
    used_mib: int = 283  # VRAM in use while idle
    sensors: Sensors = field(default_factory=Sensors)


@dataclass(frozen=True)
class Holder:
    """A process that holds the devices; minors: the render minors that it can use.

    `vram` is bytes per usable partition, None for a container's assumed share.
    """

    pid: int
    name: str
    minors: tuple[int, ...] = ()
    kfd: bool = True
    vram: int | None = 0


@dataclass(frozen=True)
class Driver:
    """The amdgpu module.

    Attributes:
        partition_config: it has compute_partition_config/ (DKMS from ROCm 6.3 on)
        busy_per_device: a process makes only the GPUs busy that it can use; in older drivers, all GPUs of the node
    """

    loaded: bool = True
    kind: str = "dkms"  # or "inbox"
    version: str = DKMS_VERSION
    build: str = DKMS_BUILD
    partition_files: bool = True
    partition_config: bool = True
    busy_per_device: bool = False
    lingers: bool = False  # the driver is still cleaning up after the last process that used KFD

    @property
    def mem_alloc_files(self) -> bool:
        """Return whether partitions may share the VRAM of their memory partition."""
        return self.kind == "dkms" and self.partition_config and release_of(self.version) >= MEM_ALLOC_SINCE


@dataclass(frozen=True)
class Node:
    """Everything about one node. `memory_requested` waits for the next driver load."""

    gpus: tuple[Gpu, ...]
    model: str = "MI300X"
    release: str = "7.0.0"
    memory: str = "NPS1"
    boot_memory: str = "NPS1"
    memory_requested: str | None = None
    memory_modes: tuple[str, ...] = ()  # () = the modes of the model
    driver: Driver = field(default_factory=Driver)
    platform: str = "baremetal"
    vbios: str = "113-M3000100-103"
    ifwi: str = "022.040.003.043.000001"
    memory_at_boot: str | None = None  # the memory mode after a reboot, None for the present one
    host: Host = field(default_factory=Host)
    boot_host: Host = field(default_factory=Host)  # the host after a reboot
    bmc: bool = False  # the board has a BMC with VGA, so each boot loads ast, its driver
    ast: bool = False  # ast is loaded
    first_minor: int = 0  # amdgpu's first DRM minor: 1 if ast had taken one when amdgpu was loaded
    cpu: str = "epyc"  # the server's processor; an APU is its own
    smt: bool = False
    cpu_nodes: int = 2
    cmdline: tuple[str, ...] = ()  # the kernel's, of this boot
    hive_id: int = 15188982192727901047
    generation: int = 2
    holders: tuple[Holder, ...] = ()  # injected; real ones are found in /proc
    faults: dict[str, Any] = field(default_factory=dict)
    log: tuple[str, ...] = ()  # the kernel log's amdgpu lines, newest last
    schema: int = SCHEMA

    @property
    def spec(self) -> Model:
        return MODELS[self.model]

    @property
    def processor(self) -> Processor:
        return APU if self.spec.apu else PROCESSORS[self.cpu]

    @property
    def layout(self) -> Layout:
        """Return the CPUs of the server by number."""
        sockets = self.cpu_nodes if self.spec.apu else SOCKETS
        return Layout(sockets, self.processor.cores, self.cpu_nodes, 2 if self.smt else 1)

    @property
    def cores_per_cpu(self) -> int:
        """Return the number of CPUs of a NUMA node, as KFD counts them."""
        return self.layout.count // self.cpu_nodes

    @property
    def cpu_memory(self) -> int:
        """Return the bytes per NUMA node."""
        return self.spec.host_memory

    @property
    def offered_memory(self) -> tuple[str, ...]:
        """Return the memory modes that this node's firmware offers."""
        return self.memory_modes or self.spec.memory_modes

    def memory_for(self, compute: str) -> tuple[str, ...]:
        """Return the memory modes that this node offers and with which this compute mode is valid."""
        return tuple(mode for mode in self.spec.memory_for(compute) if mode in self.offered_memory)

    def gpu_set(self, index: int, **changes: Any) -> Node:
        """Return this node with GPU `index` changed."""
        gpus = list(self.gpus)
        gpus[index] = replace(gpus[index], **changes)
        return replace(self, gpus=tuple(gpus))

    def logged(self, *lines: str) -> Node:
        """Return this node with lines added to its kernel log, which keeps the newest 200."""
        return replace(self, log=(*self.log, *lines)[-200:])


def make_node(count: int = 8, model: str = "MI300X", **settings: Any) -> Node:
    """Return a new node: `count` GPUs, the driver loaded, SPX/NPS1, no processes."""
    if model not in MODELS:
        raise StateError(f"model {model!r} is not simulated; known: {', '.join(MODELS)}")
    spec = MODELS[model]
    addresses = APU_BDFS if spec.apu else BDFS
    if not 0 < count <= len(addresses):
        raise StateError(f"gpus must be 1 to {len(addresses)}, not {count}")
    gpus = tuple(
        Gpu(
            bdf=addresses[i],
            unique_id=UNIQUE_IDS[i],
            oam=OAM_IDS[i],
            numa_node=i if spec.apu else i // 4,
            kfd_ids=(SPX_KFD_IDS[i],),
            sensors=Sensors(power=spec.idle_power),
        )
        for i in range(count)
    )
    made = Node(gpus=gpus, model=model, cpu_nodes=count if spec.apu else 2)
    return fitted(replace(made, **settings))


def fitted(node: Node) -> Node:
    """Return the node with settings for exactly its CPUs; replaced ones get the defaults."""

    def fit(host: Host) -> Host:
        right = len(host.cpus) == node.layout.count
        return host if right else replace(host, cpus=make_cpus(node.processor, node.layout.count))

    return replace(node, host=fit(node.host), boot_host=fit(node.boot_host))


# ---------------------------------------------------------------- JSON


def to_json(node: Node, indent: int | None = None) -> str:
    """Return the node as JSON text for from_json. Neighbouring equal CPUs share an entry with a count."""

    def without(host: Host) -> Host:
        return replace(host, cpus=())

    data = asdict(replace(node, host=without(node.host), boot_host=without(node.boot_host)))
    for key, host in (("host", node.host), ("boot_host", node.boot_host)):
        data[key]["cpus"] = [[len(list(same)), asdict(cpu)] for cpu, same in groupby(host.cpus)]
    return json.dumps(data, indent=indent) + "\n"


def _known(kind: type, values: dict[str, Any], where: str) -> dict[str, Any]:
    names = [f.name for f in fields(kind)]
    for key in values:
        if key not in names:
            raise StateError(f"state: {where} has no key {key!r}{nearest(key, names)}")
    return values


def _host(data: Any) -> Host:
    host = _known(Host, dict(data), "host")
    cpus: tuple[Cpu, ...] = ()
    for count, values in host["cpus"]:
        cpu = _known(Cpu, dict(values), "cpu")
        cpus += (Cpu(**{**cpu, "disabled": tuple(cpu["disabled"])}),) * count
    host["cpus"] = cpus
    host["nics"] = tuple(Nic(**_known(Nic, dict(nic), "nic")) for nic in host["nics"])
    return Host(**host)


def from_json(text: str) -> Node:
    """Return the node that to_json wrote. Raise StateError for anything else."""
    try:
        data = json.loads(text)
    except ValueError as e:
        raise StateError(f"state: not JSON: {e}") from e
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise StateError(f"state: schema {SCHEMA} expected; remove the file and start the simulation again")
    data = _known(Node, dict(data), "node")
    gpus = []
    for entry in data.pop("gpus"):
        gpu = _known(Gpu, dict(entry), "gpu")
        gpu["sensors"] = Sensors(**_known(Sensors, gpu["sensors"], "sensors"))
        gpus.append(Gpu(**{**gpu, "kfd_ids": tuple(gpu["kfd_ids"])}))
    data["gpus"] = tuple(gpus)
    data["holders"] = tuple(
        Holder(**{**_known(Holder, h, "holder"), "minors": tuple(h["minors"])}) for h in data["holders"]
    )
    for key in ("host", "boot_host"):
        data[key] = _host(data[key])
    data["driver"] = Driver(**_known(Driver, data["driver"], "driver"))
    for key in ("memory_modes", "log", "cmdline"):
        data[key] = tuple(data[key])
    return Node(**data)
