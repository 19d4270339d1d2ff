# SPDX-License-Identifier: Apache-2.0
"""The lab's nodes behave as servers do where the toolkit meets them: holders, reloads, services, reboots."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .conftest import Lab
from .helpers import STANDIN, wait_for

pytestmark = pytest.mark.deep

DEVICES = "--device /dev/kfd --device /dev/dri/renderD128"
RUN = f"docker run -d --init --name user {DEVICES} --entrypoint sleep {STANDIN} 600"
HOLDERS = r"for f in /proc/[0-9]*/fd/*; do case $(readlink $f) in /dev/kfd) cat ${f%/fd*}/comm;; esac; done | sort -u"


# Containers that others left would hold the GPUs, some of them again after a reboot, and so does what keeps modes.
CLEAN = """
docker ps -aq | xargs -r docker rm -f > /dev/null
for unit in gpuagent instinct-partition; do systemctl disable --now $unit 2> /dev/null; done
gpusim fault clear && gpusim config model=MI300X release=7.0.0 huge_pages=always && modprobe amdgpu
"""


@pytest.fixture
def node(lab: Lab) -> Iterator[str]:
    """A node on which nothing runs, in SPX/NPS1; so it is afterwards."""
    host = lab.hosts[0]
    lab.on(host, CLEAN)
    yield host
    lab.on(host, CLEAN)


def test_a_container_with_gpus_holds_them(lab: Lab, node: str) -> None:
    lab.on(node, f"{RUN} > /dev/null")
    # The engine does not wait for what its container's first process starts.
    listed = "cat /proc/$(ls /sys/class/kfd/kfd/proc)/comm"
    wait_for("its process", lambda: lab.on(node, listed, check=False).strip() == "sleep")
    assert "sleep" in lab.on(node, HOLDERS).split()
    used = [int(lab.on(node, f"cat /sys/class/drm/card{n}/device/mem_info_vram_used")) for n in (0, 8)]
    assert used[0] > 150 << 30 > 1 << 30 > used[1]
    assert "Device is currently busy" in lab.on(node, "rocm-smi --setcomputepartition CPX")
    assert "Module amdgpu is in use" in lab.on(node, "modprobe -r amdgpu 2>&1; true")
    lab.on(node, "docker stop -t 5 user")
    wait_for("no holder", lambda: not lab.on(node, "ls /sys/class/kfd/kfd/proc").strip())
    assert "Successfully set" in lab.on(node, "rocm-smi --setcomputepartition SPX")


def test_a_memory_mode_takes_a_reload_and_survives_a_reboot(lab: Lab, node: str) -> None:
    lab.on(node, "gpusim config model=MI325X release=10.0.0")
    assert lab.on(node, "command -v rocm-smi; true").strip() == ""
    show = "cat /sys/class/drm/card0/device/current_{memory,compute}_partition"
    lab.on(node, "yes Y | amd-smi set -M NPS4 > /dev/null")
    assert lab.on(node, f"bash -c '{show}'").split() == ["NPS1", "SPX"]
    lab.on(node, "modprobe -r amdgpu && modprobe amdgpu")
    assert lab.on(node, f"bash -c '{show}'").split() == ["NPS4", "CPX"]
    size = "grep -h size_in_bytes /sys/class/kfd/kfd/topology/nodes/2/mem_banks/0/properties"
    assert lab.on(node, size).split()[1] == str(262128 * (1 << 20) // 8)
    lab.on(node, "amd-smi set -C QPX -g 0; true")
    lab.reboot(node)
    assert lab.on(node, f"bash -c '{show}'").split() == ["NPS4", "CPX"]
    assert int(lab.on(node, "ls /dev/dri | wc -l")) == 64


def test_settings_of_the_host_and_services_after_a_reboot(lab: Lab, node: str) -> None:
    governor = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    lab.on(
        node,
        r"""printf '[Service]\nExecStart=/bin/sh -c "exec sleep infinity < /dev/kfd"\n' \
              > /etc/systemd/system/gpuagent.service
        echo 'w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise' > /etc/tmpfiles.d/lab.conf
        echo 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX pcie_aspm=off"' > /etc/default/grub.d/lab.cfg
        update-grub; systemctl enable --now gpuagent"""
        + f"; echo powersave > {governor}",
    )
    try:
        pid = lab.on(node, "systemctl show -p MainPID --value gpuagent").strip()
        # It enters its cgroup, and opens the device, by itself.
        place = f"cat /proc/{pid}/cgroup"
        wait_for("its cgroup", lambda: "/system.slice/gpuagent.service" in lab.on(node, place))
        lab.reboot(node)
        assert "pcie_aspm=off" in lab.on(node, "cat /proc/cmdline").split()
        assert "[madvise]" in lab.on(node, "cat /sys/kernel/mm/transparent_hugepage/enabled")
        assert lab.on(node, f"cat {governor}").strip() == "performance"
        wait_for(
            "the service", lambda: "active" in lab.on(node, "systemctl is-active gpuagent; true").split()
        )
        wait_for("its device", lambda: lab.on(node, "ls /sys/class/kfd/kfd/proc").strip() != "")
    finally:
        lab.on(
            node,
            "systemctl disable --now gpuagent; rm -f /etc/systemd/system/gpuagent.service /etc/tmpfiles.d/lab.conf"
            " /etc/default/grub.d/lab.cfg; update-grub; gpusim config huge_pages=always",
        )
        lab.reboot(node)
