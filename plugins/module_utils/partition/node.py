# SPDX-License-Identifier: Apache-2.0
"""The node whose GPUs are partitioned: its files, programs, units and containers. It decides nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..common.module_main import NodeError
from ..common.paths import PARTITION_JOURNAL
from ..common.processes import Program, run_program
from ..docker.client import ALIVE, SOCKET, DockerClient
from ..docker.lifecycle import start_again, stop_gracefully
from ..observe.driver import read_rocm
from . import holders as partition_holders
from . import journal as partition_journal
from .backends import Command, SysfsWrite
from .gpu_files import GpuFiles
from .gpus import PartitionError
from .holders import GpuHolder, Service
from .journal import Journal
from .modes import CommandResult
from .monitors import MONITOR_UNITS

SERVICE_TIMEOUT = 90.0  # systemd's own limit for a stop
CDI_SPECS = ("/etc/cdi/amd.json", "/var/run/cdi/amd.json")


class PartitionNode(GpuFiles):
    """The machine: its files under `root`, its programs, its clock. Implements request.NodeInterface, which explains
    it."""

    def __init__(self, root: str = "/", docker_socket: str = SOCKET) -> None:
        super().__init__(root)
        self.docker_socket = docker_socket

    # ---- reading ---------------------------------------------------------------------------------------

    def tools(self) -> tuple[dict[str, str | None], str | None]:
        rocm = read_rocm(self.source)
        return dict(rocm["tools"]), rocm["version"]

    def virtual(self) -> bool:
        return "hypervisor" in (self.source.text("/proc/cpuinfo", 8192) or "").split()

    def loaded(self, module: str) -> bool:
        return self.source.exists(f"/sys/module/{module}")

    def module_users(self) -> int:
        return self.source.number("/sys/module/amdgpu/refcnt") or 0

    def euid(self) -> int:
        return os.geteuid()

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def holders(self) -> list[GpuHolder]:
        return partition_holders.holders(self.source, self._inspect)

    def _inspect(self, container: str) -> Mapping[str, Any] | None:
        try:
            answer = DockerClient(self.docker_socket, timeout=5.0).container(container)
        except (NodeError, ValueError, TypeError):  # the last two: the answer is not an object
            return None
        return answer if answer and "Name" in answer else None

    # ---- acting ----------------------------------------------------------------------------------------

    def run(self, command: Command, timeout: float) -> CommandResult:
        name = command.argv[0]
        program = self.path(name) if name.startswith("/") else self._find(name) or name
        try:
            ended = run_program(
                Program([program, *command.argv[1:]], {**os.environ, "LC_ALL": "C"}, stdin=command.stdin),
                timeout,
            )
        except OSError as error:
            raise PartitionError(f"{name} does not start: {error.strerror}") from None
        if ended.code is None:
            raise PartitionError(f"{name} did not end within {timeout:.0f} s and was killed")
        return CommandResult(ended.code, ended.out, ended.err)

    def _find(self, name: str) -> str | None:
        """Return the path of a system program, even if PATH is without root's directories."""
        places = ("usr/sbin", "sbin", "usr/bin", "bin", "usr/local/bin")
        paths = (self.path(f"/{place}/{name}") for place in places)
        return next((path for path in paths if os.path.exists(path)), None)

    def write(self, step: SysfsWrite) -> None:
        fd = os.open(self.path(step.path), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, step.value.encode())
        finally:
            os.close(fd)

    # ---- services --------------------------------------------------------------------------------------

    def alive(self, service: Service) -> bool:
        if service.kind == "unit":
            return service.name in self._active([service.name])
        try:
            container = DockerClient(self.docker_socket).container(service.name)
        except NodeError:
            return False
        return container is not None and container["State"]["Status"] in ALIVE

    def monitors(self) -> list[Service]:
        return [Service("unit", name) for name in self._active(MONITOR_UNITS)]

    def _active(self, names: Sequence[str]) -> list[str]:
        try:
            ran = self.run(Command(("systemctl", "is-active", *names)), SERVICE_TIMEOUT)
        except PartitionError:  # no systemd
            return []
        states = ran.stdout.split()
        return [name for name, state in zip(names, states) if state in ("active", "activating", "reloading")]

    def stop(self, wanted: Sequence[Service]) -> list[str]:
        containers = [service for service in wanted if service.kind != "unit"]
        warnings: list[str] = []
        if containers:
            with ThreadPoolExecutor(max_workers=len(containers)) as pool:
                warnings += [text for text in pool.map(self._stop_container, containers) if text]
        units = [service.name for service in wanted if service.kind == "unit"]
        if units:
            try:
                ran = self.run(Command(("systemctl", "stop", *units)), SERVICE_TIMEOUT * len(units))
                if ran.code:
                    warnings.append(f"systemctl stop {' '.join(units)}: {ran.stderr.strip() or ran.code}")
            except PartitionError as error:
                warnings.append(str(error))
        return warnings

    def _stop_container(self, service: Service) -> str:
        try:
            return stop_gracefully(DockerClient(self.docker_socket), service.name, service.seconds)
        except NodeError as error:
            return f"{service.name}: {error}"

    def start(self, service: Service) -> None:
        if service.kind == "unit":
            ran = self.run(Command(("systemctl", "start", service.name)), SERVICE_TIMEOUT)
            if ran.code:
                raise PartitionError(ran.stderr.strip() or f"systemctl start exited with {ran.code}")
            return
        try:
            start_again(DockerClient(self.docker_socket), service.name)
        except NodeError as error:
            raise PartitionError(str(error)) from None

    def refresh_cdi(self, *, check: bool = False) -> tuple[list[str], list[str]]:
        specs = [path for path in CDI_SPECS if self.source.exists(path)]
        if specs and not self._find("amd-ctk"):
            return [], [
                f"{', '.join(specs)} lists the old devices, and amd-ctk is not installed to regenerate it."
            ]
        commands = [Command(("amd-ctk", "cdi", "generate", f"--output={path}")) for path in specs]
        warnings = []
        for command in () if check else commands:
            try:
                ran = self.run(command, SERVICE_TIMEOUT)
                if ran.code:
                    warnings.append(f"{command.text}: {(ran.stderr or ran.stdout).strip()[-200:]}")
            except PartitionError as error:
                warnings.append(str(error))
        return [command.text for command in commands], warnings

    # ---- the journal -----------------------------------------------------------------------------------

    def load_journal(self) -> Journal | None:
        return partition_journal.load(self.path(PARTITION_JOURNAL))

    def reserve_journal(self) -> None:
        self._journal(partition_journal.reserve, "has no disk space")

    def save_journal(self, journal: Journal) -> None:
        self._journal(lambda path: partition_journal.save(path, journal), "cannot be written")

    def drop_journal(self) -> None:
        self._journal(partition_journal.drop, "cannot be removed")

    def _journal(self, act: Callable[[str], None], what: str) -> None:
        try:
            act(self.path(PARTITION_JOURNAL))
        except OSError as error:
            raise PartitionError(f"{PARTITION_JOURNAL}, the journal, {what} ({error.strerror})") from None
