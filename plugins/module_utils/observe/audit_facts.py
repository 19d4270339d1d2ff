# SPDX-License-Identifier: Apache-2.0
"""Read the facts that the audit of a host needs beyond node_state.

They are kernel settings, PCI, NICs, limits, the clock and the kernel log. This reads a few hundred small files and one
dmesg. It changes and judges nothing. A fact that cannot be read is None, with an entry in the source's problems.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

from . import kernel_cmdline
from .gpus import AMD
from .source import Source, pairs
from .sysctl_files import sysctl_settings

SYSCTLS = (
    "kernel.numa_balancing",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.rp_filter",
)
"""Keys of catalog/host_items.yml (a test compares the two)."""
CPUS = "/sys/devices/system/cpu"
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
TIME_SERVICES = ("chronyd", "systemd-timesyncd", "ntpd", "ptp4l")
_COMM = 15
"""Letters of a process's name that the kernel keeps."""
PCI = "/sys/bus/pci/devices"
ACCELERATOR, BRIDGE = "0x1200", "0x0604"
ACS, ACS_CONTROL, SOURCE_VALIDATION = 0x000D, 6, 1
TROUBLE = re.compile(
    r"error|fail|timeout|timed out|reset begin|uncorrectable|fatal|page fault", re.IGNORECASE
)
LOG_LINES = 5
LIMITS_CONF = "/etc/security/limits.conf"
DOCKER = "docker.service"
UNIT_DIRECTORIES = (
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/system",
    "/etc/systemd/system",
)
"""Where units and their drop-ins are, the last first in rank (systemd.unit(5))."""

Run = Callable[[list[str]], str]
"""Runs a program and returns its output. Raises OSError."""


def read_host(source: Source, run: Run) -> dict[str, Any]:
    """Return all facts. A part that fails is None, with a problem that names it."""

    def part(name: str, read: Callable[..., Any], *values: Any) -> Any:
        try:
            return read(source, *values)
        except Exception as error:  # one unreadable source must not hide the others
            source.problem(name, f"{type(error).__name__}: {error}")
            return None

    return {
        "cmdline": part("kernel command line", read_cmdline),
        "sysctls": part("sysctl", read_sysctls),
        "cpu": part("cpu", read_cpus),
        "huge_pages": selected_word(source.text(HUGE_PAGES)),
        "boot_settings": part("tmpfiles.d", read_boot_settings),
        "tuned": part("tuned", read_tuned),
        "limits": part("limits", read_limits),
        "docker_stop": part("docker.service", read_stop_limit, DOCKER),
        "shm_bytes": part("/dev/shm", read_shm),
        "pci_gpus": part("pci", read_pci_gpus),
        "acs": part("acs", read_acs),
        "iommus": len(source.names("/sys/class/iommu")),
        "nics": part("nics", read_nics),
        "clock_synchronized": part("clock", read_clock),
        "time_service": part("time service", read_time_service),
        "time": time.time(),
        "kernel_log": part("kernel log", read_kernel_log, run),
    }


# --- the kernel's settings -----------------------------------------------------------------------------


def read_cmdline(source: Source) -> dict[str, Any]:
    """Return the words of the running kernel and of the next boot, with the file that sets these; None if unknown."""
    found: dict[str, Any] = {
        "now": list(kernel_cmdline.words(source.text("/proc/cmdline") or "")),
        "next": None,
    }
    found["file"], next_words = next_boot(source)
    found["next"] = None if next_words is None else list(next_words)
    return found


def next_boot(source: Source) -> tuple[str | None, tuple[str, ...] | None]:
    """Return the boot loader's file or directory, and the words common to all entries that may boot by default.

    With a Boot Loader Specification directory (RHEL and its relatives) all kernels count, because any may be booted.
    """
    entries = [
        name
        for name in source.names(kernel_cmdline.BLS_DIR)
        if name.endswith(".conf") and "rescue" not in name
    ]
    if entries:
        environment = source.text("/boot/grub2/grubenv") or ""
        texts = (source.text(f"{kernel_cmdline.BLS_DIR}/{name}") or "" for name in entries)
        lines = [
            line
            for line in (kernel_cmdline.bls_line(text, environment) for text in texts)
            if line is not None
        ]
        return kernel_cmdline.BLS_DIR, kernel_cmdline.common(lines)
    config = source.text(kernel_cmdline.GRUB_CFG, 4 << 20)
    if config is None:
        return None, None
    return kernel_cmdline.GRUB_CFG, kernel_cmdline.common(kernel_cmdline.grub_lines(config)[:1])


def read_sysctls(source: Source, keys: Iterable[str] = SYSCTLS) -> dict[str, Any]:
    """Return for each key the value now, the value after a boot, and the file and line that set it; None if unset."""
    found = {}
    for key in keys:
        settings = sysctl_settings(source, key)
        path, line, value = settings[-1] if settings else (None, None, None)
        now = source.text("/proc/sys/" + key.replace(".", "/"))
        found[key] = {"now": now, "boot": value, "file": path, "line": line}
    return found


def selected_word(text: str | None) -> str | None:
    """Return the selected word: "always [madvise] never" → madvise; for a file of one word, that word."""
    match = re.search(r"\[(\S+)\]", text or "")
    return match[1] if match else text or None


def read_cpus(source: Source) -> dict[str, Any]:
    """Return the vendor, the number of CPUs per governor, and per idle state the number of CPUs that may enter it."""
    info = pairs(source.text("/proc/cpuinfo", 8192), ":")
    governors: dict[str, int] = {}
    idle: dict[str, dict[str, Any]] = {}
    for cpu in (name for name in source.names(CPUS) if re.fullmatch(r"cpu\d+", name)):
        governor = source.text(f"{CPUS}/{cpu}/cpufreq/scaling_governor")
        if governor:
            governors[governor] = governors.get(governor, 0) + 1
        for state in source.names(f"{CPUS}/{cpu}/cpuidle"):
            place = f"{CPUS}/{cpu}/cpuidle/{state}"
            name, disabled = source.text(f"{place}/name"), source.text(f"{place}/disable")
            if name and disabled is not None:
                entry = idle.setdefault(name, {"state": state, "enabled": 0})
                entry["enabled"] += disabled == "0"
    return {
        "vendor": info.get("vendor_id"),
        "governors": governors,
        "idle": idle,
        "smt": source.text(f"{CPUS}/smt/active"),
    }


def read_boot_settings(source: Source) -> dict[str, list[str]]:
    """Return what tmpfiles.d writes below /sys at boot: [file, value] by path; the last entry wins."""
    files: dict[str, str] = {}
    for directory in ("/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/lib/tmpfiles.d"):
        for name in source.names(directory):
            if name.endswith(".conf"):
                files.setdefault(name, f"{directory}/{name}")
    found = {}
    for name in sorted(files):
        for line in (source.text(files[name]) or "").splitlines():
            parts = line.split(None, 6)
            if len(parts) == 7 and parts[0].rstrip("+!-") == "w" and parts[1].startswith("/sys/"):
                found[parts[1]] = [files[name], parts[6].strip()]
    return found


def read_tuned(source: Source) -> str | None:
    """Return the profile that the tuned daemon applies; None if it does not run."""
    return source.text("/etc/tuned/active_profile") if source.exists("/run/tuned") else None


def read_limits(source: Source) -> dict[str, list[str]]:
    """Return [file, hard limit] of memlock and nofile, where ordinary users and root have the same limit.

    pam_limits reads limits.conf first and then limits.d by name; later lines win. A line for * does not apply to root.
    """
    found: dict[tuple[str, str], list[str]] = {}
    directory = "/etc/security/limits.d"
    files = [LIMITS_CONF, *(f"{directory}/{n}" for n in source.names(directory) if n.endswith(".conf"))]
    for path in files:
        for line in (source.text(path) or "").splitlines():
            words = line.partition("#")[0].split()
            if len(words) == 4 and words[0] in ("*", "root") and words[1] in ("-", "hard"):
                found[words[0], words[2]] = [path, words[3]]
    return {
        name: found["*", name]
        for name in ("memlock", "nofile")
        if ("*", name) in found and found.get(("root", name), [0, 1])[1] == found["*", name][1]
    }


def read_stop_limit(source: Source, unit: str) -> dict[str, str | None] | None:
    """Return file and value of the TimeoutStopSec that counts for a unit (None: none is set); None without the unit."""
    units = [f"{directory}/{unit}" for directory in UNIT_DIRECTORIES if source.exists(f"{directory}/{unit}")]
    if not units:
        return None
    dropins: dict[str, str] = {}
    for directory in UNIT_DIRECTORIES:
        for name in source.names(f"{directory}/{unit}.d"):
            if name.endswith(".conf"):
                dropins[name] = f"{directory}/{unit}.d/{name}"
    found: dict[str, str | None] = {"file": None, "value": None}
    for path in (units[-1], *(dropins[name] for name in sorted(dropins))):
        for line in (source.text(path) or "").splitlines():
            key, _equals, value = line.strip().partition("=")
            if key.strip() in ("TimeoutStopSec", "TimeoutSec"):
                found = {"file": path, "value": value.strip()}
    return found


# --- hardware ------------------------------------------------------------------------------------------


def read_pci_gpus(source: Source) -> list[dict[str, Any]]:
    """Return AMD's accelerators on the PCI bus, with or without a driver, by address."""
    found = []
    for bdf in source.names(PCI):
        device = f"{PCI}/{bdf}"
        if source.number(f"{device}/vendor", 16) != AMD:
            continue
        if not (source.text(f"{device}/class") or "").startswith(ACCELERATOR):
            continue
        driver = os.path.basename(os.path.realpath(f"{source.root}{device}/driver"))
        found.append({
            "bdf": bdf,
            "device_id": source.number(f"{device}/device", 16),
            "driver": driver if driver != "driver" else None,
            "link_speed": source.text(f"{device}/current_link_speed"),
            "link_width": source.number(f"{device}/current_link_width"),
            "vbios": source.text(f"{device}/vbios_version"),
            "vram": source.number(f"{device}/mem_info_vram_total"),
            "visible_vram": source.number(f"{device}/mem_info_vis_vram_total"),
        })  # fmt: skip
    return found


def read_acs(source: Source) -> dict[str, Any]:
    """Return the number of bridges with Access Control Services, and the bridges that have them enabled.

    PCI Express extended capabilities start at 0x100; only root may read them.
    """
    able, on = 0, []
    for bdf in source.names(PCI):
        if not (source.text(f"{PCI}/{bdf}/class") or "").startswith(BRIDGE):
            continue
        control = acs_control(f"{source.root}{PCI}/{bdf}/config")
        if control is not None:
            able += 1
            if control & SOURCE_VALIDATION:
                on.append(bdf)
    return {"able": able, "on": on}


def acs_control(path: str) -> int | None:
    """Return the ACS control register in a device's configuration space; None for a device without ACS."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        place = 0x100
        for _unused in range(64):  # a damaged list must not loop forever
            head = os.pread(fd, 4, place)
            if len(head) < 4:
                return None
            (value,) = struct.unpack("<I", head)
            if value in (0, 0xFFFFFFFF):
                return None
            if value & 0xFFFF == ACS:
                return int(struct.unpack("<H", os.pread(fd, 2, place + ACS_CONTROL))[0])
            place = value >> 20
            if place < 0x100:
                return None
        return None
    finally:
        os.close(fd)


def read_nics(source: Source) -> list[dict[str, Any]]:
    """Return the ports of the RDMA NICs."""
    found = []
    top = "/sys/class/infiniband"
    for name in source.names(top):
        for port in source.names(f"{top}/{name}/ports"):
            place = f"{top}/{name}/ports/{port}"
            found.append({
                "name": name if port == "1" else f"{name}/{port}",
                "state": (source.text(f"{place}/state") or "").rpartition(" ")[2],
                "layer": source.text(f"{place}/link_layer"),
                "rate": (source.text(f"{place}/rate") or "").partition("(")[0].strip(),
                "firmware": source.text(f"{top}/{name}/fw_ver"),
            })  # fmt: skip
    return found


def read_shm(source: Source) -> int:
    """Return the size of /dev/shm in bytes."""
    space = os.statvfs(source.root + "/dev/shm")
    return space.f_blocks * space.f_frsize


def read_clock(source: Source) -> bool | None:
    """Return whether a time service keeps the kernel's clock synchronised (adjtimex(2)).

    systemd-timesyncd also leaves a file, which is checked first.
    """
    if source.exists("/run/systemd/timesync/synchronized"):
        return True
    import ctypes

    timex = ctypes.create_string_buffer(512)  # larger than struct timex; zero modes only read
    state = ctypes.CDLL(None).adjtimex(timex)
    return None if state < 0 else state != 5  # TIME_ERROR: the clock is not synchronised


def read_time_service(source: Source) -> str | None:
    """Return the process that keeps the time; None if none of them runs."""
    running = {source.text(f"/proc/{name}/comm") for name in source.names("/proc") if name.isdigit()}
    return next((name for name in TIME_SERVICES if name[:_COMM] in running), None)


def read_kernel_log(source: Source, run: Run) -> dict[str, Any]:
    """Return how many amdgpu lines report trouble since the boot, and the last few distinct ones."""
    lines = [
        line for line in run(["dmesg", "--notime"]).splitlines() if "amdgpu" in line and TROUBLE.search(line)
    ]
    return {"count": len(lines), "last": list(dict.fromkeys(reversed(lines)))[:LOG_LINES]}
