# SPDX-License-Identifier: Apache-2.0
"""A registry with one image of real bytes, its log-in, and what can go wrong on the way."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
ACCOUNT = ("puller", "registry-canary-5f2c-secret")


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def descriptor(content: bytes) -> dict[str, object]:
    return {"digest": digest(content), "size": len(content)}


@dataclass
class BlobRegistry:
    """login: "", basic or token. cut, flip: blobs whose first answer ends early or has a wrong byte, by digest.

    redirect: blobs come from another host. ranges: whether a part can be asked for.
    """

    layers: list[bytes] = field(default_factory=lambda: [random.Random(n).randbytes(300_000) for n in (1, 2)])
    config: bytes = b'{"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers"}}'
    listed: bool = True
    login: str = ""
    redirect: bool = False
    ranges: bool = True
    limited: int = 0
    cut: set[str] = field(default_factory=set)
    flip: set[str] = field(default_factory=set)
    sent: Counter[str] = field(default_factory=Counter)
    authorizations: list[tuple[str, str]] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        entries = [descriptor(layer) for layer in self.layers]
        image = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(self.config),
            "layers": entries,
        }
        self.image = json.dumps(image).encode()
        others = [{**descriptor(b"arm"), "platform": {"os": "linux", "architecture": "arm64"}}]
        mine = {**descriptor(self.image), "platform": {"os": "linux", "architecture": "amd64"}}
        index = {"schemaVersion": 2, "mediaType": LIST, "manifests": [*others, mine]}
        self.top = json.dumps(index).encode() if self.listed else self.image
        self.contents = {digest(item): item for item in (*self.layers, self.config, self.image, self.top)}

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def ref(self) -> str:
        return f"{self.host}/lab/vllm@{digest(self.top)}"

    @contextmanager
    def running(self) -> Iterator[BlobRegistry]:
        world = self

        class Handler(_Handler):
            registry = world

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.port = server.server_address[1]
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            yield self
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    registry: BlobRegistry

    def log_message(self, format: str, *args: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        world, given = self.registry, self.headers.get("Authorization") or ""
        path = self.path.partition("?")[0]
        world.authorizations.append((f"{self.headers['Host']}{path}", given))
        if path == "/token":
            self._send(200, b'{"token": "T1"}' if given == _basic() else b"{}")
            return
        if world.limited:
            world.limited -= 1
            self._send(429, b"")
            return
        if path.startswith("/content/"):
            self._content(path.rpartition("/")[2])
            return
        wanted = {"": "", "basic": _basic(), "token": "Bearer T1"}[world.login]
        if wanted and given != wanted:
            realm = f'Bearer realm="http://{world.host}/token",service="lab",scope="repository:lab/vllm:pull"'
            self._send(401, b"", {"WWW-Authenticate": "Basic realm=x" if world.login == "basic" else realm})
            return
        name = path.rpartition("/")[2]
        if world.redirect and "/blobs/" in path:
            self._send(307, b"", {"Location": f"http://localhost:{world.port}/content/{name}"})
            return
        self._content(name)

    def _content(self, name: str) -> None:
        world = self.registry
        content = world.contents.get(name)
        if content is None:
            self._send(404, b"")
            return
        begin, status = 0, 200
        asked = self.headers.get("Range")
        if asked and world.ranges:
            begin, status = int(asked[len("bytes=") :].rstrip("-")), 206
        if name in world.flip:
            world.flip.discard(name)
            content = content[:-1] + bytes([content[-1] ^ 1])
        part = content[begin:]
        if name in world.cut:
            world.cut.discard(name)
            self._send(status, part[: len(part) // 2], {"Content-Length": str(len(part))})
            self.close_connection = True
            return
        kind = "application/octet-stream"
        if "/manifests/" in self.path:
            kind = LIST if b'"manifests"' in content else MANIFEST
        self._send(status, part, {"Content-Type": kind})
        world.sent[name] += len(part)

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _basic() -> str:
    return f"Basic {base64.b64encode(':'.join(ACCOUNT).encode()).decode()}"
