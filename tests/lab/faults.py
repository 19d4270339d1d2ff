# SPDX-License-Identifier: Apache-2.0
"""What goes wrong below a fleet that serves: faults with a beginning, an end, and what each may cost.

A fault costs nothing (lost=0) unless something dies without a warning or hangs. Then it costs the requests that were on
it, and no others: `lost` is what a host, an instance or HAProxy has in flight under the load of test_faults, and what
comes to an engine that hangs until its checks have failed.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from .conftest import LAB, container
from .helpers import wait_for

if TYPE_CHECKING:
    from .conftest import Lab

BALANCER, FAULTY = "lab-n1", "lab-n2"
VICTIM = "instinct-llama-0"
ENGINES = (
    f"docker top {VICTIM} -eo pid,args | grep -v 'PID\\|docker-init\\|supervise.py' | awk '{{print $1}}'"
)
START_DOCKER = "setsid dockerd >> /var/log/dockerd.log 2>&1 < /dev/null & sleep 0.2"
DOCKER_ENDS = "while pgrep -x dockerd > /dev/null; do sleep 0.1; done"
SKEWED = "/opt/skew/python3"  # Python of the host whose clock goes wrong, as Ansible calls it
SKEW_ON = "/run/skew"
DISK = "/srv/disk"
OWN = ("/etc/instinct-fleet", "/var/lib/instinct-fleet")
TEMPORARY = ("/home/ops", "/tmp", "/var/tmp")
DISK_BYTES = 192 << 20


@dataclass
class Fault:
    """One of the things that go wrong. seconds: between begin() and end(). early: it begins before the operation does.
    words: an operation that fails by it names one of these.
    """

    name: ClassVar[str]
    lost: ClassVar[int] = 0
    seconds: ClassVar[float] = 3.0
    early: ClassVar[bool] = False
    words: ClassVar[tuple[str, ...]] = (FAULTY,)
    small_disk: ClassVar[
        tuple[str, ...]
    ] = ()  # it needs nodes that have these directories on a disk that can be filled
    host: str = FAULTY

    def begin(self, lab: Lab) -> None:
        raise NotImplementedError

    def end(self, lab: Lab) -> None:
        """Nothing is to be ended, unless a fault says so."""


class DockerRestarted(Fault):
    """As when its package is upgraded: SIGTERM, and a new daemon."""

    name, words = "docker_restarted", (FAULTY, "Docker")

    def begin(self, lab: Lab) -> None:
        lab.on(self.host, f"pkill -TERM -x dockerd; {DOCKER_ENDS}")

    def end(self, lab: Lab) -> None:
        lab.on(self.host, START_DOCKER)


class DockerKilled(DockerRestarted):
    """The daemon alone, as by the OOM killer; containers run on, and it is started again."""

    name = "docker_killed"

    def begin(self, lab: Lab) -> None:
        lab.on(self.host, f"pkill -KILL -x dockerd; {DOCKER_ENDS}")


class EngineHangs(Fault):
    """All processes of one engine stand still, and nobody continues them."""

    name, lost, seconds = "engine_hangs", 12, 0.0
    words = (FAULTY, "llama-0")

    def begin(self, lab: Lab) -> None:
        lab.on(self.host, f"kill -STOP $({ENGINES})", check=False)  # it may be stopped just now


class InstanceKilled(Fault):
    """The container's first process, and so all of them, as by the OOM killer. Not `docker kill`: to Docker that is an
    operator who stops it, and it stays stopped.
    """

    name, lost, seconds = "instance_killed", 6, 0.0
    words = (FAULTY, "llama-0")

    def begin(self, lab: Lab) -> None:
        # It may be stopped just now.
        lab.on(self.host, f"kill -KILL $(docker inspect -f '{{{{.State.Pid}}}}' {VICTIM})", check=False)


class BalancerRestarted(Fault):
    """The only HAProxy, as by systemctl restart: everything in flight was on it, and nobody listens for a moment."""

    name, lost, seconds = "haproxy_restarted", 45, 0.0
    words = (BALANCER, "balancer")

    def begin(self, lab: Lab) -> None:
        lab.on(BALANCER, "systemctl restart instinct-balancer")


class PowerCycle(Fault):
    """A host is gone without a warning, and boots at once."""

    name, lost, seconds = "power_cycle", 12, 0.0

    def begin(self, lab: Lab) -> None:
        lab.reboot(self.host)


class HostShutDown(Fault):
    """What an orderly shutdown does first: Docker is stopped, and waits for its containers. Then a boot."""

    name, seconds = "host_shut_down", 5.0

    def begin(self, lab: Lab) -> None:
        lab.on(self.host, f"pkill -TERM -x dockerd; {DOCKER_ENDS}")

    def end(self, lab: Lab) -> None:
        lab.reboot(self.host)


class NetworkCut(Fault):
    """The host's link is down for a minute: no connection is reset, and nothing dies."""

    name, lost, seconds = "network_cut", 12, 60.0

    def begin(self, lab: Lab) -> None:
        self._link("down")

    def end(self, lab: Lab) -> None:
        self._link("up")

    def _link(self, state: str) -> None:
        """Set this machine's end of the link, as a switch would."""
        inside = subprocess.run(
            ["docker", "exec", container(self.host), "ip", "-o", "link", "show", "eth0"],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        (number,) = re.findall(r"eth0@if(\d+):", inside)
        paths = Path("/sys/class/net").glob("*/ifindex")
        (name,) = [path.parent.name for path in paths if path.read_text().strip() == number]
        subprocess.run(["ip", "link", "set", name, state], check=True)


class ToolsHang(Fault):
    """amd-smi and rocm-smi never return."""

    name, seconds, early = "gpu_tools_hang", 45.0, True
    words = (FAULTY, "amd-smi", "rocm-smi")

    def begin(self, lab: Lab) -> None:
        lab.on(self.host, "gpusim fault tool-hang=all")

    def end(self, lab: Lab) -> None:
        lab.on(self.host, "gpusim fault clear; pkill -KILL -f '[g]pusim (amd|rocm)-smi'; true")


class HubDown(Fault):
    """No host reaches the hub or the registry. The control node does: other labs' tests ask the same ones."""

    name, seconds, early = "hub_down", 45.0, True
    words = ("registry.lab", "hub.lab")

    def begin(self, lab: Lab) -> None:
        self._everywhere(lab, "-I")

    def end(self, lab: Lab) -> None:
        self._everywhere(lab, "-D")

    def _everywhere(self, lab: Lab, action: str) -> None:
        for host in lab.hosts:
            to = f"-d {LAB.services_address} -p tcp -j REJECT --reject-with tcp-reset"
            lab.on(host, f"iptables {action} OUTPUT {to}")


class ClockAhead(Fault):
    """Eight minutes, for all that Ansible runs on the host. A container has no clock of its own, so its services and
    supervisors, and the times of its files, stay with the control node's: between them and what modules say is the
    difference that a step of the clock makes.
    """

    name, seconds, early = "clock_ahead", 45.0, True

    def begin(self, lab: Lab) -> None:
        lab.on(self.host, f"touch {SKEW_ON}")

    def end(self, lab: Lab) -> None:
        lab.on(self.host, f"rm -f {SKEW_ON}")


class DiskFull(Fault):
    """The disk with the toolkit's files and the temporary ones has not a byte left: Ansible's modules do not begin."""

    name, seconds, small_disk = "disk_full", 20.0, (*OWN, *TEMPORARY)
    words = ("No space left", "disk", "room")

    def begin(self, lab: Lab) -> None:
        # In ever smaller pieces, until not one byte is left; a module that ends meanwhile removes its own files.
        fill = f"for size in 1M 4k 1; do dd if=/dev/zero bs=$size >> {DISK}/ballast; done 2> /dev/null; true"
        left = ""
        for _again in range(10):
            lab.on(self.host, fill)
            left = lab.on(self.host, f"df --output=avail {DISK} | tail -n 1").strip()
            if left == "0":
                return
        raise AssertionError(f"{self.host}: {left} KiB are left on {DISK}")

    def end(self, lab: Lab) -> None:
        lab.on(self.host, f"rm -f {DISK}/ballast")


class OwnDiskFull(DiskFull):
    """Only the disk with the toolkit's files: modules begin, and find no room for what they write."""

    name, small_disk = "own_disk_full", OWN


FAULTS: tuple[type[Fault], ...] = (
    DockerRestarted,
    DockerKilled,
    EngineHangs,
    InstanceKilled,
    BalancerRestarted,
    PowerCycle,
    HostShutDown,
    NetworkCut,
    ToolsHang,
    HubDown,
    ClockAhead,
    DiskFull,  # the last ones: they need nodes of their own
    OwnDiskFull,
)


def prepare_clock(lab: Lab) -> str:
    """Give the faulty host a Python whose clock can be set; return its path."""
    ahead = (
        "import datetime as d, os, time\n"
        f"if os.path.exists({SKEW_ON!r}):\n"
        "    now, zero = time.time, d.datetime\n"
        "    time.time = lambda: now() + 480\n"
        "    class Ahead(d.datetime):\n"
        "        @classmethod\n"
        "        def now(cls, tz=None): return zero.now(tz) + d.timedelta(minutes=8)\n"
        "        @classmethod\n"
        "        def utcnow(cls): return zero.utcnow() + d.timedelta(minutes=8)\n"
        "    d.datetime = Ahead\n"
    )
    start = f'#!/bin/sh\ntest -e {SKEW_ON} && export PYTHONPATH=/opt/skew\nexec /usr/bin/python3 "$@"\n'
    lab.on(
        FAULTY,
        f"mkdir -p /opt/skew && echo {shlex.quote(ahead)} > /opt/skew/sitecustomize.py && "
        f"echo {shlex.quote(start)} > {SKEWED} && chmod 755 {SKEWED}",
    )
    return SKEWED


def prepare_disk(lab: Lab, directories: Sequence[str]) -> None:
    """Put these directories of each fresh node onto one small disk. It is gone with the next boot."""
    binds = "; ".join(
        f"mkdir -p {path} {DISK}{path}; cp -a {path}/. {DISK}{path}/; chmod --reference={path} {DISK}{path}; "
        f"chown --reference={path} {DISK}{path}; mount --bind {DISK}{path} {path}"
        for path in directories
    )
    for host in lab.hosts:
        lab.on(host, f"set -e; mkdir -p {DISK}; mount -t tmpfs -o size={DISK_BYTES} disk {DISK}; {binds}")


def end_all(lab: Lab) -> None:
    """Whatever an earlier test has left broken is mended, as far as a fault can be ended from outside."""
    for fault in (NetworkCut(), ClockAhead(), DiskFull()):
        fault.end(lab)
    for host in lab.hosts:
        lab.on(host, "gpusim fault clear; pgrep -x dockerd > /dev/null || { " + START_DOCKER + "; }")
        lab.on(
            host, "while iptables -L OUTPUT -n | grep -q REJECT; do iptables -D OUTPUT 1; done", check=False
        )
        wait_for(f"Docker of {host}", partial(_docker_answers, lab, host))


def _docker_answers(lab: Lab, host: str) -> bool:
    return "yes" in lab.on(host, "docker version > /dev/null 2>&1 && echo yes", check=False)
