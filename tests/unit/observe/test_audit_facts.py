# SPDX-License-Identifier: Apache-2.0
"""Reading a host: a tree of files in, facts out."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.observe import kernel_cmdline
from ansible_collections.instinct.fleet.plugins.module_utils.observe.audit_facts import (
    acs_control,
    next_boot,
    read_host,
    selected_word,
)
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source

GPU = "sys/bus/pci/devices/0000:05:00.0"
CPU = "sys/devices/system/cpu/cpu"


def write(root: Path, files: dict[str, str]) -> Source:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return Source(str(root))


def read(root: Path, files: dict[str, str], log: str = "") -> dict[str, Any]:
    (root / "dev/shm").mkdir(parents=True)
    return read_host(write(root, files), lambda command: log)


def test_settings(tmp_path: Path) -> None:
    found = read(tmp_path, {
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 pci=bfsort,realloc=off quiet\n",
        "proc/cpuinfo": "processor : 0\nvendor_id : AuthenticAMD\n",
        f"{CPU}0/cpufreq/scaling_governor": "schedutil\n", f"{CPU}1/cpufreq/scaling_governor": "performance\n",
        f"{CPU}0/cpuidle/state2/name": "C2\n", f"{CPU}0/cpuidle/state2/disable": "0\n",
        f"{CPU}1/cpuidle/state2/name": "C2\n", f"{CPU}1/cpuidle/state2/disable": "1\n",
        "sys/devices/system/cpu/smt/active": "0\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "proc/sys/kernel/numa_balancing": "1\n", "etc/sysctl.d/10-a.conf": "# x\nkernel.numa_balancing = 0\n",
        "etc/security/limits.conf": "* hard nofile 1024\n",
        "etc/security/limits.d/60.conf": "* - nofile 1048576 # all\nroot - nofile 1048576\n* - memlock unlimited\n",
        "etc/tmpfiles.d/x.conf": "d /tmp 1777\nw /sys/a* - - - - two words\n",
        "usr/lib/tmpfiles.d/x.conf": "w /sys/b - - - - hidden\n",
        "run/tuned/x": "", "etc/tuned/active_profile": "balanced\n",
        "run/systemd/timesync/synchronized": "", "proc/17/comm": "systemd-timesyn\n", "proc/18/comm": "sshd\n",
    })  # fmt: skip
    assert found["cmdline"]["now"][2:] == ["pci=bfsort", "pci=realloc=off", "quiet"]
    assert found["cmdline"]["next"] is None
    assert found["cpu"] == {
        "vendor": "AuthenticAMD", "governors": {"schedutil": 1, "performance": 1},
        "idle": {"C2": {"state": "state2", "enabled": 1}}, "smt": "0",
    }  # fmt: skip
    assert found["huge_pages"] == "madvise"
    assert found["sysctls"]["kernel.numa_balancing"] == {
        "now": "1", "boot": "0", "file": "/etc/sysctl.d/10-a.conf", "line": 2,
    }  # fmt: skip
    assert found["limits"] == {
        "nofile": ["/etc/security/limits.d/60.conf", "1048576"]
    }  # memlock: root has another
    assert found["boot_settings"] == {"/sys/a*": ["/etc/tmpfiles.d/x.conf", "two words"]}
    assert found["tuned"] == "balanced"
    assert found["clock_synchronized"] is True
    assert found["time_service"] == "systemd-timesyncd"
    assert abs(found["time"] - time.time()) < 60


UNIT = "usr/lib/systemd/system/docker.service"
DROP_INS = "etc/systemd/system/docker.service.d"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, None),
        ({UNIT: "[Service]\nTimeoutStartSec=0\n"}, {"file": None, "value": None}),
        ({UNIT: "[Service]\nTimeoutSec=0\n"}, {"file": f"/{UNIT}", "value": "0"}),
        # A drop-in wins over the unit, and the last by name over the others; its namesake in /etc hides the vendor's.
        (
            {
                UNIT: "TimeoutStopSec=1s\n",
                f"{DROP_INS}/10.conf": "TimeoutStopSec = 2s\n",
                f"{DROP_INS}/20.conf": "TimeoutStopSec=3min\n",
                "run/systemd/system/docker.service.d/15.conf": "TimeoutStopSec=4s\n",
                "usr/lib/systemd/system/docker.service.d/20.conf": "TimeoutStopSec=5s\n",
            },
            {"file": f"/{DROP_INS}/20.conf", "value": "3min"},
        ),
        # A unit of the same name in /etc replaces the vendor's.
        (
            {UNIT: "TimeoutStopSec=1s\n", "etc/systemd/system/docker.service": "#TimeoutStopSec=2s\n"},
            {"file": None, "value": None},
        ),
    ],
)
def test_how_long_docker_may_stop(
    tmp_path: Path, files: dict[str, str], found: dict[str, str] | None
) -> None:
    assert read(tmp_path, files)["docker_stop"] == found


def test_gpus_nics_and_log(tmp_path: Path) -> None:
    port = "sys/class/infiniband/mlx5_0/ports/1"
    log = (
        "amdgpu 0000:05:00.0: amdgpu: VRAM: 196592M\nnvme0: error\n"
        "amdgpu 0000:05:00.0: [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring comp_1.0.0 timeout\n"
        "amdgpu 0000:05:00.0: amdgpu: GPU reset begin!\namdgpu 0000:05:00.0: amdgpu: GPU reset begin!\n"
    )
    (tmp_path / "sys/bus/pci/drivers/amdgpu").mkdir(parents=True)
    (tmp_path / GPU).mkdir(parents=True)
    (tmp_path / GPU / "driver").symlink_to("../../drivers/amdgpu")
    found = read(tmp_path, {
        f"{GPU}/vendor": "0x1002\n", f"{GPU}/class": "0x120000\n", f"{GPU}/device": "0x74a1\n",
        f"{GPU}/current_link_speed": "32.0 GT/s PCIe\n", f"{GPU}/current_link_width": "16\n",
        f"{GPU}/vbios_version": "113\n",
        "sys/bus/pci/devices/0000:06:00.0/vendor": "0x1002\n", "sys/bus/pci/devices/0000:06:00.0/class": "0x030000\n",
        f"{port}/state": "4: ACTIVE\n", f"{port}/link_layer": "Ethernet\n", f"{port}/rate": "400 Gb/sec (4X NDR)\n",
        "sys/class/infiniband/mlx5_0/fw_ver": "28.1\n", "sys/class/iommu/ivhd0/x": "",
    }, log)  # fmt: skip
    assert found["pci_gpus"] == [{
        "bdf": "0000:05:00.0", "device_id": 0x74A1, "driver": "amdgpu", "link_speed": "32.0 GT/s PCIe",
        "link_width": 16, "vbios": "113", "vram": None, "visible_vram": None,
    }]  # fmt: skip
    assert found["nics"] == [
        {"name": "mlx5_0", "state": "ACTIVE", "layer": "Ethernet", "rate": "400 Gb/sec", "firmware": "28.1"}
    ]
    assert found["iommus"] == 1
    assert found["kernel_log"]["count"] == 3
    assert len(found["kernel_log"]["last"]) == 2


def test_what_fails_is_none_and_named(tmp_path: Path) -> None:
    def denied(command: list[str]) -> str:
        raise OSError("dmesg: read kernel buffer failed: Operation not permitted")

    source = write(tmp_path, {})
    found = read_host(source, denied)
    assert found["kernel_log"] is None
    assert found["shm_bytes"] is None
    assert {problem["what"] for problem in source.problems} == {"kernel log", "/dev/shm"}


def capability(number: int, following: int, control: int = 0) -> bytes:
    return struct.pack("<IHHQ", following << 20 | 1 << 16 | number, 0, control, 0)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (bytes(256), None),  # not root, or no PCI Express
        (bytes(4096), None),
        (bytes(256) + capability(0x1, 0x110) + capability(0xD, 0, 0x1D), 0x1D),
        (bytes(256) + capability(0xD, 0), 0),
        (bytes(256) + capability(0x1, 0x100), None),  # a list that goes round in circles
        (bytes(256) + b"\xff" * 256, None),
    ],
)
def test_acs(tmp_path: Path, space: bytes, expected: int | None) -> None:
    (tmp_path / "config").write_bytes(space)
    assert acs_control(str(tmp_path / "config")) == expected


@pytest.mark.parametrize(
    "dmesg", ["#!/bin/sh\necho 'amdgpu: probe failed'\n", "#!/bin/sh\necho no >&2; exit 1\n", None]
)
def test_module(tmp_path: Path, run_module: Any, monkeypatch: pytest.MonkeyPatch, dmesg: str | None) -> None:
    from ansible_collections.instinct.fleet.plugins.modules import host_facts

    monkeypatch.setattr(host_facts, "ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    write(tmp_path, {"proc/cmdline": "quiet\n"} | ({"bin/dmesg": dmesg} if dmesg else {}))
    if dmesg:
        (tmp_path / "bin/dmesg").chmod(0o755)
    result, failed = run_module(host_facts.main, {})
    assert not failed, result
    assert result["host_facts"]["cmdline"]["now"] == result["node_state"]["cmdline"] == ["quiet"]
    if dmesg and "failed" in dmesg:
        assert result["host_facts"]["kernel_log"] == {"count": 1, "last": ["amdgpu: probe failed"]}
    else:
        assert result["host_facts"]["kernel_log"] is None
        assert "kernel log" in {problem["what"] for problem in result["host_facts"]["problems"]}


GRUB = """
menuentry 'Debian' { linux /vmlinuz-6.1 root=UUID=1 ro  pci=bfsort iommu=pt quiet
}
\tlinux\t/vmlinuz-6.1 root=UUID=1 ro  pci=bfsort iommu=pt quiet
\tinitrd /initrd
\tlinux\t/vmlinuz-6.1 root=UUID=1 ro single  pci=bfsort
\tlinux\t/vmlinuz-5.10 root=UUID=1 ro quiet
"""


def test_next_boot_of_grub(tmp_path: Path) -> None:
    source = write(tmp_path, {"boot/grub/grub.cfg": GRUB})
    expected = ("root=UUID=1", "ro", "pci=bfsort", "iommu=pt", "quiet")
    assert next_boot(source) == (kernel_cmdline.GRUB_CFG, expected)


def test_next_boot_of_boot_loader_specification(tmp_path: Path) -> None:
    source = write(tmp_path, {
        "boot/loader/entries/a-5.14.conf": "title RHEL\noptions root=/dev/a $kernelopts $tuned_params iommu=pt\n",
        "boot/loader/entries/a-5.15.conf": "title RHEL\noptions root=/dev/a ro pci=bfsort iommu=pt\n",
        "boot/loader/entries/a-0-rescue.conf": "title RHEL\noptions root=/dev/a\n",
        "boot/grub2/grubenv": "# GRUB Environment Block\nkernelopts=ro pci=bfsort\n",
    })  # fmt: skip
    expected = ("root=/dev/a", "ro", "pci=bfsort", "iommu=pt")
    assert next_boot(source) == (kernel_cmdline.BLS_DIR, expected)


def test_no_known_boot_loader(tmp_path: Path) -> None:
    assert next_boot(Source(str(tmp_path))) == (None, None)


@pytest.mark.parametrize(("text", "expected"), [("[a] b", "a"), ("a", "a"), ("", None), (None, None)])
def test_chosen(text: str | None, expected: str | None) -> None:
    assert selected_word(text) == expected


@pytest.mark.parametrize("words", [("pci=bfsort",), ("pci=realloc=off", "iommu=pt")])
def test_drop_in(words: tuple[str, ...]) -> None:
    assert kernel_cmdline.drop_in_words(kernel_cmdline.drop_in(words)) == words
    assert kernel_cmdline.drop_in_words('GRUB_CMDLINE_LINUX="something else"') == ()
