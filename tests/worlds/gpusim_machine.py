# SPDX-License-Identifier: Apache-2.0
"""A machine below a simulated node, and what the toolkit reads on the node. Started as a program, in namespaces of its
own: `unshare -mpf --mount-proc python gpusim_machine.py KIND`. Prints JSON.

It puts a machine's /sys, /proc and /dev in place of the real ones, starts the simulation as in a node, and lets the
toolkit's readers look. The kinds differ in all that a node must not show.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".collections"), str(ROOT)]

CMDLINE = "BOOT_IMAGE=/boot/vmlinuz ro pci=realloc=off pci=bfsort iommu=pt"
ACS_ON = (
    bytes(0x100)
    + (0x000D | 1 << 16).to_bytes(4, "little")
    + bytes(2)
    + (0x1D).to_bytes(2, "little")
    + bytes(8)
)
Files = dict[str, "str | bytes"]


def cpus(count: int, vendor: str, title: str, flags: str) -> str:
    block = f"vendor_id\t: {vendor}\nmodel name\t: {title}\nflags\t\t: fpu {flags}\n\n"
    return "".join(f"processor\t: {number}\n{block}" for number in range(count))


def guest() -> Files:
    """A virtual machine of Intel's with four CPUs, whose kernel has no NUMA nodes, huge pages or PCI bus."""
    return {
        "proc/cpuinfo": cpus(4, "GenuineIntel", "Intel Xeon Processor (Skylake)", "vmx hypervisor"),
        "proc/meminfo": "MemTotal:       16374436 kB\nMemFree:         1000000 kB\n",
        "sys/devices/system/cpu/online": "0-3\n",
        "sys/devices/system/cpu/smt/active": "1\n",
        **{f"sys/devices/system/cpu/cpu{n}/topology/package_cpus_list": "0-3\n" for n in range(4)},
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "kvm-clock\n",
        "sys/class/dmi/id/product_name": "KVM\n",
        "sys/class/net/lo/ifindex": "1\n",
        "sys/module/virtio_net/initstate": "live\n",
        "sys/bus/virtio/drivers_autoprobe": "1\n",
        "sys/kernel/notes": "\n",
        "sys/fs/cgroup/cpuset.cpus.effective": "0-3\n",
        "sys/fs/cgroup/cpuset.mems.effective": "0\n",
    }


def server() -> Files:
    """A server of AMD's with a GPU, NICs, a BMC and much that is set badly."""
    cpu = "sys/devices/system/cpu"
    return {
        "proc/cpuinfo": cpus(64, "AuthenticAMD", "AMD EPYC 7543", "svm"),
        "proc/meminfo": "MemTotal:      528280876 kB\n",
        f"{cpu}/online": "0-63\n",
        f"{cpu}/smt/active": "0\n",
        f"{cpu}/cpu0/topology/package_cpus_list": "0-63\n",
        f"{cpu}/cpu0/cpufreq/scaling_governor": "schedutil\n",
        f"{cpu}/cpu0/cpuidle/state1/name": "C1\n",
        f"{cpu}/cpu0/cpuidle/state1/disable": "0\n",
        **{f"sys/devices/system/node/node{n}/cpulist": f"{8 * n}-{8 * n + 7}\n" for n in range(8)},
        **{f"sys/devices/system/node/node{n}/meminfo": f"Node {n} MemTotal: 66000000 kB\n" for n in range(8)},
        "sys/class/dmi/id/product_name": "PowerEdge R7525\n",
        "sys/devices/virtual/dmi/id/product_name": "PowerEdge R7525\n",
        "sys/firmware/dmi/tables/DMI": "secret",
        "sys/class/iommu/ivhd9/uevent": "\n",
        "sys/class/net/lo/ifindex": "1\n",
        "sys/class/net/lo/speed": "10\n",
        "sys/class/hwmon/hwmon0/name": "k10temp\n",
        "sys/class/infiniband/mlx5_9/ports/1/state": "1: DOWN\n",
        "sys/class/drm/renderD140/device/vendor": "0x1002\n",
        "sys/bus/pci/devices/0000:00:01.1/class": "0x060400\n",
        "sys/bus/pci/devices/0000:00:01.1/config": ACS_ON,
        "sys/bus/pci/devices/0000:03:00.0/vendor": "0x1002\n",
        "sys/bus/pci/devices/0000:03:00.0/class": "0x120000\n",
        "sys/bus/pci/drivers/ast/uevent": "\n",
        "sys/module/ast/initstate": "live\n",
        "sys/module/amdgpu/version": "5.0.0\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
        "sys/fs/cgroup/cpuset/cpuset.cpus": "0-63\n",
        "sys/fs/cgroup/cpuset/cpuset.mems": "0-7\n",
        "sys/fs/cgroup/cpuset/docker/cpuset.cpus": "\n",
        "sys/fs/cgroup/cpuset/docker/cpuset.mems": "\n",
    }


KINDS = {"guest": guest, "server": server}


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def become(files: Files) -> None:
    """Show these files as /sys and /proc, and empty places that the simulation writes to."""
    for place in ("/run", "/var/lib", "/sys"):
        mount("-t", "tmpfs", "below", place)
    Path("/run/.containerenv").touch()
    for name, content in files.items():
        path = Path("/run/below" if name.startswith("proc/") else "/") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    Path("/run/below/proc/cmdline").write_text(f"{CMDLINE} {os.environ.get('MORE_CMDLINE', '')}\n")
    for name in ("cpuinfo", "meminfo", "cmdline"):
        mount("--bind", f"/run/below/proc/{name}", f"/proc/{name}")
    mount("-t", "tmpfs", "-o", "mode=755", "below", "/dev")
    os.mkdir("/dev/shm")
    for name, number in {"null": os.makedev(1, 3), "fuse": os.makedev(10, 229)}.items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, number)


def seen() -> dict[str, Any]:
    """What the toolkit and Docker's engine read, and what is left of the machine."""
    from ansible_collections.instinct.fleet.plugins.module_utils.observe import audit_facts
    from ansible_collections.instinct.fleet.plugins.module_utils.observe.node_state import (
        check_args,
        node_state,
    )
    from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source

    state = node_state(check_args({"sysfs_root": "/", "docker_socket": "/none"}))
    del state["disk"]  # of the machine's disks, which are not simulated
    source = Source("/")
    facts = audit_facts.read_host(source, lambda _: "")
    for own in ("clock_synchronized", "time_service", "time"):  # of the machine, which are not simulated
        del facts[own]
    names = {
        top: sorted(os.listdir(f"/sys/{top}")) for top in ("class", "bus/pci/devices", "bus/pci/drivers")
    }
    return {
        "state": state,
        "facts": facts,
        "problems": source.problems,
        "names": names,
        "ast": os.path.exists("/sys/module/ast"),
        "product": Path("/sys/class/dmi/id/product_name").read_text(),
    }


def other(kind: str) -> dict[str, Any]:
    """What goes by the machine: what Docker's engine may give away, and what runc copies."""
    v1 = Path("/sys/fs/cgroup/cpuset")
    place, names = (v1, "cpuset.{}") if kind == "server" else (v1.parent, "cpuset.{}.effective")
    found = {name: (place / names.format(name)).read_text() for name in ("cpus", "mems")}
    if kind == "server":
        found["parent"] = (v1 / "docker/cpuset.cpus").read_text()
    found["tables"] = sorted(os.listdir("/sys/firmware/dmi")) if kind == "server" else []
    return found


def mounts() -> set[str]:
    """The file systems of this namespace. Some may vanish meanwhile: the kernel detaches a mount whose directory is
    removed elsewhere, as Docker does with each container's.
    """
    return set(Path("/proc/self/mountinfo").read_text().splitlines())


def main(kind: str, *settings: str) -> None:
    become(KINDS[kind]())
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "lab.gpusim", "serve", *settings]
    before = mounts()
    simulation = subprocess.Popen(command, env=environment, cwd="/")
    while not os.path.exists("/run/gpusim/ready"):
        assert simulation.poll() is None, "serve ended"
        time.sleep(0.05)
    later = os.environ.get("LATER")
    if later:
        subprocess.run([*command[:3], "config", later], env=environment, cwd="/", check=True)
    result = {"seen": seen(), "other": other(kind)}
    simulation.send_signal(signal.SIGTERM)
    assert simulation.wait() == 0
    result["mounts left"] = sorted(mounts() - before)
    result["afterwards"] = Path("/proc/cpuinfo").read_text().count("processor")
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
