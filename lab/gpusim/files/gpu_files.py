# SPDX-License-Identifier: Apache-2.0
"""The sysfs files of a GPU's PCI device: ids, link, memory, firmware, partition modes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from ..driver import faults, kernel
from ..machine.models import MIB
from ..machine.state import Gpu, Holder, Node
from ..machine.topology import DrmDevice
from .entries import Dir, Entry, File, Link, SysfsError, folder, live, text
from .sysfs_cpu import node_cpus

LINK_SPEEDS = (2.5, 5.0, 8.0, 16.0, 32.0)  # GT/s, by the code in configuration space, from 1 on
# Versions in fw_version/ of an MI300X.
FIRMWARE = {
    "mec": 0x000000B1, "rlc": 0x00000048, "sdma": 0x00000018, "smc": 0x00557B00, "sos": 0x0036013A,
    "asd": 0x210000D9, "ta_ras": 0x1B36020D, "ta_xgmi": 0x20000015, "vcn": 0x04115004, "imu": 0x00000000,
}  # fmt: skip


def gpu_files(node: Node, k: int, drm: Sequence[DrmDevice], vram_used: Callable[[], int]) -> dict[str, Entry]:
    """Return the entries of devices/pci0000:00/<address> of GPU `k`. `vram_used` is called when a file is read."""
    gpu, spec = node.gpus[k], node.spec
    did = f"{spec.device_id:08X}"
    found: dict[str, Entry] = {
        "class": text("0x120000"),
        "vendor": text("0x1002"),
        "device": text(f"0x{spec.device_id:04x}"),
        "subsystem_vendor": text("0x1002"),
        "subsystem_device": text(f"0x{spec.device_id:04x}"),
        "revision": text("0x00"),
        "irq": text(64 + k),
        "enable": text(1 if node.driver.loaded else 0),
        "numa_node": text(gpu.numa_node),
        "local_cpulist": text(node_cpus(node, gpu.numa_node)),
        "current_link_speed": text(f"{gpu.link_speed} GT/s PCIe"),
        "current_link_width": text(gpu.link_width),
        "max_link_speed": text("32.0 GT/s PCIe"),
        "max_link_width": text(16),
        "modalias": text(f"pci:v00001002d{did}sv00001002sd{did}bc12sc00i00"),
        "resource": text("0x0000000000000000 0x0000000000000000 0x0000000000000000"),
        "config": File(lambda: _config_space(spec.device_id, gpu)),
        "subsystem": Link("../../../bus/pci"),
    }
    if not node.driver.loaded:
        return found
    device = next(d for d in drm if d.gpu == k and d.xcp == 0)
    found |= {
        "driver": Link("../../../bus/pci/drivers/amdgpu"),
        "drm": Dir(lambda: drm_nodes(device)),
        "unique_id": text(f"{gpu.unique_id:016x}"),
        "product_name": text(f"{spec.market_name} OAM"),
        "product_number": text("102-G30211-0C"),
        "vbios_version": text(node.vbios),
        "gpu_busy_percent": text(gpu.sensors.gfx_busy),
        "mem_busy_percent": text(gpu.sensors.memory_busy),
        "pcie_replay_count": text(0),
        "mem_info_vram_total": text(spec.vram),
        "mem_info_vram_used": live(lambda: f"{vram_used()}\n"),
        "mem_info_vis_vram_total": text(spec.vram),
        "mem_info_vis_vram_used": live(lambda: f"{vram_used()}\n"),
        "mem_info_gtt_total": text(node.cpu_memory // 2),
        "mem_info_gtt_used": text(12 * MIB),
        "fw_version": folder(**{f"{name}_fw_version": text(f"0x{v:08x}") for name, v in FIRMWARE.items()}),
        "ras": folder(umc_err_count=text(f"ue: {gpu.sensors.uncorrectable}\nce: 0")),
        "power": folder(runtime_status=text("active"), control=text("on")),
        "hwmon": folder(**{f"hwmon{k + 2}": _sensors(gpu, spec.power_cap)}),
    }
    if node.driver.partition_files:
        found |= _partition_files(node, k)
    return found


def drm_nodes(device: DrmDevice) -> dict[str, Entry]:
    """Return the entries of the directory `drm` of a DRM device."""
    nodes = {f"card{device.card}": device.card, f"renderD{device.render}": device.render}
    return {
        name: folder(
            dev=text(f"226:{minor}"),
            device=Link("../.."),
            subsystem=Link("../../../../../class/drm"),
        )
        for name, minor in nodes.items()
    }


def _sensors(gpu: Gpu, power_cap: int) -> Dir:
    """Return the GPU's hwmon directory: microwatt, millidegree, hertz."""
    s = gpu.sensors
    return folder(
        name=text("amdgpu"),
        power1_label=text("PPT"),
        power1_average=text(s.power * 1_000_000),
        power1_cap=text(power_cap * 1_000_000),
        temp2_label=text("junction"),
        temp2_input=text(s.hotspot * 1000),
        temp3_label=text("mem"),
        temp3_input=text(s.memory * 1000),
        freq1_label=text("sclk"),
        freq1_input=text(s.gfx_clock * 1_000_000),
        freq2_label=text("mclk"),
        freq2_input=text(s.memory_clock * 1_000_000),
    )


def _partition_files(node: Node, k: int) -> dict[str, Entry]:
    gpu = node.gpus[k]

    def current() -> str:
        forced = faults.errno_for(node, "read-errno", k) or (errno.EPERM if gpu.reset else 0)
        if forced:
            raise SysfsError(forced, "current_compute_partition")
        return f"{gpu.compute}\n"

    own = node.platform != "guest"  # a virtual function may be read, not changed
    switchable = own and len(node.offered_memory) > 1

    def set_compute(now: Node, wanted: str, holders: Sequence[Holder]) -> kernel.Outcome:
        return kernel.set_compute(now, k, wanted, holders)

    def set_memory(now: Node, wanted: str, _: Sequence[Holder]) -> kernel.Outcome:
        return kernel.set_memory(now, k, wanted)

    found: dict[str, Entry] = {
        "current_compute_partition": File(
            current, 0o644 if own else 0o444, set_compute if own else None, live=True
        ),
        "available_compute_partition": text(", ".join(kernel.available_compute(node))),
        "current_memory_partition": File(
            lambda: f"{node.memory}\n",
            0o644 if switchable else 0o444,
            set_memory if switchable else None,
            live=True,
        ),
    }
    if node.driver.mem_alloc_files:

        def set_alloc(now: Node, wanted: str, _: Sequence[Holder]) -> kernel.Outcome:
            return kernel.set_mem_alloc(now, k, wanted)

        found["compute_partition_mem_alloc_mode"] = File(
            lambda: f"{gpu.mem_alloc}\n", 0o644 if own else 0o444, set_alloc if own else None, live=True
        )
    if len(node.offered_memory) > 1:
        found["available_memory_partition"] = text(", ".join(node.offered_memory))
    if node.driver.partition_config:
        found["compute_partition_config"] = Dir(
            lambda: {
                "supported_xcp_configs": text(", ".join(node.spec.compute_modes)),
                "supported_nps_configs": text(", ".join(node.memory_for(gpu.compute))),
                "xcp_config": text(gpu.compute),
            }
        )
    return found


def _config_space(device_id: int, gpu: Gpu) -> bytes:
    """Return the PCI configuration space for lspci: ids, class, and the PCIe link, which supports 32 GT/s x16."""
    space = bytearray(256)
    space[0:4] = (0x1002).to_bytes(2, "little") + device_id.to_bytes(2, "little")
    space[4:8] = (0x0007).to_bytes(2, "little") + (0x0010).to_bytes(2, "little")  # enabled; has capabilities
    space[8:12] = bytes([0x00, 0x00, 0x00, 0x12])  # revision, class 0x1200
    space[0x2C:0x30] = (0x1002).to_bytes(2, "little") + device_id.to_bytes(2, "little")
    space[0x34] = 0x64
    able = len(LINK_SPEEDS) | 16 << 4
    is_now = LINK_SPEEDS.index(gpu.link_speed) + 1 | gpu.link_width << 4
    space[0x64:0x68] = bytes([0x10, 0x00]) + (0x0002).to_bytes(2, "little")  # PCIe capability, endpoint
    space[0x70:0x74] = able.to_bytes(4, "little")  # LnkCap
    space[0x76:0x78] = is_now.to_bytes(2, "little")  # LnkSta
    return bytes(space)
