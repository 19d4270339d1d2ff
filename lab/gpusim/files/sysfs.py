# SPDX-License-Identifier: Apache-2.0
"""The simulated part of sysfs as a tree of directories, links and files, computed from a Node.

The tree has the layout of /sys: devices/ holds the real directories; class/, bus/ and module/ link into it. Most of it
only changes with the state and is mirrored into plain files (mirror.py); `live` entries are evaluated on every access.
Each state has its own View, so that what it has built stays valid. File contents end with a newline, as in sysfs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ..driver.holders import uses, vram_of, vram_used
from ..machine import topology as topo
from ..machine.state import Holder, Node
from ..machine.topology import DrmDevice, Partition
from .entries import Dir, Entry, File, Link, folder, live, text
from .gpu_files import drm_nodes, gpu_files
from .sysfs_cpu import board, cpus, iommus, numa_nodes
from .sysfs_host import huge_pages, nic_devices, nic_links


class View:
    """The tree for one state of the node. `holders` is called when a file is read."""

    def __init__(self, node: Node, holders: Callable[[], Sequence[Holder]]) -> None:
        self.node = node
        self.holders = holders
        self.parts = topo.partitions(node)
        self.drm = topo.drm_devices(node)
        self.root = Dir(self._root)

    # ------------------------------------------------------------ lookup

    def find(self, path: str) -> Entry | None:
        """Return the entry at /a/b/c, not following links; None if there is none."""
        entry: Entry = self.root
        for name in path.split("/"):
            if not name:
                continue
            found = entry.child(name) if isinstance(entry, Dir) else None
            if found is None:
                return None
            entry = found
        return entry

    # ------------------------------------------------------------ layout

    def _root(self) -> dict[str, Entry]:
        classes: dict[str, Entry] = {}
        modules: dict[str, Entry] = {"ast": folder(initstate=text("live"))} if self.node.ast else {}
        drivers: dict[str, Entry] = {}
        pci: dict[str, Entry] = {
            g.bdf: Dir(partial(self._gpu_files, k)) for k, g in enumerate(self.node.gpus)
        }
        platform: dict[str, Entry] = {}
        virtual: dict[str, Entry] = {
            "dmi": folder(id=Dir(partial(board, self.node))), "iommu": Dir(partial(iommus, self.node))
        }  # fmt: skip
        if self.node.driver.loaded:
            kfd = folder(kfd=Link("../../devices/virtual/kfd/kfd"))
            classes |= {"drm": Dir(self._class_drm), "kfd": kfd}
            modules["amdgpu"] = Dir(self._module)
            drivers = {"amdgpu": Dir(self._driver)}
            virtual["kfd"] = folder(kfd=Dir(self._kfd))
            platform = {
                f"amdgpu_xcp_{d.platform_id}": self._drm_parent(d)
                for d in self.drm
                if d.platform_id is not None
            }
        pci |= nic_devices(self.node)
        classes["infiniband"] = folder(**nic_links(self.node))
        classes["dmi"] = folder(id=Link("../../devices/virtual/dmi/id"))
        classes["iommu"] = folder(
            **{name: Link(f"../../devices/virtual/iommu/{name}") for name in iommus(self.node)}
        )
        bus = {bdf: Link(f"../../../devices/pci0000:00/{bdf}") for bdf in pci}
        return {
            "bus": folder(pci=folder(devices=folder(**bus), drivers=folder(**drivers))),
            "class": folder(**classes),
            "devices": folder(
                **{"pci0000:00": folder(**pci)},
                platform=folder(**platform),
                system=folder(cpu=cpus(self.node), node=numa_nodes(self.node)),
                virtual=folder(**virtual),
            ),
            "kernel": folder(mm=folder(transparent_hugepage=folder(**huge_pages(self.node)))),
            "module": folder(**modules),
        }

    def _drm_parent(self, device: DrmDevice) -> Dir:
        return folder(drm=Dir(lambda: drm_nodes(device)), uevent=text("DRIVER=amdgpu_xcp"))

    def _gpu_files(self, k: int) -> dict[str, Entry]:
        return gpu_files(self.node, k, self.drm, lambda: vram_used(self.node, self.holders(), self.parts, k))

    def _class_drm(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {"version": text("drm 1.1.0 20060810")}
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
            "initstate": text("live"),
            "refcnt": live(lambda: f"{len(self.holders())}\n"),
            "srcversion": text("B1E3F47E0C1CD2D9D9A9E8A"),
            "coresize": text(19222528),
            "taint": text("OE" if driver.kind == "dkms" else ""),
            "drivers": folder(**{"pci:amdgpu": Link("../../../bus/pci/drivers/amdgpu")}),
            "parameters": folder(user_partt_mode=text(-2)),
        }
        if driver.kind == "dkms":
            found["version"] = text(driver.version)
        return found

    def _driver(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {
            gpu.bdf: Link(f"../../../../devices/pci0000:00/{gpu.bdf}") for gpu in self.node.gpus
        }
        found["module"] = Link("../../../../module/amdgpu")
        return found

    # ------------------------------------------------------------ KFD

    def _kfd(self) -> dict[str, Entry]:
        return {
            "topology": Dir(
                lambda: {
                    "generation_id": text(self.node.generation),
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
            return {str(i): folder(properties=File(link.text)) for i, link in enumerate(links())}

        return folder(
            gpu_id=text(gpu_id),
            name=text(name),
            properties=File(properties),
            mem_banks=folder(**{"0": folder(properties=File(lambda: topo.mem_bank(self.node, part)))}),
            caches=folder(),
            io_links=Dir(io_links, live=True),
            p2p_links=folder(),
        )

    def _kfd_proc(self) -> dict[str, Entry]:
        return {str(h.pid): Dir(partial(self._process, h)) for h in self.holders() if h.kfd}

    def _process(self, holder: Holder) -> dict[str, Entry]:
        found: dict[str, Entry] = {"pasid": text(32768 + holder.pid % 1000), "queues": folder()}
        for part in self.parts:
            if uses(holder, part):
                found[f"vram_{part.gpu_id}"] = text(vram_of(holder, part))
                found[f"sdma_{part.gpu_id}"] = text(0)
        return found
