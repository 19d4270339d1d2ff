# SPDX-License-Identifier: Apache-2.0
"""Check a host's GPUs, driver, hardware and services. Pure functions, named in host_items.yml."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ....module_utils.engines.versions import version_key
from ...knowledge.catalog.images import check_driver
from .items import ELSEWHERE, OK, UNKNOWN, WRONG, CheckResult, HostView

Rule = Mapping[str, Any]
NO_GPUS = CheckResult(ELSEWHERE, "no GPU")


def gpu_count(rule: Rule, view: HostView) -> CheckResult:
    """Check that there are as many GPUs on the PCI bus as declared, or as servers of this model have."""
    if view.facts.get("pci_gpus") is None:
        return CheckResult(UNKNOWN, "the PCI bus was not read")
    there = len(view.gpus)
    wanted = view.gpu_count or (view.per_node.get(view.models[0].name, 0) if view.models else 0)
    if not wanted:
        return CheckResult(WRONG, "no AMD accelerator", "GPUs")
    return CheckResult(OK if there == wanted else WRONG, f"{there} of {wanted}", f"{wanted} GPUs")


def gpu_driver(rule: Rule, view: HostView) -> CheckResult:
    """Check that amdgpu drives every GPU."""
    if not view.gpus:
        return NO_GPUS
    if not view.state["driver"]["loaded"]:
        return CheckResult(WRONG, "amdgpu is not loaded", "amdgpu")
    left = [gpu["bdf"] for gpu in view.gpus if gpu["driver"] != "amdgpu"]
    if left:
        return CheckResult(WRONG, f"not on {_names(left)}", "amdgpu")
    return CheckResult(OK, view.state["driver"]["version"] or "the kernel's own", "amdgpu")


def gpu_link(rule: Rule, view: HostView) -> CheckResult:
    """Check that every GPU's PCIe link has `speed` (GT/s) and `width` (lanes)."""
    if not view.gpus:
        return NO_GPUS
    slow: dict[str, list[str]] = {}
    for gpu in view.gpus:
        speed = (gpu["link_speed"] or "").split(" ")[0]
        if not speed or gpu["link_width"] is None:
            return CheckResult(UNKNOWN, f"{gpu['bdf']} does not report its link")
        try:
            right = float(speed) >= rule["speed"] and gpu["link_width"] >= rule["width"]
        except ValueError:  # "Unknown", which the kernel reports for a link that is down
            right = False
        if not right:
            slow.setdefault(f"{speed.removesuffix('.0')} GT/s x{gpu['link_width']}", []).append(gpu["bdf"])
    wanted = f"{rule['speed']:.0f} GT/s x{rule['width']}"
    if slow:
        return CheckResult(
            WRONG, "; ".join(f"{link} on {_names(names)}" for link, names in slow.items()), wanted
        )
    return CheckResult(OK, wanted, wanted)


def gpu_firmware(rule: Rule, view: HostView) -> CheckResult:
    """Check that all GPUs have the same VBIOS."""
    versions = Counter(gpu["vbios"] for gpu in view.gpus if gpu["vbios"])
    if not versions:
        return CheckResult(ELSEWHERE, "no GPU reports its VBIOS")
    common, _unused = versions.most_common(1)[0]
    others = [gpu["bdf"] for gpu in view.gpus if gpu["vbios"] not in (None, common)]
    if others:
        return CheckResult(WRONG, f"different on {_names(others)}", common)
    return CheckResult(OK, common, common)


def driver_for_image(rule: Rule, view: HostView) -> CheckResult:
    """Check that the driver is new enough for the ROCm of each image of the host's deployments."""
    version = view.state["driver"]["version"]
    if not view.rocms:
        return CheckResult(ELSEWHERE, "no image whose ROCm is known")
    if not version:
        return CheckResult(ELSEWHERE, "the kernel's own driver has no version")
    for image, rocm in view.rocms.items():
        finding = check_driver(view.images, rocm, version)
        if finding:
            return CheckResult(WRONG, f"{version} for ROCm {rocm}", "", f"{image}: {finding.what}")
    return CheckResult(OK, version)


def rocm_for_gpu(rule: Rule, view: HostView) -> CheckResult:
    """Check that the host's ROCm supports the GPUs."""
    version = view.state["rocm"]["version"]
    if not version or not view.models:
        return CheckResult(ELSEWHERE, "no ROCm on the host" if not version else "no GPU")
    for model in view.models:
        needed = next((item["rocm"] for item in view.images["gpus"] if item["name"] == model.name), None)
        if needed and version_key(version) < version_key(needed):
            return CheckResult(WRONG, f"ROCm {version}", f"ROCm {needed} for {model.name}")
    return CheckResult(OK, f"ROCm {version}")


def kernel_log(rule: Rule, view: HostView) -> CheckResult:
    """Check that amdgpu has reported no errors since boot."""
    log = view.facts.get("kernel_log")
    if log is None:
        return CheckResult(UNKNOWN, "dmesg could not be read", note=_problem(view, "kernel log"))
    if log["count"]:
        lines = f"{log['count']} line{'s' if log['count'] > 1 else ''}"
        return CheckResult(WRONG, lines, "none", f"last: {log['last'][0]}" if log["last"] else "")
    return CheckResult(OK, "none")


def memory(rule: Rule, view: HostView) -> CheckResult:
    """Check the host's memory, by GPU model (TB = 10^12 bytes)."""
    wanted = max((rule["tb"].get(model.name, 0.0) for model in view.models), default=0.0)
    found = view.state.get("memory_bytes")
    if not found:
        return CheckResult(UNKNOWN, "/proc/meminfo was not read")
    if not wanted:
        return CheckResult(ELSEWHERE, "no minimum is known for these GPUs")
    text = f"{found / 1e12:.1f} TB" if found >= 1e11 else f"{found / 1e9:.0f} GB"
    return CheckResult(OK if found >= wanted * 1e12 else WRONG, f"{text} of {wanted} TB", f"{wanted} TB")


def acs(rule: Rule, view: HostView) -> CheckResult:
    """Check that no PCI bridge has Access Control Services enabled."""
    found = view.facts.get("acs")
    if found is None:
        return CheckResult(UNKNOWN, "PCI configuration space could not be read", note=_problem(view, "acs"))
    if found["on"]:
        return CheckResult(WRONG, f"on for {len(found['on'])} of {found['able']} bridges", "off")
    return CheckResult(OK, "off", "off")


def rdma_ports(rule: Rule, view: HostView) -> CheckResult:
    """Check that every port of the RDMA NICs is active."""
    nics = view.facts.get("nics")
    if nics is None:
        return CheckResult(UNKNOWN, "the RDMA NICs were not read")
    if not nics:
        return CheckResult(ELSEWHERE, "no RDMA NIC")
    down = [nic["name"] for nic in nics if nic["state"] != "ACTIVE"]
    if down:
        return CheckResult(WRONG, f"{_names(down)} down", "active")
    return CheckResult(OK, f"{len(nics)} active", "active")


def clock(rule: Rule, view: HostView) -> CheckResult:
    """Check that the clock is synchronized, and at most `seconds` ahead of or behind the control node's."""
    found, ahead = view.facts.get("clock_synchronized"), view.facts.get("clock_ahead")
    service = f"{view.facts.get('time_service') or 'no time service'} runs"
    if ahead is not None and abs(ahead) > rule["seconds"]:
        way = "ahead of" if ahead > 0 else "behind"
        return CheckResult(WRONG, f"{abs(ahead):.0f} s {way} the control node", note=service)
    if found is None:
        return CheckResult(UNKNOWN, "the kernel did not report it")
    return CheckResult(OK, "yes") if found else CheckResult(WRONG, "no", note=service)


def clock_ahead(begun: float, read: object, ended: float) -> float | None:
    """Return by how many seconds at least a clock is ahead that was read between two times of this machine.

    0 if it may be right, None if it was not read.
    """
    if isinstance(read, bool) or not isinstance(read, (int, float)):
        return None
    return round(read - ended if read > ended else min(0.0, read - begun), 3)


def shm(rule: Rule, view: HostView) -> CheckResult:
    """Check that /dev/shm has `gib_per_gpu` for every GPU."""
    found, count = view.facts.get("shm_bytes"), len(view.gpus)
    if found is None:
        return CheckResult(UNKNOWN, "/dev/shm was not read")
    if not count:
        return NO_GPUS
    wanted = rule["gib_per_gpu"] * count
    return CheckResult(
        OK if found >= wanted << 30 else WRONG, f"{found / (1 << 30):.0f} GiB", f"{wanted} GiB"
    )


def disk(rule: Rule, view: HostView) -> CheckResult:
    """Check the free space where Docker stores images."""
    root = view.state["docker"]["root_dir"] or "/var/lib/docker"
    found = next((item["free_bytes"] for item in view.state["disk"] if item["path"] == root), None)
    if found is None:
        return CheckResult(UNKNOWN, f"{root} was not read")
    return CheckResult(
        OK if found >= rule["gb"] * 1e9 else WRONG, f"{found / 1e9:.0f} GB in {root}", f"{rule['gb']} GB"
    )


def docker(rule: Rule, view: HostView) -> CheckResult:
    """Check that Docker answers, and is not older than `version`."""
    found = view.state["docker"]
    if not found["available"]:
        return CheckResult(
            WRONG, "does not answer" if found["installed"] else "not installed", "", found["error"] or ""
        )
    if found["version"] and version_key(found["version"]) < version_key(rule["version"]):
        return CheckResult(
            WRONG, found["version"], f"{rule['version']} or newer", fix={"hand": "install a newer engine"}
        )
    return CheckResult(OK, found["version"] or "yes")


def numa_nodes_per_socket(rule: Rule, view: HostView) -> CheckResult:
    """Check that the BIOS does not split sockets into NUMA nodes."""
    sockets = view.state["cpu"]["sockets"]
    nodes = sum(bool(node["cpus"]) for node in view.state["numa_nodes"])
    if not sockets or not nodes:
        return CheckResult(UNKNOWN, "sockets or NUMA nodes were not read")
    if nodes < sockets:
        return CheckResult(WRONG, f"{nodes} for {sockets} sockets (NPS0)", "NPS1")
    return CheckResult(
        OK if nodes == sockets * rule["count"] else WRONG, f"{nodes} on {sockets} sockets", "NPS1"
    )


def iommu(rule: Rule, view: HostView) -> CheckResult:
    """Check that the kernel found an IOMMU."""
    return (
        CheckResult(OK, "found")
        if view.facts["iommus"]
        else CheckResult(WRONG, "the kernel found none", "an IOMMU")
    )


def large_bar(rule: Rule, view: HostView) -> CheckResult:
    """Check that the CPU can access all of each GPU's memory."""
    known = [gpu for gpu in view.gpus if gpu["vram"] and gpu["visible_vram"] is not None]
    if not known:
        return CheckResult(UNKNOWN, "the driver does not report it") if view.gpus else NO_GPUS
    small = [gpu["bdf"] for gpu in known if gpu["visible_vram"] < gpu["vram"]]
    if small:
        return CheckResult(WRONG, f"part of the memory of {_names(small)}", "all memory visible")
    return CheckResult(OK, "all memory visible")


def smt(rule: Rule, view: HostView) -> CheckResult:
    """Check that SMT is off."""
    found = (view.facts.get("cpu") or {}).get("smt")
    if found is None:
        return CheckResult(ELSEWHERE, "these CPUs have none")
    return CheckResult(OK, "off", "off") if found == "0" else CheckResult(WRONG, "on", "off")


def _problem(view: HostView, what: str) -> str:
    """Return why something could not be read."""
    return next((item["error"] for item in view.facts.get("problems") or () if item["what"] == what), "")


def _names(names: Iterable[str], limit: int = 3) -> str:
    """Return "a, b, c", or "8 (a, b, c, …)" for more than `limit`."""
    short = [name.removeprefix("0000:") for name in names]
    if len(short) <= limit:
        return ", ".join(short)
    return f"{len(short)} ({', '.join(short[:limit])}, …)"
