# SPDX-License-Identifier: Apache-2.0
"""Speaks to a running HAProxy through its admin socket."""

from __future__ import annotations

import csv
import io
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from ..common.module_main import NodeError

# Bits of srv_admin_state that the admin socket sets. Source: haproxy, include/haproxy/server-t.h (SRV_ADMF_*).
_MAINT, _DRAIN = 0x01, 0x08
STATES = ("ready", "drain", "maint")
# Fields of `show servers state`. Source: HAProxy's management guide.
_BACKEND, _NAME, _ADDRESS, _UP, _ADMIN, _PORT = 1, 3, 4, 5, 6, 18


class NoHaproxy(NodeError):
    """Nobody answers at the admin socket."""


@dataclass(frozen=True)
class ServerState:
    """A server as HAProxy has it; up: its checks succeed."""

    name: str
    state: str
    up: bool


@dataclass(frozen=True)
class Load:
    """Requests of a server: being worked on, and waiting for it. check: what its last check said."""

    running: int
    waiting: int
    check: str


class Haproxy:
    """The HAProxy behind an admin socket; every command is a connection of its own."""

    def __init__(self, path: str, timeout: float = 10.0) -> None:
        self.path = path
        self.timeout = timeout

    def ask(self, command: str) -> str:
        """One command's output. Raises NoHaproxy."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(self.timeout)
            try:
                link.connect(self.path)
                link.sendall(f"{command}\n".encode())
                parts: list[bytes] = []
                while True:
                    part = link.recv(65536)
                    if not part:
                        return b"".join(parts).decode("utf-8", "replace")
                    parts.append(part)
            except OSError as error:
                raise NoHaproxy(
                    f"HAProxy does not answer at {self.path} ({error.strerror or error}). Look at "
                    "systemctl status instinct-balancer, and run site.yml again."
                ) from error

    def version(self) -> str:
        """The description that its configuration has; "" when it does not answer."""
        try:
            lines = self.ask("show info").splitlines()
        except NoHaproxy:
            return ""
        return next((line.partition(": ")[2] for line in lines if line.startswith("description:")), "")

    def table(self, command: str) -> str:
        """The output of a command that always says something, be it a head. Raises NoHaproxy."""
        text = self.ask(command)
        if not text.strip():
            raise NoHaproxy(
                f"HAProxy hung up at {self.path} without an answer to {command!r}: it was stopped or reloaded. "
                "Look at systemctl status instinct-balancer, and run again."
            )
        return text

    def servers(self) -> dict[str, ServerState]:
        """All servers, by "backend/server"."""
        found = {}
        for row in rows(self.table("show servers state")):
            admin = int(row[_ADMIN])
            state = "maint" if admin & _MAINT else "drain" if admin & _DRAIN else "ready"
            name = f"{row[_BACKEND]}/{row[_NAME]}"
            found[name] = ServerState(name, state, row[_UP] == "2")
        return found

    def set_state(self, name: str, state: str) -> None:
        """Take a server in (ready), out (drain), or out without checks (maint). Raises NodeError."""
        said = self.ask(f"set server {name} state {state}").strip()
        if said:
            raise NodeError(f"HAProxy refuses to set {name} to {state}: {said}")

    def loads(self) -> dict[str, Load]:
        """Requests at all servers, by "backend/server"."""
        text = self.table("show stat -1 4 -1").lstrip("# ")
        return {
            f"{row['pxname']}/{row['svname']}": Load(
                int(row["scur"] or 0),
                int(row["qcur"] or 0),
                " ".join(filter(None, (row.get("check_status"), row.get("last_chk"), row.get("last_agt")))),
            )
            for row in csv.DictReader(io.StringIO(text))
        }


def rows(text: str) -> list[list[str]]:
    """The rows of `show servers state`: a version, a head, and one line per server."""
    lines = [line.split() for line in text.splitlines()[1:]]
    return [words for words in lines if len(words) > _PORT and words[0] != "#"]


def state_file(text: str, places: Mapping[str, tuple[str, int]]) -> str:
    """What a new process is to take over of `show servers state`, as its server-state-file.

    HAProxy believes the file's address and port over its configuration's (tried with 2.6), so each row gets those of
    `places` ("backend/server": address, port), and servers that are no longer there are left out.
    """
    lines = text.splitlines()[:2]
    for row in rows(text):
        name = f"{row[_BACKEND]}/{row[_NAME]}"
        if name not in places:
            continue
        address, port = places[name]
        row[_PORT] = str(port)
        if _is_address(address):
            row[_ADDRESS] = address
        lines.append(" ".join(row))
    return "\n".join(lines) + "\n"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
