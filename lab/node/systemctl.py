#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A small systemctl for a node without systemd: services as processes, in cgroups of their own name.

It supports start, stop, restart, reload, enable, disable (also with --now), is-active, is-enabled, show, cat,
daemon-reload and list-units of services with one ExecStart. start.sh calls `boot-early` for the operator's enabled
services that are ordered before Docker, and `boot` for the `w` lines of tmpfiles.d and the other services. Output and
exit codes are systemctl's.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

DIRECTORIES = [
    Path(d)
    for d in ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
]
WANTS = DIRECTORIES[0] / "multi-user.target.wants"
RUN = Path("/run/units")
LOGS = Path("/var/log")
TMPFILES = Path("/etc/tmpfiles.d")
OPERATORS = Path("/etc")  # enabled units from here start at a boot; those of packages do not
# Started by start.sh, not from their unit files, which need systemd.
OWN = {"docker.service": ("dockerd", "dockerd"), "ssh.service": ("sshd", "/usr/sbin/sshd -D")}
STOP_SECONDS = 10
# If the cgroup cannot be entered, only the service's name in /proc/PID/cgroup is lost.
_ENTER = 'echo $$ 2> /dev/null > "$0"; exec "$@"'


def full(name: str) -> str:
    return name if "." in name else f"{name}.service"


class Unit:
    """A service: its file, and its process."""

    def __init__(self, name: str) -> None:
        self.name = full(name)
        self.path = next((d / self.name for d in DIRECTORIES if (d / self.name).exists()), None)
        self.values: dict[str, str] = {}
        own = [self.path] if self.path else []
        drop_ins = [path for d in DIRECTORIES for path in sorted((d / f"{self.name}.d").glob("*.conf"))]
        for line in (line for path in (*drop_ins, *own) for line in path.read_text().splitlines()):
            key, sign, value = line.partition("=")
            if sign and not line.startswith(("#", ";")):
                self.values.setdefault(key.strip(), value.strip())
        self.record = RUN / self.name

    @property
    def oneshot(self) -> bool:
        return self.values.get("Type") == "oneshot"

    def pid(self) -> int:
        """Return the main process, 0 if none runs."""
        if self.name in OWN and not self.record.exists():
            found = subprocess.run(
                ["pgrep", "-o", "-x", OWN[self.name][0]], capture_output=True, text=True, check=False
            )
            return int(found.stdout or 0)
        try:
            pid = int(self.record.read_text())
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError):
            return 0
        return 0 if state == "Z" else pid

    @property
    def state(self) -> tuple[str, str]:
        """Return ActiveState and SubState."""
        if self.pid():
            return "active", "running"
        last = self.record.read_text() if self.record.exists() else ""
        if last == "exited":
            return "active", "exited"
        return ("failed", "failed") if last == "failed" else ("inactive", "dead")

    @property
    def enabled(self) -> bool:
        return os.path.lexists(WANTS / self.name)

    def start(self) -> int:
        if self.path is None and self.name not in OWN:
            print(f"Failed to start {self.name}: Unit {self.name} not found.", file=sys.stderr)
            return 5
        if self.state[0] == "active":
            return 0
        RUN.mkdir(exist_ok=True)
        text = OWN[self.name][1] if self.name in OWN else self.values.get("ExecStart", "").lstrip("-@+!")
        environment = dict(os.environ)
        for word in shlex.split(self.values.get("Environment", "")):
            key, _, value = word.partition("=")
            environment[key] = value
        with (LOGS / f"{self.name}.log").open("ab") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _ENTER, str(self.cgroup() / "cgroup.procs"), *shlex.split(text)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )
        if self.oneshot:
            failed = process.wait() != 0
            remains = self.values.get("RemainAfterExit") in ("yes", "true", "1")
            self.record.write_text("failed" if failed else "exited" if remains else "")
            if failed:
                print(
                    f"Job for {self.name} failed because the control process exited with error code.",
                    file=sys.stderr,
                )
            return int(failed)
        self.record.write_text(str(process.pid))
        return 0

    def cgroup(self) -> Path:
        """Return the cgroup in which systemd would put the service, below the node's own cgroup."""
        lines = [line.split(":", 2) for line in Path("/proc/1/cgroup").read_text().splitlines()]
        named = next((path for _, names, path in lines if names == "name=systemd"), None)
        unified = next((path for number, _, path in lines if number == "0"), "")
        base = f"/sys/fs/cgroup{unified}" if named is None else f"/sys/fs/cgroup/systemd{named}"
        directory = Path(f"{base}/system.slice/{self.name}")
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
        return directory

    def stop(self) -> int:
        if self.path is None and self.name not in OWN:
            print(f"Failed to stop {self.name}: Unit {self.name} not loaded.", file=sys.stderr)
            return 5
        pid = self.pid()
        if pid:
            limit = self.values.get("TimeoutStopSec", "")
            end = time.monotonic() + (int(limit) if limit.isdecimal() else STOP_SECONDS)
            os.kill(pid, signal.Signals[self.values.get("KillSignal", "SIGTERM")])
            while self.pid() == pid:
                if time.monotonic() > end:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.05)
        RUN.mkdir(exist_ok=True)
        self.record.unlink(missing_ok=True)
        return 0

    def reload(self) -> int:
        pid = self.pid()
        if pid:
            os.kill(pid, signal.SIGHUP)
        return 0 if pid else 1

    def enable(self, on: bool) -> int:
        if self.path is None:
            verb = "enable" if on else "disable"
            print(f"Failed to {verb} unit: Unit file {self.name} does not exist.", file=sys.stderr)
            return 1
        WANTS.mkdir(parents=True, exist_ok=True)
        if on and not self.enabled:
            (WANTS / self.name).symlink_to(self.path)
        elif not on:
            (WANTS / self.name).unlink(missing_ok=True)
        return 0

    def show(self) -> dict[str, str]:
        active, sub = self.state
        found = self.path is not None or self.name in OWN
        return {
            "Id": self.name,
            "Names": self.name,
            "Description": self.values.get("Description", self.name),
            "LoadState": "loaded" if found else "not-found",
            "ActiveState": active,
            "SubState": sub,
            "MainPID": str(self.pid()),
            "Type": self.values.get("Type", "simple"),
            "FragmentPath": str(self.path or ""),
            "UnitFileState": ("enabled" if self.enabled else "disabled") if self.path else "",
            "Result": "exit-code" if active == "failed" else "success",
            "NeedDaemonReload": "no",
        }


def enabled(early: bool) -> list[Unit]:
    """Return the services that the operator enabled: those ordered before Docker, or the others."""
    links = sorted(WANTS.glob("*.service")) if WANTS.is_dir() else []
    found = [Unit(link.name) for link in links if link.resolve().is_relative_to(OPERATORS)]
    return [unit for unit in found if ("docker.service" in unit.values.get("Before", "").split()) is early]


def boot(early: bool) -> int:
    """Do the part of a boot that follows the mounts: apply settings, and start the operator's enabled services."""
    for path in [] if early else sorted(TMPFILES.glob("*.conf")):
        for line in path.read_text().splitlines():
            words = line.split(None, 6)
            if len(words) == 7 and words[0] in ("w", "w-", "w+"):
                for target in Path("/").glob(words[1].lstrip("/")):
                    target.write_text(words[6] + "\n")
    for unit in enabled(early):
        unit.start()
    return 0


def units(patterns: list[str]) -> list[str]:
    """Return the running services, or the named ones."""
    names = (
        {path.name for path in RUN.glob("*.service")} | set(OWN)
        if not patterns
        else {full(p) for p in patterns}
    )
    return sorted(names)


def main(argv: list[str]) -> int:
    options = [word for word in argv if word.startswith("-")]
    words, skip = [], False
    properties: list[str] = []
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        if skip:
            skip = False
        elif word in ("-p", "--property", "-t", "--type"):
            properties += following.split(",") if word in ("-p", "--property") else []
            skip = True
        elif word.startswith(("--property=", "-p")) and word != "-p":
            properties += word.removeprefix("--property=").removeprefix("-p").split(",")
        elif not word.startswith("-"):
            words.append(word)
    command, names = (words[0], words[1:]) if words else ("list-units", [])
    found = [Unit(name) for name in names]
    quiet, now = "-q" in options or "--quiet" in options, "--now" in options
    if command in ("daemon-reload", "daemon-reexec", "reset-failed"):
        return 0
    if command in ("boot", "boot-early"):
        return boot(command == "boot-early")
    if command in ("is-active", "is-enabled"):
        states = [
            u.state[0] if command == "is-active" else "enabled" if u.enabled else "disabled" for u in found
        ]
        if not quiet:
            print("\n".join(states))
        good = any(state in ("active", "enabled") for state in states)
        return 0 if good else 3 if command == "is-active" else 1
    if command == "show":
        for unit in found:
            values = unit.show()
            for key in properties or values:
                print(values.get(key, "") if "--value" in options else f"{key}={values.get(key, '')}")
        return 0
    if command == "cat":
        for unit in found:
            if unit.path:
                print(f"# {unit.path}\n{unit.path.read_text()}", end="")
        return 0 if all(unit.path for unit in found) else 1
    if command == "list-units":
        for unit in map(Unit, units(names)):
            active, sub = unit.state
            print(f"  {unit.name} loaded {active} {sub} {unit.values.get('Description', unit.name)}")
        return 0
    actions: dict[str, list[Callable[[Unit], int]]] = {
        "start": [Unit.start],
        "stop": [Unit.stop],
        "restart": [Unit.stop, Unit.start],
        "reload": [Unit.reload],
        "try-restart": [Unit.stop, Unit.start],
        "enable": [lambda u: u.enable(True), *([Unit.start] if now else [])],
        "disable": [lambda u: u.enable(False), *([Unit.stop] if now else [])],
    }
    if command not in actions:
        print(f"Unknown command verb {command}.", file=sys.stderr)
        return 1
    if os.geteuid() != 0:
        print("Failed to do this: Interactive authentication required.", file=sys.stderr)
        return 1
    code = 0
    for unit in found:
        for action in actions[command]:
            code = code or action(unit)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
