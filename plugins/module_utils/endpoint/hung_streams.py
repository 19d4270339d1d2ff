# SPDX-License-Identifier: Apache-2.0
"""Close the streams of an instance that hangs, in all processes of the HAProxy on this host.

HAProxy has no directive for this that fits: `on-marked-down shutdown-sessions` closes streams whenever a check fails,
also those of an instance that stalls for a moment. docs/adr/hung-streams.md explains the choice.
"""

from __future__ import annotations

import os

from .haproxy_socket import ADDRESS, BACKEND, PORT, SERVER, Haproxy, HaproxyUnavailable, rows

ADMIN_SOCKET, MASTER_SOCKET = "admin.sock", "master.sock"
"""HAProxy's sockets in the balancer's state directory: of the present worker, and of the master process."""
CLOSED_TABLE = "agent.closed"
"""The table of haproxy.cfg with the servers whose streams have just been closed: 502 becomes 503 for them."""
ANSWER_SECONDS = 5.0


def close_streams(state: str, name: str) -> int | None:
    """Close all streams to the instance of a server ("backend/server"); return how many there were.

    Return None, and close nothing, if HAProxy does not know the server, or has it in service: its own checks have
    answers then. state: the balancer's state directory. Raise HaproxyUnavailable if HAProxy does not answer.
    """
    present = Haproxy(os.path.join(state, ADMIN_SOCKET), ANSWER_SECONDS)
    known = present.servers().get(name)
    if known is None or known.up:
        return None
    place = _places(present)[name]
    loads = present.loads()
    closed = 0
    for server in _servers_at(present, place):
        closed += loads[server].running if server in loads else 0
        _announce(present, server)
        present.ask(f"shutdown sessions server {server}")
    return closed + sum(_close_former(process, place) for process in former_workers(state))


class FormerWorker(Haproxy):
    """A worker that carries on with its last requests after a reload: only the master process reaches it."""

    def __init__(self, master: str, pid: str) -> None:
        super().__init__(master, ANSWER_SECONDS)
        self.pid = pid

    def ask(self, command: str) -> str:
        """Return one command's output. Raise HaproxyUnavailable if the master does not answer."""
        return super().ask(f"@!{self.pid} {command};quit")  # otherwise the master waits for more commands


def former_workers(state: str) -> list[FormerWorker]:
    """Return the workers of former configurations.

    A master process that was started without its socket, by an older release, reaches none until HAProxy is restarted.
    """
    path = os.path.join(state, MASTER_SOCKET)
    if not os.path.exists(path):
        return []
    listed = Haproxy(path, ANSWER_SECONDS).ask("show proc;quit").partition("# old workers\n")[2]
    lines = [line.split() for line in listed.splitlines()]
    return [FormerWorker(path, words[0]) for words in lines if words[1:2] == ["worker"]]


def _close_former(process: Haproxy, place: tuple[str, str]) -> int:
    """Close the streams to a place in a former worker; return how many there were.

    Its proxies are stopped, so that it refuses commands about servers. It accepts no new connections, whose streams
    could have the id of one that has just ended.
    """
    try:
        servers = _servers_at(process, place)
        for server in servers:
            _announce(process, server)
        streams = [line.split() for line in process.ask("show sess").splitlines()]
        ids = [words[0].rstrip(":") for words in streams if _server_of(words) in servers]
        for stream in ids:
            process.ask(f"shutdown session {stream}")
    except HaproxyUnavailable:
        return 0  # it has just ended, and its streams with it
    return len(ids)


def _servers_at(process: Haproxy, place: tuple[str, str]) -> list[str]:
    """Return all servers at an address: the one that is checked, and those of other backends that track it."""
    return [name for name, where in _places(process).items() if where == place]


def _places(process: Haproxy) -> dict[str, tuple[str, str]]:
    """Return address and port of all servers, by "backend/server"."""
    lines = rows(process.table("show servers state"))
    return {f"{row[BACKEND]}/{row[SERVER]}": (row[ADDRESS], row[PORT]) for row in lines}


def _server_of(words: list[str]) -> str:
    """Return "backend/server" of a line of `show sess`: 0x5581…: proto=tcpv4 … be=llama srv=n1.llama-0:8000 …"""
    found = dict(word.split("=", 1) for word in words if "=" in word)
    return f"{found.get('be', '')}/{found.get('srv', '')}"


def _announce(process: Haproxy, server: str) -> None:
    process.ask(f"set table {CLOSED_TABLE} key {server} data.gpc0 1")
