# SPDX-License-Identifier: Apache-2.0
"""What supervisors of one engine know of one another: their places, a connection, the form of a message.

Messages are JSON objects, a line each; `t` says what one is.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
LINE_LIMIT = 16384
"""Bytes of a message."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Pulse:
    """Seconds. beat: between two signs of life; silent: without one, until a rank counts as lost; hello: to say
    who one is; retry: between two attempts to connect.
    """

    beat: float = 3.0
    silent: float = 15.0
    hello: float = 5.0
    retry: float = 1.0


@dataclass(frozen=True)
class Membership:
    """This rank's place: where rank 0 listens, the hosts by rank, and the engine's name, which all share."""

    address: tuple[str, int]
    rank: int
    hosts: tuple[str, ...]
    engine: str

    def named(self, rank: int) -> str:
        """A rank for people."""
        return f"{self.hosts[rank]} (rank {rank})"


@dataclass
class Link:
    """A connection. rank: None until it said who it is."""

    sock: socket.socket
    peer: str
    rank: int | None = None
    gave_up: str = ""
    buffer: bytes = b""
    heard: float = field(default_factory=time.monotonic)


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, [v6]:PORT. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{text!r} is not ADDRESS:PORT")
    return host.strip("[]"), int(port)


def resolve(host: str, port: int) -> Sequence[Any]:
    """The first of a name's addresses, as getaddrinfo has it. Raises OSError."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]


def parse_message(line: bytes) -> Json | None:
    """A message; None for anything else."""
    if len(line) > LINE_LIMIT:
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and isinstance(message.get("t"), str) else None
