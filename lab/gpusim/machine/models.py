# SPDX-License-Identifier: Apache-2.0
"""GPU models as data, and the rules for partition modes that follow from them.

Sizes are bytes, clocks MHz, power W. The existing modes follow the kernel's rule (aqua_vanjaram: number of XCCs, and
which memory partition goes with which compute partition), not AMD's shorter list of validated combinations: the tools
accept what the kernel accepts.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024
COMPUTE_MODES = ("SPX", "DPX", "TPX", "QPX", "CPX")  # the kernel's order
MEM_ALLOC_MODES = ("CAPPING", "ALL")  # VRAM split evenly between partitions, or all of their memory partition
MEMORY_MODES = ("NPS1", "NPS2", "NPS4", "NPS8")


def release_of(text: str) -> tuple[int, ...]:
    """Return (6, 4, 1) for 6.4.1."""
    return tuple(int(part) for part in text.split("."))


@dataclass(frozen=True)
class Model:
    """One GPU product. `memory_modes` is what its firmware offers, `pairs` what the kernel allows."""

    name: str
    device_id: int
    gfx: str
    gfx_target_version: int
    xcc: int
    cu_per_xcc: int
    vram_mib: int
    power_cap: int
    memory_modes: tuple[str, ...]
    pairs: tuple[tuple[str, tuple[str, ...]], ...]  # compute mode -> memory modes it is valid with
    pci_name: str
    vram_type: str
    max_bandwidth: int  # GB/s
    idle_power: int
    caches_per_xcc: int = 80
    max_clock: int = 2100
    memory_clock: int = 1300
    apu: bool = False  # CPU and GPU in one package: its own PCI domain and NUMA node, no board firmware
    host_memory: int = 1082331758592  # bytes per NUMA node of the server, as AMD recommends

    @property
    def vram(self) -> int:
        return self.vram_mib * MIB

    @property
    def market_name(self) -> str:
        return f"AMD Instinct {self.name}"

    @property
    def compute_units(self) -> int:
        return self.xcc * self.cu_per_xcc

    @property
    def compute_modes(self) -> tuple[str, ...]:
        """Return the modes into which this number of XCCs can be split, in the kernel's order."""
        return tuple(mode for mode, _ in self.pairs)

    def memory_for(self, compute: str) -> tuple[str, ...]:
        """Return the memory modes with which this compute mode is valid, offered by the firmware or not."""
        return dict(self.pairs).get(compute, ())

    def parts(self, compute: str) -> int:
        """Return the number of logical GPUs per GPU in this compute mode."""
        return {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4, "CPX": self.xcc}[compute]

    def auto_compute(self, memory: str) -> str:
        """Return the compute mode that the driver picks at load (kernel __aqua_vanjaram_get_auto_mode)."""
        if memory == "NPS1":
            return "SPX"
        return "DPX" if memory == "NPS2" else "CPX"


_GFX942_8 = (
    ("SPX", ("NPS1",)),
    ("DPX", ("NPS1", "NPS2")),
    ("QPX", ("NPS1", "NPS4")),
    ("CPX", ("NPS1", "NPS4")),
)
_GFX950_8 = (
    ("SPX", ("NPS1",)),
    ("DPX", ("NPS1", "NPS2")),
    ("QPX", ("NPS1", "NPS2")),
    ("CPX", ("NPS1", "NPS2")),
)

LARGE = 1623497637888  # of servers with 3 TB

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("MI300X", 0x74A1, "gfx942", 90402, 8, 38, 196592, 750, ("NPS1", "NPS4"), _GFX942_8,
              "Aqua Vanjaram [Instinct MI300X]", "HBM3", 5325, 142),
        Model("MI325X", 0x74A5, "gfx942", 90402, 8, 38, 262128, 1000, ("NPS1", "NPS4"), _GFX942_8,
              "Aqua Vanjaram [Instinct MI325X]", "HBM3E", 6000, 150, host_memory=LARGE),
        Model("MI350X", 0x75A0, "gfx950", 90500, 8, 32, 294896, 1000, ("NPS1", "NPS2"), _GFX950_8,
              "Device 75a0", "HBM3E", 8000, 251, max_clock=2200, memory_clock=1900, host_memory=LARGE),
        Model("MI355X", 0x75A3, "gfx950", 90500, 8, 32, 294896, 1400, ("NPS1", "NPS2"), _GFX950_8,
              "Device 75a3", "HBM3E", 8000, 260, max_clock=2400, memory_clock=1900, host_memory=LARGE),
        Model("MI308X", 0x74A2, "gfx942", 90402, 4, 20, 196592, 650, ("NPS1",),
              (("SPX", ("NPS1",)), ("DPX", ("NPS1", "NPS2")), ("CPX", ("NPS1", "NPS4"))),
              "Aqua Vanjaram [Instinct MI308X]", "HBM3", 5325, 130, caches_per_xcc=46, max_clock=1420),
        Model("MI300A", 0x74A0, "gfx942", 90402, 6, 38, 131072, 550, ("NPS1",),
              (("SPX", ("NPS1",)), ("TPX", ("NPS1",)), ("CPX", ("NPS1",))),
              "Aqua Vanjaram [Instinct MI300A]", "HBM3", 5325, 120, apu=True, host_memory=131072 * MIB),
    )
}  # fmt: skip
