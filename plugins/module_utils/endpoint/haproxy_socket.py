# SPDX-License-Identifier: Apache-2.0
"""A client for the admin socket of a running HAProxy."""

from __future__ import annotations

import csv
import io
import ipaddress
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from ..common.module_main import NodeError
from ..service.endpoint import BALANCER

# Bits of srv_admin_state that the admin socket sets. Source: haproxy, include/haproxy/server-t.h (SRV_ADMF_*).
_MAINT, _DRAIN = 0x01, 0x08
STATES = ("ready", "drain", "maint")
# Fields of `show servers state`. Source: HAProxy's management guide.
BACKEND, SERVER, ADDRESS, _UP, _ADMIN, PORT = 1, 3, 4, 5, 6, 18
HEADER = (
    "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight "
    "srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state "
    "bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr "
    "srv_agent_addr srv_agent_port"
)
NEW = "1 - 1 - - 0 0 1 1 0 1 0 0 14 0 0 0 - 0 - 0 0 - - 0"
"""The row of a server that no check has looked at; its state is down."""

PAUSES = (0.05, 0.1, 0.2, 0.4)  # seconds, before HAProxy is asked again


class HaproxyUnavailable(NodeError):
    """HAProxy does not answer at the admin socket."""

    def __init__(self, message: str) -> None:
        super().__init__(message, **{"class": BALANCER})


@dataclass(frozen=True)
class ServerState:
    """A server's state in HAProxy; up: its checks succeed."""

    name: str
    state: str
    up: bool


@dataclass(frozen=True)
class ServerLoad:
    """Requests at a server, in progress and queued. check: the result of its last check."""

    running: int
    waiting: int
    check: str


class Haproxy:
    """The HAProxy behind an admin socket; every command opens a connection."""

    def __init__(self, path: str, timeout: float = 10.0) -> None:
        self.path = path
        self.timeout = timeout

    def ask(self, command: str) -> str:
        """Return one command's output. Raise HaproxyUnavailable if HAProxy does not answer."""
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
                raise HaproxyUnavailable(
                    f"HAProxy does not answer at {self.path} ({error.strerror or error}). Check "
                    "systemctl status instinct-balancer, and run site.yml again."
                ) from error

    def answer(self, command: str) -> str:
        """Return what a command prints; "" if HAProxy always hangs up, as one that a reload replaces may do once."""
        for pause in PAUSES:
            try:
                text = self.ask(command)
            except HaproxyUnavailable as error:
                if not isinstance(error.__cause__, (BrokenPipeError, ConnectionResetError)):
                    raise
            else:
                if text.strip():
                    return text
            time.sleep(pause)
        return ""

    def version(self) -> str:
        """Return the description in its configuration; "" if it does not answer."""
        try:
            lines = self.answer("show info").splitlines()
        except HaproxyUnavailable:
            return ""
        return next((line.partition(": ")[2] for line in lines if line.startswith("description:")), "")

    def table(self, command: str) -> str:
        """Return the output of a command that always prints something, at least a header.

        Raise HaproxyUnavailable if it does not.
        """
        text = self.answer(command)
        if not text:
            raise HaproxyUnavailable(
                f"HAProxy hung up at {self.path} without an answer to {command!r}: it was stopped or reloaded. "
                "Check systemctl status instinct-balancer, and run again."
            )
        return text

    def servers(self) -> dict[str, ServerState]:
        """Return all servers by "backend/server"."""
        found = {}
        for row in rows(self.table("show servers state")):
            admin = int(row[_ADMIN])
            state = "maint" if admin & _MAINT else "drain" if admin & _DRAIN else "ready"
            name = f"{row[BACKEND]}/{row[SERVER]}"
            found[name] = ServerState(name, state, row[_UP] == "2")
        return found

    def set_state(self, name: str, state: str) -> None:
        """Set a server to ready (in service), drain, or maint (drained, without checks). Raise NodeError if refused."""
        said = self.ask(f"set server {name} state {state}").strip()
        if said:
            raise NodeError(f"HAProxy refuses to set {name} to {state}: {said}")

    def loads(self) -> dict[str, ServerLoad]:
        """Return the requests at all servers, by "backend/server"."""
        text = self.table("show stat -1 4 -1").lstrip("# ")
        return {
            f"{row['pxname']}/{row['svname']}": ServerLoad(
                int(row["scur"] or 0),
                int(row["qcur"] or 0),
                " ".join(filter(None, (row.get("check_status"), row.get("last_chk"), row.get("last_agt")))),
            )
            for row in csv.DictReader(io.StringIO(text))
        }


def rows(text: str) -> list[list[str]]:
    """Return the rows of `show servers state`, which prints a version, a header, and one line per server."""
    lines = [line.split() for line in text.splitlines()[1:]]
    return [words for words in lines if len(words) > PORT and words[0] != "#"]


@dataclass(frozen=True)
class CarriedServer:
    """A server of a new configuration.

    before: the server of the former one whose state it has ("backend/server"); "" for a new one. drained: a new one
    gets no requests until that is changed.
    """

    address: str
    port: int
    before: str = ""
    drained: bool = False


def state_file(text: str, servers: Mapping[str, CarriedServer]) -> str:
    """Return the server-state-file that gives a new process the states in the output of `show servers state`.

    servers: those of its configuration, by "backend/server". HAProxy prefers the file's address and port over its
    configuration's (tested with 2.6), so each row gets those of the server. A new server is down until its checks
    succeed: without a row, HAProxy would send it requests before the first check.
    """
    known = {f"{row[BACKEND]}/{row[SERVER]}": row for row in rows(text)}
    lines = ["1", HEADER]
    for name, server in servers.items():
        row = list(known.get(server.before, ()))
        if not row:
            row = NEW.split()
            row[_ADMIN] = str(_DRAIN if server.drained else 0)
        row[BACKEND], _unused, row[SERVER] = name.partition("/")
        row[PORT] = str(server.port)
        if _is_address(server.address):
            row[ADDRESS] = server.address
        lines.append(" ".join(row))
    return "\n".join(lines) + "\n"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
