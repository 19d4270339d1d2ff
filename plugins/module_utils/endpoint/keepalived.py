# SPDX-License-Identifier: Apache-2.0
"""The service that holds the virtual address on a load balancer's host.

It is a separate service with its configuration next to HAProxy's: a keepalived that the host runs for other purposes,
and /etc/keepalived, are not touched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Callable

from ..common.module_main import NodeError
from ..service.endpoint import ADDRESS_FILE

KEEPALIVED = "/usr/sbin/keepalived"
SERVICE = "instinct-balancer-address.service"
# Not kept over a reboot: keepalived does not start if any process has the number in its pid file.
PID_FILE, VRRP_PID_FILE = "/run/instinct-balancer-address.pid", "/run/instinct-balancer-address-vrrp.pid"
START_SECONDS = 10.0
UNIT = """\
# Written by instinct-fleet.
[Unit]
Description=Load balancer of instinct-fleet: its virtual address
Wants=network-online.target
After=network-online.target instinct-balancer.service
StartLimitIntervalSec=0

[Service]
ExecStartPre=/bin/rm -f {pid} {vrrp_pid}
ExecStart={program} --dont-fork --vrrp --log-console --use-file {directory}/current/keepalived.conf \
--pid {pid} --vrrp_pid {vrrp_pid}
ExecReload=/bin/kill -HUP $MAINPID
KillMode=mixed
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
"""
Run = Callable[[Sequence[str]], "tuple[int, str]"]


@dataclass(frozen=True)
class KeepalivedService:
    """The virtual address service: its paths and its changes. runs: returns whether the process of a pid file runs."""

    directory: str
    units: str
    systemctl: Callable[..., None]
    runs: Callable[[str], bool]
    program: str = KEEPALIVED

    @property
    def unit(self) -> str:
        """Return the path of the unit file, which exists only while there is a virtual address."""
        return os.path.join(self.units, SERVICE)

    @property
    def unit_text(self) -> str:
        """Return the text of the unit file."""
        return UNIT.format(
            program=self.program, directory=self.directory, pid=PID_FILE, vrrp_pid=VRRP_PID_FILE
        )

    def wanted(self, files: Mapping[str, str]) -> bool:
        """Return whether the configuration has a virtual address."""
        return ADDRESS_FILE in files

    def step(self, files: Mapping[str, str], changed: Sequence[str], unit_changed: bool) -> str:
        """Return what systemctl has to do for the desired texts: start, restart, reload, remove, or "" for nothing."""
        if not self.wanted(files):
            return "remove" if os.path.exists(self.unit) else ""
        if not self.runs(PID_FILE):
            return "start"
        return "restart" if unit_changed else "reload" if ADDRESS_FILE in changed else ""

    def validate(self, directory: str, run: Run) -> None:
        """Have keepalived check the file in this directory. Raise NodeError with its messages if it refuses it."""
        path = os.path.join(directory, ADDRESS_FILE)
        if not os.path.exists(path) or not os.path.exists(self.program):
            return
        code, said = run([self.program, "--config-test", "--use-file", path])
        if code:
            words = " | ".join(said.splitlines()[:6])
            raise NodeError(
                f"keepalived rejects the configuration; the running one stays in use. It reports: {words}"
            )

    def do(self, step: str) -> None:
        """Carry out the step, and check that the service runs. Raise NodeError if it does not."""
        if step == "remove":
            self.systemctl("disable", "--now", SERVICE)
            os.unlink(self.unit)
            self.systemctl("daemon-reload")
            return
        self.systemctl(step, SERVICE)
        end = time.monotonic() + START_SECONDS
        while not self.runs(PID_FILE):
            if time.monotonic() > end:
                raise NodeError(
                    f"keepalived does not run {START_SECONDS:.0f} s after its {step}, so that the virtual address is "
                    f"not on this host. journalctl -u {SERVICE} shows why."
                )
            time.sleep(0.1)
