# SPDX-License-Identifier: Apache-2.0
"""Hashes of pieces: computed by members that have a blob, while they check it, and asked for by those that do not.

Members ask each other on a separate port. Both sides prove that they know the key of the run; the key is not sent.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import socket
import socketserver
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .swarm_job import SwarmMember

SECONDS = 10.0
_CONNECT_SECONDS = 3.0
LARGEST_ANSWER = 256 * 2**20
_PART = 2**20


@dataclass
class CheckedHashes:
    """What hash_blob() found: the SHA-256 of the content, its size, and the SHA-1 of each piece."""

    sha256: str
    size: int
    pieces: bytes


def hash_blob(path: str, piece_size: int, stop: threading.Event) -> CheckedHashes:
    """Hash a file in one pass; zeros fill its last piece. Raise OSError if it cannot be read."""
    whole, pieces, size = hashlib.sha256(), [], 0
    piece, left = hashlib.sha1(usedforsecurity=False), piece_size
    with open(path, "rb", buffering=0) as file:
        while not stop.is_set():
            part = file.read(min(_PART, left))
            if not part:
                break
            whole.update(part)
            piece.update(part)
            size, left = size + len(part), left - len(part)
            if not left:
                pieces.append(piece.digest())
                piece, left = hashlib.sha1(usedforsecurity=False), piece_size
    if left < piece_size:
        piece.update(bytes(left))
        pieces.append(piece.digest())
    return CheckedHashes(whole.hexdigest(), size, b"".join(pieces))


@dataclass
class MemberAnswers:
    """What a member tells others: hashes of pieces, whether it still hashes, how far it is, and who is slow."""

    hashes: dict[str, bytes] = field(default_factory=dict)
    busy: bool = False
    complete: bool = False
    progress: float = 0.0
    slow: tuple[str, ...] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, wanted: object) -> dict[str, Any]:
        """Return what a member who asks gets."""
        with self.lock:
            names = [name for name in wanted if name in self.hashes] if isinstance(wanted, list) else []
            return {
                "hashes": {name: base64.b64encode(self.hashes[name]).decode() for name in names},
                "busy": self.busy,
                "complete": self.complete,
                "progress": self.progress,
                "slow": self.slow,
            }

    def take(self, answer: Mapping[str, Any], lengths: Mapping[str, int]) -> None:
        """Keep what a member answered: hashes of the right length of blobs whose hashes were unknown."""
        with self.lock:
            for name, text in (answer.get("hashes") or {}).items():
                pieces = base64.b64decode(text)
                if lengths.get(name) == len(pieces):
                    self.hashes.setdefault(name, pieces)


class HashServer:
    """Answers members' questions, from a thread, until it is closed."""

    def __init__(
        self, me: SwarmMember, others: tuple[SwarmMember, ...], key: str, known: MemberAnswers
    ) -> None:
        allowed = {member.address for member in others}

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                if self.client_address[0] not in allowed:
                    return
                self.request.settimeout(SECONDS)
                question = _receive(self.request, 2**20)
                body = json.loads(question["body"])
                if hmac.compare_digest(question["mac"], _mac(key, "ask", question["body"])):
                    text = json.dumps(known.answer(body.get("wanted")))
                    _send(self.request, {"body": text, "mac": _mac(key, body["nonce"], text)})

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            address_family = family(me.address)

            def handle_error(self, *_: object) -> None:
                """Ignore a connection that broke: the member that asked asks again."""

        self._server = Server((me.address, me.port + 1), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.2,), daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def ask(
    me: SwarmMember, other: SwarmMember, key: str, wanted: list[str], seconds: float = SECONDS
) -> dict[str, Any] | None:
    """Return another member's answer; None if it does not answer, or does not know the key."""
    body = json.dumps({"nonce": (nonce := secrets.token_hex(16)), "wanted": wanted})
    try:
        patience = min(seconds, _CONNECT_SECONDS)
        with socket.create_connection((other.address, other.port + 1), patience, (me.address, 0)) as link:
            link.settimeout(seconds)
            _send(link, {"body": body, "mac": _mac(key, "ask", body)})
            answer = _receive(link, LARGEST_ANSWER)
        if hmac.compare_digest(answer["mac"], _mac(key, nonce, answer["body"])):
            found = json.loads(answer["body"])
            return found if isinstance(found, dict) else None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _mac(key: str, nonce: str, text: str) -> str:
    return hmac.new(bytes.fromhex(key), f"{nonce} {text}".encode(), hashlib.sha256).hexdigest()


def _send(link: socket.socket, message: Mapping[str, str]) -> None:
    text = json.dumps(message).encode()
    link.sendall(len(text).to_bytes(4, "big") + text)


def _receive(link: socket.socket, limit: int) -> dict[str, str]:
    size = int.from_bytes(_exactly(link, 4), "big")
    if size > limit:
        raise ValueError(f"{size} bytes are more than {limit}")
    found = json.loads(_exactly(link, size))
    if not isinstance(found, dict):
        raise ValueError("not a map")
    return found


def _exactly(link: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = link.recv(min(size, _PART))
        if not part:
            raise ConnectionError("closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def family(address: str) -> socket.AddressFamily:
    """Return the family of an IP address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET
