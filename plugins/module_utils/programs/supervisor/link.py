# SPDX-License-Identifier: Apache-2.0
"""What the supervisors of one engine share: group membership, connections and the message format.

A message is a JSON object on one line; its key `t` is the message type. Where the nodes have the instances' key, rank 0
and another rank first prove to each other that they have it, and send nothing before that.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
KEY_FILE = "/instinct-keys/instances"
"""The node's key, as credentials/instance_key.py writes it."""
LINE_LIMIT = 16384
"""The longest message, in bytes."""
Json = dict[str, Any]


@dataclass(frozen=True)
class HeartbeatTimes:
    """Seconds. beat: between two heartbeats; silent: without a heartbeat until a rank counts as lost; hello: for a
    new connection to identify itself; retry: between two attempts to connect.
    """

    beat: float = 3.0
    silent: float = 15.0
    hello: float = 5.0
    retry: float = 1.0


@dataclass(frozen=True)
class Membership:
    """This rank's membership. address: where rank 0 listens; hosts: by rank; engine: the name that all ranks share."""

    address: tuple[str, int]
    rank: int
    hosts: tuple[str, ...]
    engine: str

    def named(self, rank: int) -> str:
        """Return the host and number of a rank, for messages."""
        return f"{self.hosts[rank]} (rank {rank})"


@dataclass
class PeerConnection:
    """A connection. rank: None until the peer has identified itself; nonce: what it has to prove the key with, "" once
    it has, and where there is none.
    """

    sock: socket.socket
    peer: str
    rank: int | None = None
    nonce: str = ""
    gave_up: str = ""
    buffer: bytes = b""
    heard: float = field(default_factory=time.monotonic)

    @property
    def source(self) -> str:
        """Return the peer's address without its port."""
        return self.peer.rpartition(":")[0]


def read_key() -> bytes:
    """Return the instances' key, b"" without one. It is read each time: it may be replaced at any time."""
    with contextlib.suppress(OSError), open(KEY_FILE, "rb") as file:
        return file.read(4096).strip().partition(b"=")[2]
    return b""


def proof(key: bytes, nonce: str, message: Json) -> str:
    """Return what only a holder of the key can compute for a message, and only in answer to this nonce."""
    text = json.dumps({**message, "nonce_of_peer": nonce, "mac": ""}, sort_keys=True)
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def is_proven(key: bytes, nonce: str, message: Json) -> bool:
    """Return whether a message has a valid proof."""
    return hmac.compare_digest(proof(key, nonce, message), str(message.get("mac")))


def parse_address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT or [v6]:PORT.

    Raise ValueError for anything else.
    """
    host, _unused, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{text!r} is not ADDRESS:PORT")
    return host.strip("[]"), int(port)


def resolve(host: str, port: int) -> Sequence[Any]:
    """Return the first address of a name, in the form of getaddrinfo.

    Raise OSError if the name has none.
    """
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]


def parse_message(line: bytes) -> Json | None:
    """Parse a message; None if it is malformed."""
    if len(line) > LINE_LIMIT:
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and isinstance(message.get("t"), str) else None
