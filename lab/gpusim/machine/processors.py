# SPDX-License-Identifier: Apache-2.0
"""The processors and boards of simulated servers as data, and the mapping of CPUs to sockets and NUMA nodes.

The CPUs of a server are numbered as in Linux: first one thread of every core, socket by socket, then with SMT the
second threads in the same order. The machine that runs the simulation is never queried.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_COMMON = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall nx "
    "pdpe1gb rdtscp lm constant_tsc rep_good nopl nonstop_tsc cpuid aperfmperf pni pclmulqdq monitor ssse3 fma cx16 "
    "pcid sse4_1 sse4_2 x2apic movbe popcnt aes xsave avx f16c rdrand lahf_lm abm 3dnowprefetch cat_l3 cdp_l3 "
    "ibrs ibpb stibp ibrs_enhanced fsgsbase bmi1 avx2 smep bmi2 erms invpcid cqm rdt_a avx512f avx512dq rdseed adx "
    "smap avx512ifma clflushopt clwb avx512cd sha_ni avx512bw avx512vl xsaveopt xsavec xgetbv1 xsaves cqm_llc "
    "cqm_occup_llc cqm_mbm_total cqm_mbm_local avx512_bf16 wbnoinvd arat avx512vbmi umip pku ospke avx512_vbmi2 gfni "
    "vaes vpclmulqdq avx512_vnni avx512_bitalg avx512_vpopcntdq la57 rdpid fsrm flush_l1d"
)
_AMD_FLAGS = (
    f"{_COMMON} mmxext fxsr_opt extd_apicid rapl svm extapic cr8_legacy sse4a misalignsse osvw ibs skinit wdt tce "
    "topoext perfctr_core perfctr_nb bpext perfctr_llc mwaitx cpb hw_pstate ssbd mba vmmcall clzero irperf xsaveerptr "
    "rdpru cppc npt lbrv svm_lock nrip_save tsc_scale vmcb_clean flushbyasid decodeassists pausefilter pfthreshold "
    "avic v_vmsave_vmload vgif x2avic overflow_recov succor smca debug_swap"
)
_INTEL_FLAGS = (
    f"{_COMMON} dts acpi ss tm pbe art arch_perfmon pebs bts xtopology tsc_known_freq dtes64 ds_cpl vmx smx est tm2 "
    "sdbg xtpr pdcm dca tsc_deadline_timer epb cat_l2 cdp_l2 ssbd mba tpr_shadow flexpriority ept vpid ept_ad "
    "tsc_adjust intel_pt avx_vnni split_lock_detect dtherm ida pln pts hwp hwp_act_window hwp_epp hwp_pkg_req vnmi "
    "waitpkg tme bus_lock_detect cldemote movdiri movdir64b enqcmd md_clear serialize tsxldtrk pconfig arch_lbr "
    "amx_bf16 avx512_fp16 amx_tile amx_int8 arch_capabilities"
)


@dataclass(frozen=True)
class Idle:
    """An idle state: microseconds to wake up, and whether a well-configured server has it off."""

    name: str
    latency: int
    off: bool = False


@dataclass(frozen=True)
class Processor:
    """A processor and its server. Clocks are kHz, caches KiB; `distance`: to another NUMA node."""

    name: str
    vendor: str
    family: int
    model: int
    stepping: int
    title: str
    cores: int  # per socket
    cache: int
    clock: tuple[int, int]  # lowest and highest
    address_sizes: tuple[int, int]
    distance: int
    flags: str
    driver: str
    governors: tuple[str, ...]
    idle: tuple[Idle, ...]
    board: tuple[str, str, str]  # vendor, product, BIOS version
    iommu: str  # name of the kernel's devices
    iommus: int

    @property
    def amd(self) -> bool:
        return self.vendor == "AuthenticAMD"

    @property
    def off(self) -> tuple[int, ...]:
        """Return the numbers of the idle states that a well-configured server has off."""
        return tuple(number for number, state in enumerate(self.idle) if state.off)


_GENERIC = ("conservative", "ondemand", "userspace", "powersave", "performance", "schedutil")
_AMD_IDLE = (Idle("POLL", 0), Idle("C1", 1), Idle("C2", 800, off=True))
_INTEL_IDLE = (Idle("POLL", 0), Idle("C1", 1), Idle("C1E", 2), Idle("C6", 290))

EPYC = Processor(
    "epyc", "AuthenticAMD", 25, 17, 1, "AMD EPYC 9654 96-Core Processor", 96, 1024, (1500000, 3700000), (52, 57), 32,
    _AMD_FLAGS, "acpi-cpufreq", _GENERIC, _AMD_IDLE, ("Supermicro", "AS -8125GS-TNMR2", "3.2"), "ivhd", 8,
)  # fmt: skip
XEON = Processor(
    "xeon", "GenuineIntel", 6, 207, 2, "INTEL(R) XEON(R) PLATINUM 8592+", 64, 327680, (800000, 3900000), (52, 57), 21,
    _INTEL_FLAGS, "intel_pstate", ("performance", "powersave"), _INTEL_IDLE,
    ("Dell Inc.", "PowerEdge XE9680", "2.3.5"), "dmar", 16,
)  # fmt: skip
APU = Processor(
    "apu", "AuthenticAMD", 25, 144, 1, "AMD Instinct MI300A Accelerator", 24, 1024, (1500000, 3700000), (52, 57), 32,
    _AMD_FLAGS, "acpi-cpufreq", _GENERIC, _AMD_IDLE, ("Supermicro", "AS -4145GH-TNMR", "1.1"), "ivhd", 4,
)  # fmt: skip
PROCESSORS = {processor.name: processor for processor in (EPYC, XEON)}
SOCKETS = 2
GUEST_BOARD = ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "1.16.3")


@dataclass(frozen=True)
class Layout:
    """The CPUs of a server by number. `nodes` are NUMA nodes, `threads` those of a core."""

    sockets: int
    cores: int  # per socket
    nodes: int
    threads: int = 1

    @property
    def all_cores(self) -> int:
        return self.sockets * self.cores

    @property
    def count(self) -> int:
        return self.all_cores * self.threads

    def socket(self, cpu: int) -> int:
        return cpu % self.all_cores // self.cores

    def core(self, cpu: int) -> int:
        """Return the number of the CPU's core within its socket."""
        return cpu % self.cores

    def node(self, cpu: int) -> int:
        return cpu % self.all_cores * self.nodes // self.all_cores

    def siblings(self, cpu: int) -> tuple[int, ...]:
        """Return the threads of a CPU's core."""
        first = cpu % self.all_cores
        return tuple(first + thread * self.all_cores for thread in range(self.threads))

    def of_socket(self, socket: int) -> list[int]:
        return [cpu for cpu in range(self.count) if self.socket(cpu) == socket]

    def of_node(self, node: int) -> list[int]:
        return [cpu for cpu in range(self.count) if self.node(cpu) == node]


def cpu_list(cpus: Iterable[int]) -> str:
    """Return a set of CPUs in the kernel's form: 0-95,192-287."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def cpu_mask(cpus: Iterable[int], count: int) -> str:
    """Return a set of CPUs as a mask in words of 32 bits, highest first."""
    bits = sum(1 << cpu for cpu in cpus)
    words = -(-count // 32)
    return ",".join(f"{bits >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(words)))
