# SPDX-License-Identifier: Apache-2.0
"""The simulated part of sysfs as a tree of directories, links and files, computed from a Node.

The tree has the layout of /sys: devices/ holds the real directories, class/, bus/ and module/ link
into it. Most of it only changes with the state and is mirrored into plain files (mirror.py); what is
`live` is asked for on every access. A View is made per state, so that what it has built stays true.
File contents end with a newline, as sysfs has them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from . import faults, kernel
from . import topology as topo
from .holders import uses, vram_of, vram_used
from .models import MIB
from .state import Holder, Node
from .topology import DrmDevice, Partition

Writer = Callable[[Node, str, Sequence[Holder]], kernel.Outcome]


class SysfsError(OSError):
    """An attribute that answers with an error instead of contents."""


@dataclass(frozen=True)
class Link:
    target: str


@dataclass(frozen=True)
class File:
    """An attribute: `read` gives its text; `write` what a write to it does, None for read-only ones.

    `live` ones follow the processes, can answer with an error, or can be written.
    """

    read: Callable[[], str | bytes]
    mode: int = 0o444
    write: Writer | None = None
    live: bool = False

    def data(self) -> bytes:
        content = self.read()
        return content if isinstance(content, bytes) else content.encode()


class Dir:
    """A directory; live ones are built anew each time, or are too large to build before asked for."""

    def __init__(self, build: Callable[[], dict[str, Entry]], live: bool = False) -> None:
        self._build = build
        self.live = live
        self._entries: dict[str, Entry] | None = None

    @property
    def entries(self) -> dict[str, Entry]:
        if self.live or self._entries is None:
            self._entries = self._build()
        return self._entries


Entry = Dir | File | Link


def _text(value: object) -> File:
    return File(lambda: f"{value}\n")


def _live(read: Callable[[], str]) -> File:
    return File(read, live=True)


def _dir(**entries: Entry) -> Dir:
    return Dir(lambda: dict(entries))


class View:
    """The tree for one state of the node. `holders` is asked when a file is read."""

    def __init__(self, node: Node, holders: Callable[[], Sequence[Holder]]) -> None:
        self.node = node
        self.holders = holders
        self.parts = topo.partitions(node)
        self.drm = topo.drm_devices(node)
        self.root = Dir(self._root)

    # ------------------------------------------------------------ lookup

    def find(self, path: str) -> Entry | None:
        """The entry at /a/b/c, not following links; None when there is none."""
        entry: Entry = self.root
        for name in path.split("/"):
            if not name:
                continue
            if not isinstance(entry, Dir) or name not in entry.entries:
                return None
            entry = entry.entries[name]
        return entry

    # ------------------------------------------------------------ layout

    def _root(self) -> dict[str, Entry]:
        classes: dict[str, Entry] = {}
        modules: dict[str, Entry] = {}
        drivers: dict[str, Entry] = {}
        pci: dict[str, Entry] = {g.bdf: Dir(partial(self._pci, k)) for k, g in enumerate(self.node.gpus)}
        platform: dict[str, Entry] = {}
        virtual: dict[str, Entry] = {}
        if self.node.driver.loaded:
            kfd = _dir(kfd=Link("../../devices/virtual/kfd/kfd"))
            classes = {"drm": Dir(self._class_drm), "kfd": kfd}
            modules = {"amdgpu": Dir(self._module)}
            drivers = {"amdgpu": Dir(self._driver)}
            virtual = {"kfd": _dir(kfd=Dir(self._kfd))}
            platform = {
                f"amdgpu_xcp_{d.platform_id}": self._drm_parent(d)
                for d in self.drm
                if d.platform_id is not None
            }
        bus = {bdf: Link(f"../../../devices/pci0000:00/{bdf}") for bdf in pci}
        return {
            "bus": _dir(pci=_dir(devices=_dir(**bus), drivers=_dir(**drivers))),
            "class": _dir(**classes),
            "devices": _dir(
                **{"pci0000:00": _dir(**pci)},
                platform=_dir(**platform),
                virtual=_dir(**virtual),
            ),
            "module": _dir(**modules),
        }

    def _drm_parent(self, device: DrmDevice) -> Dir:
        return _dir(drm=Dir(lambda: self._drm_nodes(device)), uevent=_text("DRIVER=amdgpu_xcp"))

    def _drm_nodes(self, device: DrmDevice) -> dict[str, Entry]:
        nodes = {f"card{device.card}": device.card, f"renderD{device.render}": device.render}
        return {
            name: _dir(
                dev=_text(f"226:{minor}"),
                device=Link("../.."),
                subsystem=Link("../../../../../class/drm"),
            )
            for name, minor in nodes.items()
        }

    def _class_drm(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {"version": _text("drm 1.1.0 20060810")}
        for d in self.drm:
            if d.platform_id is None:
                parent = f"../../devices/pci0000:00/{self.node.gpus[d.gpu].bdf}/drm"
            else:
                parent = f"../../devices/platform/amdgpu_xcp_{d.platform_id}/drm"
            for name in (f"card{d.card}", f"renderD{d.render}"):
                found[name] = Link(f"{parent}/{name}")
        return found

    def _module(self) -> dict[str, Entry]:
        driver = self.node.driver
        found: dict[str, Entry] = {
            "initstate": _text("live"),
            "refcnt": _live(lambda: f"{len(self.holders())}\n"),
            "srcversion": _text("B1E3F47E0C1CD2D9D9A9E8A"),
            "coresize": _text(19222528),
            "taint": _text("OE" if driver.kind == "dkms" else ""),
            "drivers": _dir(**{"pci:amdgpu": Link("../../../bus/pci/drivers/amdgpu")}),
            "parameters": _dir(user_partt_mode=_text(-2)),
        }
        if driver.kind == "dkms":
            found["version"] = _text(driver.version)
        return found

    def _driver(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {
            gpu.bdf: Link(f"../../../../devices/pci0000:00/{gpu.bdf}") for gpu in self.node.gpus
        }
        found["module"] = Link("../../../../module/amdgpu")
        return found

    # ------------------------------------------------------------ a GPU's PCI device

    def _pci(self, k: int) -> dict[str, Entry]:
        node, gpu, spec = self.node, self.node.gpus[k], self.node.spec
        did = f"{spec.device_id:08X}"
        found: dict[str, Entry] = {
            "class": _text("0x120000"),
            "vendor": _text("0x1002"),
            "device": _text(f"0x{spec.device_id:04x}"),
            "subsystem_vendor": _text("0x1002"),
            "subsystem_device": _text(f"0x{spec.device_id:04x}"),
            "revision": _text("0x00"),
            "irq": _text(64 + k),
            "enable": _text(1 if node.driver.loaded else 0),
            "numa_node": _text(gpu.numa_node),
            "local_cpulist": _text(self._cpulist(gpu.numa_node)),
            "current_link_speed": _text("32.0 GT/s PCIe"),
            "current_link_width": _text(16),
            "max_link_speed": _text("32.0 GT/s PCIe"),
            "max_link_width": _text(16),
            "modalias": _text(f"pci:v00001002d{did}sv00001002sd{did}bc12sc00i00"),
            "resource": _text("0x0000000000000000 0x0000000000000000 0x0000000000000000"),
            "config": File(lambda: _config_space(spec.device_id)),
            "subsystem": Link("../../../bus/pci"),
        }
        if not node.driver.loaded:
            return found
        device = next(d for d in self.drm if d.gpu == k and d.xcp == 0)
        found |= {
            "driver": Link("../../../bus/pci/drivers/amdgpu"),
            "drm": Dir(lambda: self._drm_nodes(device)),
            "unique_id": _text(f"{gpu.unique_id:016x}"),
            "product_name": _text(f"{spec.market_name} OAM"),
            "product_number": _text("102-G30211-0C"),
            "vbios_version": _text("113-M3000100-103"),
            "gpu_busy_percent": _text(gpu.sensors.gfx_busy),
            "mem_busy_percent": _text(gpu.sensors.memory_busy),
            "pcie_replay_count": _text(0),
            "mem_info_vram_total": _text(spec.vram),
            "mem_info_vram_used": _live(lambda: f"{self.vram_used(k)}\n"),
            "mem_info_vis_vram_total": _text(spec.vram),
            "mem_info_vis_vram_used": _live(lambda: f"{self.vram_used(k)}\n"),
            "mem_info_gtt_total": _text(node.cpu_memory // 2),
            "mem_info_gtt_used": _text(12 * MIB),
            "power": _dir(runtime_status=_text("active"), control=_text("on")),
        }
        if node.driver.partition_files:
            found |= self._partition_files(k)
        return found

    def _cpulist(self, numa: int) -> str:
        first = numa * self.node.cores_per_cpu
        return f"{first}-{first + self.node.cores_per_cpu - 1}"

    def vram_used(self, k: int) -> int:
        return vram_used(self.node, self.holders(), self.parts, k)

    def _partition_files(self, k: int) -> dict[str, Entry]:
        node, gpu = self.node, self.node.gpus[k]

        def current() -> str:
            forced = faults.errno_for(node, "read-errno", k) or (errno.EPERM if gpu.reset else 0)
            if forced:
                raise SysfsError(forced, "current_compute_partition")
            return f"{gpu.compute}\n"

        own = node.platform != "guest"  # a virtual function may look, not change
        switchable = own and len(node.offered_memory) > 1

        def set_compute(now: Node, text: str, holders: Sequence[Holder]) -> kernel.Outcome:
            return kernel.set_compute(now, k, text, holders)

        def set_memory(now: Node, text: str, _: Sequence[Holder]) -> kernel.Outcome:
            return kernel.set_memory(now, k, text)

        found: dict[str, Entry] = {
            "current_compute_partition": File(
                current, 0o644 if own else 0o444, set_compute if own else None, live=True
            ),
            "available_compute_partition": _text(", ".join(kernel.available_compute(node))),
            "current_memory_partition": File(
                lambda: f"{node.memory}\n",
                0o644 if switchable else 0o444,
                set_memory if switchable else None,
                live=True,
            ),
        }
        if node.driver.mem_alloc_files:

            def set_alloc(now: Node, text: str, _: Sequence[Holder]) -> kernel.Outcome:
                return kernel.set_mem_alloc(now, k, text)

            found["compute_partition_mem_alloc_mode"] = File(
                lambda: f"{gpu.mem_alloc}\n", 0o644 if own else 0o444, set_alloc if own else None, live=True
            )
        if len(node.offered_memory) > 1:
            found["available_memory_partition"] = _text(", ".join(node.offered_memory))
        if node.driver.partition_config:
            found["compute_partition_config"] = Dir(
                lambda: {
                    "supported_xcp_configs": _text(", ".join(node.spec.compute_modes)),
                    "supported_nps_configs": _text(", ".join(node.memory_for(gpu.compute))),
                    "xcp_config": _text(gpu.compute),
                }
            )
        return found

    # ------------------------------------------------------------ KFD

    def _kfd(self) -> dict[str, Entry]:
        return {
            "topology": Dir(
                lambda: {
                    "generation_id": _text(self.node.generation),
                    "system_properties": File(topo.system_properties),
                    "nodes": Dir(self._kfd_nodes),
                }
            ),
            "proc": Dir(self._kfd_proc, live=True),
        }

    def _kfd_nodes(self) -> dict[str, Entry]:
        node, parts = self.node, self.parts
        found: dict[str, Entry] = {}
        for cpu in range(node.cpu_nodes):
            found[str(cpu)] = self._kfd_node(
                0, "", partial(topo.cpu_properties, node, parts, cpu), None,
                partial(topo.cpu_links, node, parts, cpu),
            )  # fmt: skip
        for part in parts:
            found[str(part.kfd_node)] = self._kfd_node(
                part.gpu_id, "ip discovery", partial(topo.gpu_properties, node, parts, part), part,
                partial(topo.gpu_links, node, parts, part),
            )  # fmt: skip
        return found

    def _kfd_node(
        self,
        gpu_id: int,
        name: str,
        properties: Callable[[], str],
        part: Partition | None,
        links: Callable[[], list[topo.Link]],
    ) -> Dir:
        def io_links() -> dict[str, Entry]:
            return {str(i): _dir(properties=File(link.text)) for i, link in enumerate(links())}

        return _dir(
            gpu_id=_text(gpu_id),
            name=_text(name),
            properties=File(properties),
            mem_banks=_dir(**{"0": _dir(properties=File(lambda: topo.mem_bank(self.node, part)))}),
            caches=_dir(),
            io_links=Dir(io_links, live=True),
            p2p_links=_dir(),
        )

    def _kfd_proc(self) -> dict[str, Entry]:
        return {str(h.pid): Dir(partial(self._process, h)) for h in self.holders() if h.kfd}

    def _process(self, holder: Holder) -> dict[str, Entry]:
        found: dict[str, Entry] = {"pasid": _text(32768 + holder.pid % 1000), "queues": _dir()}
        for part in self.parts:
            if uses(holder, part):
                found[f"vram_{part.gpu_id}"] = _text(vram_of(holder, part))
                found[f"sdma_{part.gpu_id}"] = _text(0)
        return found


def _config_space(device_id: int) -> bytes:
    """PCI configuration space with what lspci shows: ids, class, and a PCIe link at 32 GT/s x16."""
    space = bytearray(256)
    space[0:4] = (0x1002).to_bytes(2, "little") + device_id.to_bytes(2, "little")
    space[4:8] = (0x0007).to_bytes(2, "little") + (0x0010).to_bytes(2, "little")  # enabled; has capabilities
    space[8:12] = bytes([0x00, 0x00, 0x00, 0x12])  # revision, class 0x1200
    space[0x2C:0x30] = (0x1002).to_bytes(2, "little") + device_id.to_bytes(2, "little")
    space[0x34] = 0x64
    link = 5 | 16 << 4  # speed code 5 is 32 GT/s
    space[0x64:0x68] = bytes([0x10, 0x00]) + (0x0002).to_bytes(2, "little")  # PCIe capability, endpoint
    space[0x70:0x74] = link.to_bytes(4, "little")  # LnkCap
    space[0x76:0x78] = link.to_bytes(2, "little")  # LnkSta
    return bytes(space)
