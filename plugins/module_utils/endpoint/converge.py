# SPDX-License-Identifier: Apache-2.0
"""Apply the load balancer's configuration on this host without dropping a connection.

Each configuration is a directory named by its hash; `current` points to the one in use. A change is therefore one
rename, and a configuration that HAProxy refuses is never in use.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.files import make_private, read_text, write_atomic
from ..common.hashing import spec_hash
from ..common.module_main import NodeError
from ..common.paths import BALANCER_DIR, BALANCER_STATE, ROUTER_DIR
from ..common.processes import Program, run_program
from ..leases.run_lock import run_lock
from ..service.balancer_config import carried_servers, configured_servers
from ..service.endpoint import OPERATOR, ROUTERS, busy
from ..serving.health import port_holder
from .drain import CHECK_SECONDS
from .haproxy_socket import CarriedServer, Haproxy, state_file
from .hung_streams import ADMIN_SOCKET, MASTER_SOCKET
from .installed import DrainRecord, same_servers
from .keepalived import KEEPALIVED, KeepalivedService
from .keepalived import SERVICE as ADDRESS_SERVICE

HAPROXY = "/usr/sbin/haproxy"
UNITS = "/etc/systemd/system"
SERVICE, AGENT_SERVICE = "instinct-balancer.service", "instinct-balancer-agent.service"
ROUTER_SERVICE = "instinct-balancer-router.service"
KEPT_CONFIGURATIONS = 1  # older ones would keep keys and certificates that were replaced
READ_BACK_SECONDS = 20.0
RUN_SECONDS = 60
ROUTER_SECONDS = 300.0  # time for requests in flight through a router to finish before it is stopped
SECRET = ("keys.map", "endpoint.pem", "instance.map")
UNIT = """\
# Written by instinct-fleet.
[Unit]
Description=Load balancer of instinct-fleet
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={haproxy} -Ws -S {master} -C {directory}/current -f haproxy.cfg -p {state}/haproxy.pid
ExecReload=/bin/kill -USR2 $MAINPID
KillMode=mixed
Restart=always
RestartSec=2
SuccessExitStatus=143
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
"""
# For programs that answer to the network and need nothing but their own configuration: they read root's files, and have
# none of root's powers.
SANDBOX = """\
CapabilityBoundingSet=
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={state}
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
InaccessiblePaths=-/etc/shadow -/etc/ssh -/etc/instinct-fleet/keys -/etc/instinct-fleet/secrets
UMask=0077
"""
AGENT_UNIT = """\
# Written by instinct-fleet.
[Unit]
Description=Load balancer of instinct-fleet: which instances have generated tokens
After=network-online.target
StartLimitIntervalSec=0

[Service]
ExecStart=/usr/bin/python3 {directory}/current/agent.py {directory}/current/balancer.json {state}/agent.pid
Restart=always
RestartSec=1
{sandbox}
[Install]
WantedBy=multi-user.target
"""
ROUTER_UNIT = """\
# Written by instinct-fleet.
[Unit]
Description=Load balancer of instinct-fleet: vllm-router for deployments that are routed by prefix
After=network-online.target
StartLimitIntervalSec=0

[Service]
ExecStart=/usr/bin/python3 {directory}/current/router.py {directory}/current/balancer.json {state}/router.pid {router}
Restart=always
RestartSec=1
{sandbox}
[Install]
WantedBy=multi-user.target
"""

Run = Callable[[Sequence[str]], "tuple[int, str]"]


def run(command: Sequence[str]) -> tuple[int, str]:
    """Run a program; return its exit code and its output. One that does not end in time is killed, with code 124."""
    done = run_program(Program(command, merged=True), RUN_SECONDS)
    if done.code is None:
        return 124, f"It did not end within {RUN_SECONDS} s."
    return done.code, done.out


@dataclass(frozen=True)
class BalancerPaths:
    """The paths on the host; tests use others."""

    directory: str = BALANCER_DIR
    state: str = BALANCER_STATE
    units: str = UNITS
    haproxy: str = HAPROXY
    router: str = f"{ROUTER_DIR}/bin/vllm-router"
    keepalived: str = KEEPALIVED

    @property
    def current(self) -> str:
        """Return the path of the configuration in use."""
        return os.path.join(self.directory, "current")

    def in_state(self, name: str) -> str:
        """Return the path of a file that must outlive a configuration."""
        return os.path.join(self.state, name)

    def service_files(self, routers: bool) -> dict[str, str]:
        """Return the services' unit files, by path."""
        values = {
            "directory": self.directory,
            "state": self.state,
            "haproxy": self.haproxy,
            # By this the agent reaches workers that carry on with their last requests after a reload.
            "master": f"{self.in_state(MASTER_SOCKET)},mode,600,level,admin",
            "router": self.router,
            "sandbox": SANDBOX.format(state=self.state),
        }
        found = {
            os.path.join(self.units, SERVICE): UNIT.format(**values),
            self.agent_unit: AGENT_UNIT.format(**values),
        }
        return {**found, self.router_unit: ROUTER_UNIT.format(**values)} if routers else found

    @property
    def agent_unit(self) -> str:
        """Return the path of the agent's unit file."""
        return os.path.join(self.units, AGENT_SERVICE)

    @property
    def router_unit(self) -> str:
        """Return the path of the routers' unit file, which exists only if a deployment uses a router."""
        return os.path.join(self.units, ROUTER_SERVICE)


def converge(
    files: Mapping[str, str], check: bool, paths: BalancerPaths = BalancerPaths(), run: Run = run
) -> dict[str, Any]:
    """Put these files in use, and have HAProxy run with them. Raise NodeError on failure."""
    with contextlib.nullcontext() if check else run_lock("balancer", 300):
        return _Change(files, paths, run).work(check)


class _Change:
    """The transition from the present files to the desired ones."""

    def __init__(self, files: Mapping[str, str], paths: BalancerPaths, run: Run) -> None:
        self.contents, self.paths, self.run = files, paths, run
        self.hash = spec_hash(files)
        self.config = json.loads(files["balancer.json"])
        self.routers = bool(self.config.get("routers"))
        self.haproxy = Haproxy(paths.in_state(ADMIN_SOCKET))
        self.keeper = KeepalivedService(
            paths.directory,
            paths.units,
            self._systemctl,
            lambda path: running(path, "keepalived"),
            paths.keepalived,
        )
        self.before = {name: read_text(os.path.join(paths.current, name)) for name in self._names()}
        self.former = json.loads(self.before.get("balancer.json") or "{}")
        self.record = DrainRecord(paths.in_state("out.json"))
        self.applied = read_text(paths.in_state("applied"))
        self.unconfirmed = self.applied != self.hash + "\n"
        # A run was killed: any service may still use former files, and systemd former unit files.
        self.interrupted = bool(self.former) and self.applied is None

    def _names(self) -> list[str]:
        there = os.listdir(self.paths.current) if os.path.isdir(self.paths.current) else []
        return sorted({*there, *self.contents})

    def work(self, check: bool) -> dict[str, Any]:
        """Apply the missing changes, or with `check` only report them."""
        paths = self.paths
        version = self.haproxy.version()
        services = {path: text for path, text in self._service_files().items() if read_text(path) != text}
        files = [name for name, old in self.before.items() if old != self.contents.get(name)]
        touched = list(self.before) if self.interrupted else files
        agent_stays = running(paths.in_state("agent.pid"), "agent.py") and "agent.py" not in touched
        agent_stays = agent_stays and paths.agent_unit not in services
        actions = [f"write {path}" for path in services]
        actions += [f"write {paths.current}/{name}" for name in files if name in self.contents]
        loads = bool(version != self.config["version"] or files or services or self.unconfirmed)
        if loads:
            actions.append(f"{'reload' if version else 'start'} {SERVICE}")
        if not agent_stays:
            actions.append(f"start {AGENT_SERVICE}")
        router_stays = self._router_stays(touched, services)
        if not router_stays:
            actions.append(f"{'start' if self.routers else 'remove'} {ROUTER_SERVICE}")
        address = self.keeper.step(self.contents, touched, self.keeper.unit in services)
        if address:
            actions.append(f"{address} {ADDRESS_SERVICE}")
        result = {"changed": bool(actions), "actions": actions, "diff": self._diff(files), "warnings": []}
        if not actions:
            return result
        if os.path.exists(paths.haproxy):
            self._validate()
        if not check:
            self._apply(version, services if loads else None, agent_stays, router_stays, address)
        return result

    def _service_files(self) -> dict[str, str]:
        """Return the desired unit files of all services, by path."""
        found = self.paths.service_files(self.routers)
        return (
            {**found, self.keeper.unit: self.keeper.unit_text} if self.keeper.wanted(self.contents) else found
        )

    def _router_stays(self, files: Sequence[str], services: Mapping[str, str]) -> bool:
        """Return whether the routers need no change: they run and follow balancer.json, or there are none."""
        if not self.routers:
            return not os.path.exists(self.paths.router_unit)
        runs = running(self.paths.in_state("router.pid"), "router.py")
        return runs and "router.py" not in files and self.paths.router_unit not in services

    def _diff(self, files: Sequence[str]) -> list[dict[str, str]]:
        found = []
        for name in files:
            old, new = self.before[name] or "", self.contents.get(name, "")
            if name in SECRET:
                old, new = "(secret, before)\n" if old else "", "(secret, after)\n" if new else ""
            path = os.path.join(self.paths.current, name)
            found.append({"before_header": path, "after_header": path, "before": old, "after": new})
        return found

    def _validate(self) -> None:
        """Have HAProxy check the files. Raise NodeError with its messages if it refuses them."""
        with tempfile.TemporaryDirectory(prefix="instinct-balancer-") as directory:
            _write_all(directory, self.contents)
            self.keeper.validate(directory, self.run)
            code, said = self.run([self.paths.haproxy, "-c", "-C", directory, "-f", "haproxy.cfg"])
        if code:
            lines = [line for line in said.splitlines() if "ALERT" in line] or said.splitlines()
            raise NodeError(
                f"HAProxy rejects the configuration; the running one stays in use. It reports: {' | '.join(lines[:6])}"
            )

    def _apply(
        self,
        version: str,
        services: Mapping[str, str] | None,
        agent_stays: bool,
        router_stays: bool,
        address: str,
    ) -> None:
        """Carry out what is missing. services: unit files to write before HAProxy is loaded; None: it stays."""
        paths = self.paths
        make_private(paths.directory)
        make_private(paths.state)
        if not version:
            self._check_ports()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(paths.in_state("applied"))
        expected = self._expected(version)
        if services is not None:
            self._await_checks(self._unchecked(version))
            self._load(version, services)
        if not agent_stays:
            self._systemctl("restart", AGENT_SERVICE)
        if not router_stays:
            self._change_router()
        if address:
            self.keeper.do(address)
        self._carry_drains()
        self._await_checks(expected)
        write_atomic(paths.in_state("applied"), self.hash + "\n", 0o600)
        self._tidy()

    def _load(self, version: str, services: Mapping[str, str]) -> None:
        """Have HAProxy run with the wanted files, or with those before where it does not. Raise NodeError then."""
        paths = self.paths
        self._keep_states(version, self._servers())
        before = os.readlink(paths.current) if os.path.islink(paths.current) else ""
        self._swap(self._store())
        for path, text in services.items():
            write_atomic(path, text, 0o644)
        if services or self.interrupted:
            self._systemctl("daemon-reload")
            self._systemctl("enable", *map(os.path.basename, self._service_files()))
        try:
            self._systemctl("reload" if version else "start", SERVICE)
            self._read_back()
        except NodeError:
            if before and version:
                self._keep_states(version, same_servers(self.former))
                self._swap(before)
                if self.applied:
                    write_atomic(paths.in_state("applied"), self.applied, 0o600)
                self._systemctl("reload", SERVICE)
            raise

    def _change_router(self) -> None:
        """Restart or stop the routers once they have no requests; HAProxy works without them in the meantime."""
        names = [f"{name}.router/router" for name in self.config["routers"]] if self.routers else []
        for name in names:
            self.haproxy.set_state(name, "maint")
        end = time.monotonic() + ROUTER_SECONDS
        while any(map(busy, ROUTERS)) and time.monotonic() < end:
            time.sleep(0.2)
        if self.routers:
            self._systemctl("restart", ROUTER_SERVICE)
        else:
            self._systemctl("disable", "--now", ROUTER_SERVICE)
            os.unlink(self.paths.router_unit)
            self._systemctl("daemon-reload")
        for name in names:
            self.haproxy.set_state(name, "ready")

    def _carry_drains(self) -> None:
        """Write the record of drained servers for this configuration."""
        continued, drained = self._continued(), self._drained_instances()
        self.record.carry(
            {
                name: continued.get(name) or drained.get((server["host"], server["instance"]), "")
                for name, server in configured_servers(self.config).items()
            }
        )

    def _servers(self) -> dict[str, CarriedServer]:
        """Return the configured servers, with the ones that they continue.

        A new server of an instance that the operator has drained is drained as well.
        """
        continued, drained = self._continued(), self._drained_instances()
        return {
            name: CarriedServer(
                str(server["address"]),
                int(server["port"]),
                continued.get(name, ""),
                (server["host"], server["instance"]) in drained,
            )
            for name, server in configured_servers(self.config).items()
        }

    def _continued(self) -> dict[str, str]:
        """Return the former server that each one continues; without the former configuration that of the same name."""
        if not self.former:
            return {name: name for name in configured_servers(self.config)}
        return carried_servers(self.former, self.config)

    def _drained_instances(self) -> dict[tuple[str, str], str]:
        """Return the instances (host, name) that the operator has drained, each with one of its former servers.

        They are also known by the names that their hosts are about to get.
        """
        record, config = self.record.read(), configured_servers(self.config)
        found = {
            (server["host"], server["instance"]): name
            for name, server in configured_servers(self.former).items()
            if record.get(name, {}).get("by") == OPERATOR
        }
        theirs = set(found.values())
        renamed = {
            (config[name]["host"], config[name]["instance"]): former
            for name, former in self._continued().items()
            if former in theirs
        }
        return renamed | found

    def _expected(self, version: str) -> set[str]:
        """Return the new servers whose instances run already: a check is enough to have them in service.

        Another server may be up where the instance listens, as when a deployment gets another name.
        """
        up: dict[tuple[str, int], set[str]] = {}
        now = self.haproxy.servers() if version else {}
        for name, server in configured_servers(self.former).items():
            if name in now and now[name].up:
                up.setdefault((server["address"], int(server["port"])), set()).update(server["models"])
        continued = self._continued() if version else {}
        return {
            name
            for name, server in configured_servers(self.config).items()
            if name not in continued
            and (
                not server.get("coming")
                or up.get((server["address"], int(server["port"])), set()).intersection(server["models"][:1])
            )
        }

    def _unchecked(self, version: str) -> set[str]:
        """Return the present servers that may have started just now, and whose state others continue."""
        now, wanted = self.haproxy.servers() if version else {}, configured_servers(self.config)
        return {
            former
            for name, former in self._continued().items()
            if former in now and now[former].state == "ready" and not wanted[name].get("coming")
        }

    def _await_checks(self, expected: Collection[str]) -> None:
        """Wait until these servers are up, so that the run's next step counts on them; some may not come."""
        end = time.monotonic() + CHECK_SECONDS
        while expected and time.monotonic() < end:
            now = self.haproxy.servers()
            if all(name in now and now[name].up for name in expected):
                return
            time.sleep(0.2)

    def _check_ports(self) -> None:
        host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(
            self.config["listen"], self.config["listen"].strip("[]")
        )
        holder = port_holder(host, self.config["port"])
        if holder:
            raise NodeError(
                f"Port {self.config['port']} is taken by {holder}. Stop it, or set another load_balancer_port."
            )

    def _keep_states(self, version: str, servers: Mapping[str, CarriedServer]) -> None:
        """Save for the new process which servers are up and which are drained."""
        path = self.paths.in_state("servers")
        text = self.haproxy.table("show servers state") if version else read_text(path)
        write_atomic(path, state_file(text or "", servers), 0o600)

    def _store(self) -> str:
        """Return the name of a directory with the files: the present one, or a new one.

        What is there stays, as HAProxy may be reading it: it exits if its directory is missing during a reload.
        """
        if self.before == self.contents and os.path.islink(self.paths.current):
            return os.readlink(self.paths.current)
        path = tempfile.mkdtemp(prefix=f"{self.hash[:12]}-", dir=self.paths.directory)
        _write_all(path, self.contents)
        return os.path.basename(path)

    def _swap(self, name: str) -> None:
        link = os.path.join(self.paths.directory, ".current")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(link)
        os.symlink(name, link)
        os.replace(link, self.paths.current)

    def _systemctl(self, *words: str) -> None:
        code, said = self.run(["systemctl", *words])
        if code:
            last = (said.strip().splitlines() or [f"exit code {code}"])[-1]
            raise NodeError(f"systemctl {' '.join(words)} failed: {last} See journalctl -u {SERVICE}.")

    def _read_back(self) -> None:
        end = time.monotonic() + READ_BACK_SECONDS
        while self.haproxy.version() != self.config["version"]:
            if time.monotonic() > end:
                raise NodeError(
                    f"HAProxy does not run with the new configuration after {READ_BACK_SECONDS:.0f} s. "
                    f"journalctl -u {SERVICE} shows why; the previous configuration stays in use."
                )
            time.sleep(0.1)

    def _tidy(self) -> None:
        """Remove old configurations."""
        directory, used = self.paths.directory, os.readlink(self.paths.current)
        old = [
            entry
            for entry in os.scandir(directory)
            if entry.is_dir(follow_symlinks=False) and entry.name != used
        ]
        old.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
        for entry in old[KEPT_CONFIGURATIONS - 1 :]:
            shutil.rmtree(entry.path, ignore_errors=True)


def _write_all(directory: str, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        write_atomic(os.path.join(directory, name), text, 0o600)


def running(pid_file: str, word: str) -> bool:
    """Return whether the process of a pid file runs with `word` in its command line."""
    try:
        pid = int(read_text(pid_file) or "")
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            return word.encode() in stream.read()
    except (OSError, ValueError):
        return False
