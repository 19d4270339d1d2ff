# SPDX-License-Identifier: Apache-2.0
"""A node with eight MI300X as a directory tree, and tools that change it, for tests without the lab.

KFD's properties come from a captured node (tests/data/rocm_samples). The tree is plain files, so what the
driver would refuse is in `behaviour.json` at its root: {"sysfs": …, "rocm-smi": …, "amd-smi": …}, each a
word, or {"busy": attempts left, "gpus": [indices]}, or {"trouble": word, "gpus": [indices]}.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from tests import ROOT

SAMPLES = ROOT / "tests/data/rocm_samples"
BUSES = (0x05, 0x26, 0x46, 0x65, 0x85, 0xA6, 0xC6, 0xE5)
PARTS = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}
VRAM = 196592 << 20
CPU_NODES = 2
CPU_SAMPLE = (SAMPLES / "kfd_mi300x_cpx_node0_cpu_properties.txt").read_text()
GPU_SAMPLE = (SAMPLES / "kfd_mi300x_cpx_node2_gpu0_part0_properties.txt").read_text()


def write(path: Path, text: str) -> None:
    """A file with its parents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class Tree:
    """The tree under `root`. Every method reads and writes the files: tools in other processes share them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def build(self, modes: list[str] | None = None, *, missing: int = 0) -> Tree:
        """A node after boot. `missing` partitions at the end of the list have no KFD node."""
        for index, bus in enumerate(BUSES):
            device = self.root / f"sys/devices/pci0000:00/0000:{bus:02x}:00.0"
            minor = 128 + 8 * index
            for name, text in {
                "vendor": "0x1002", "device": "0x74a1", "numa_node": str(index // 4),
                "uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME=0000:{bus:02x}:00.0", "unique_id": f"{bus:016x}",
                "mem_info_vram_total": str(VRAM), "mem_info_vram_used": str(283 << 20),
                "current_compute_partition": (modes or ["SPX"] * 8)[index],
                "available_compute_partition": "SPX, DPX, QPX, CPX",
                "current_memory_partition": "NPS1", "available_memory_partition": "NPS1, NPS4",
                "current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16",
            }.items():  # fmt: skip
                write(device / name, text + "\n")
            for part in range(8):
                node = self.root / f"sys/class/drm/renderD{minor + part}"
                node.mkdir(parents=True)
                target = (
                    device if part == 0 else self.root / f"sys/devices/platform/amdgpu_xcp.{minor + part}"
                )
                target.mkdir(parents=True, exist_ok=True)
                (node / "device").symlink_to(os.path.relpath(target, node))
                write(self.root / f"dev/dri/renderD{minor + part}", "")
        (self.root / "sys/class/drm/version").write_text("drm 1.1.0\n")
        (self.root / "sys/class/kfd/kfd/proc").mkdir(parents=True)
        (self.root / "sys/module/amdgpu").mkdir(parents=True)
        write(self.root / "sys/module/amdgpu/version", "6.12.12\n")
        write(self.root / "opt/rocm/.info/version", "6.4.1-83\n")
        write(
            self.root / "proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 9654\nflags\t\t: fpu sse\n\n"
        )
        write(self.root / "missing", str(missing))
        self.topology()
        return self

    def device(self, index: int) -> Path:
        """A GPU's PCI device."""
        return self.root / f"sys/devices/pci0000:00/0000:{BUSES[index]:02x}:00.0"

    def modes(self) -> list[str]:
        """Current modes."""
        return [(self.device(index) / "current_compute_partition").read_text().strip() for index in range(8)]

    def set(self, index: int, mode: str) -> None:
        """Switch a GPU as the driver does."""
        (self.device(index) / "current_compute_partition").write_text(mode + "\n")
        self.topology(index)

    def topology(self, *only: int) -> None:
        """Make KFD's nodes anew from the modes, of all GPUs or of these. Each has ten numbers."""
        top = self.root / "sys/class/kfd/kfd/topology/nodes"
        for cpu in range(CPU_NODES):
            write(top / f"{cpu}/gpu_id", "0\n")
            write(top / f"{cpu}/properties", CPU_SAMPLE)
        modes = self.modes()
        lost = int((self.root / "missing").read_text())
        for gpu in only or range(8):
            for node in range(10 * gpu + 10, 10 * gpu + 20):
                shutil.rmtree(top / str(node), ignore_errors=True)
            count = PARTS[modes[gpu]]
            for part in range(count - (lost if gpu == 7 else 0)):
                changed = {
                    "simd_count": 1216 // count, "num_xcc": 8 // count,
                    "drm_render_minor": 128 + 8 * gpu + part, "location_id": BUSES[gpu] << 8 | part,
                    "unique_id": 0xABC000 + gpu,
                }  # fmt: skip
                node = top / str(10 * gpu + 10 + part)
                lines = [line.split() for line in GPU_SAMPLE.splitlines()]
                write(node / "properties", "".join(f"{key} {changed.get(key, old)}\n" for key, old in lines))
                write(node / "gpu_id", f"{30000 + 10 * gpu + part}\n")
                bank = f"heap_type 1\nsize_in_bytes {VRAM // count}\nflags 0\nwidth 8192\n"
                write(node / "mem_banks/0/properties", bank)

    # ------------------------------------------------------------------------------------------- behaviour

    def behave(self, **behaviour: Any) -> None:
        """Set how the driver ("sysfs") and the tools ("rocm_smi", "amd_smi") behave."""
        named = {name.replace("_", "-"): value for name, value in behaviour.items()}
        (self.root / "behaviour.json").write_text(json.dumps(named))

    def trouble(self, who: str, index: int) -> str:
        """What hinders `who` on this GPU: "", busy, einval, eperm, eio, noop; counts busy attempts down."""
        path = self.root / "behaviour.json"
        behaviour = json.loads(path.read_text()) if path.exists() else {}
        entry = behaviour.get(who, "")
        if isinstance(entry, str):
            return entry
        if index not in entry.get("gpus", range(8)):
            return ""
        if "busy" in entry:
            entry["busy"] -= 1
            path.write_text(json.dumps(behaviour))
            return "busy" if entry["busy"] >= 0 else ""
        return str(entry["trouble"])

    def driver_write(self, index: int, mode: str) -> None:
        """A write to current_compute_partition, refused as the driver refuses."""
        word = self.trouble("sysfs", index)
        if word in ("busy", "einval", "eperm", "eio"):
            raise OSError(number := getattr(errno, f"E{word.removeprefix('e').upper()}"), os.strerror(number))
        if word != "noop":
            self.set(index, mode)

    def hold(self, pid: int, cmdline: str, cgroup: str = "0::/user.slice\n") -> None:
        """A process with /dev/kfd open."""
        (self.root / f"sys/class/kfd/kfd/proc/{pid}").mkdir()
        write(self.root / f"proc/{pid}/cmdline", cmdline.replace(" ", "\0") + "\0")
        write(self.root / f"proc/{pid}/comm", cmdline.split()[0].rsplit("/", maxsplit=1)[-1] + "\n")
        write(self.root / f"proc/{pid}/cgroup", cgroup)

    def install(self, *tools: str) -> None:
        """Put tools into /opt/rocm/bin."""
        for tool in tools:
            path = self.root / "opt/rocm/bin" / tool
            call = f"from tests.worlds.gpu_tree import run; run({tool!r}, {str(self.root)!r})"
            write(path, f"#!{sys.executable} -S\nimport sys; sys.path.insert(0, {str(ROOT)!r}); {call}\n")
            path.chmod(0o755)

    def calls(self) -> list[str]:
        """Command lines of the tools that ran."""
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []


# --- the tools --------------------------------------------------------------------------------------------


def run(tool: str, root: str) -> None:
    """The body of a fake tool."""
    tree = Tree(Path(root))
    with (tree.root / "calls").open("a") as file:
        file.write(" ".join([tool, *sys.argv[1:]]) + "\n")
    behaviour = tree.root / "behaviour.json"
    whole = json.loads(behaviour.read_text()).get(tool) if behaviour.exists() else None
    if whole == "hang":
        import time

        time.sleep(3600)  # whoever waits for it gives up
    if sys.argv[1:] in (["--showcomputepartition"], ["list"]):  # whether it answers
        sys.exit(0)
    if whole == "lose":
        (tree.root / "sys/class/drm/renderD128/device").unlink()
        sys.exit(0)
    if whole == "rejects":
        sys.stderr.write((SAMPLES / "amdsmi_6.3dev_set_bad_choice.stderr.txt").read_text())
        sys.exit(2)
    if whole == "garbage":
        print("Segmentation fault")
        sys.exit(139)
    (rocm_smi if tool == "rocm-smi" else amd_smi)(tree, sys.argv[1:])


def devices(tree: Tree) -> list[tuple[int, int]]:
    """The tools' device list: (GPU, partition)."""
    return [(gpu, part) for gpu, mode in enumerate(tree.modes()) for part in range(PARTS[mode])]


def rocm_smi(tree: Tree, argv: list[str]) -> None:
    """rocm-smi [-d N…] --setcomputepartition MODE: a line per device, exit code 0 whatever happened."""
    mode = argv[-1]
    known = devices(tree)
    chosen = [int(word) for word in argv[1:-2]] if argv[0] == "-d" else list(range(len(known)))
    print("\n\n" + " ROCm System Management Interface ".center(90, "="))
    print(f" Set compute partition to {mode} ".center(90, "="))
    for device in chosen:
        gpu, part = known[device]
        message = f"Successfully set compute partition to {mode}"
        if part:
            message = "Not supported on the given system"
        elif (word := tree.trouble("rocm-smi", gpu)) == "busy":
            message = "Device is currently busy, try again later"
        elif word == "einval":
            message = "set_compute_partition, Invalid arguments provided"
        elif word != "noop":
            tree.set(gpu + 1 if word == "next" else gpu, mode)
        print(f"GPU[{device}]\t\t: {message}")
    print("=" * 90 + "\n" + " End of ROCm SMI Log ".center(90, "="))


def amd_smi(tree: Tree, argv: list[str]) -> None:
    """amd-smi set --gpu all|BDF… --compute-partition MODE, as 6.4: the first failing GPU ends it with 1."""
    assert argv[:2] == ["set", "--gpu"]
    assert argv[-2] == "--compute-partition"
    mode, words = argv[-1], argv[2:-2]
    known = devices(tree)
    for number, (gpu, part) in enumerate(known):
        bdf = f"0000:{BUSES[gpu]:02x}:00.{part}"
        if words != ["all"] and bdf not in words:
            continue
        word = tree.trouble("amd-smi", gpu)
        status = "2 | AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported" if part else ""
        status = "30 | AMDSMI_STATUS_BUSY - Device busy" if word == "busy" else status
        if status:
            sys.stderr.write(
                f"amdsmi.amdsmi_exception.AmdSmiLibraryException: Error code:\n\t{status}\n\nThe above "
                "exception was the direct cause of the following exception:\n\nValueError: Unable to set "
                f"accelerator partition to {mode} on GPU ID: {number} BDF:{bdf}\n"
            )
            sys.exit(1)
        tree.set(gpu, mode)
        message = f"Successfully set accelerator partition to {mode} (profile #{list(PARTS).index(mode)})"
        print(f"GPU: {number}\n    ACCELERATOR_PARTITION: {message}\n")
