# SPDX-License-Identifier: Apache-2.0
"""A registry of a few lines: manifests of the repository lab/vllm, and failures by tag; and one with accounts."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

V2 = "application/vnd.docker.distribution.manifest.v2+json"
LIST = "application/vnd.oci.image.index.v1+json"


def body(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest).encode()


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


IMAGE = body(
    {
        "schemaVersion": 2,
        "mediaType": V2,
        "config": {"digest": "sha256:c", "size": 100},
        "layers": [{"digest": "sha256:a", "size": 5000}, {"digest": "sha256:b", "size": 700}],
    }
)
INDEX = body(
    {
        "schemaVersion": 2,
        "mediaType": LIST,
        "manifests": [
            {"digest": "sha256:" + "7" * 64, "platform": {"os": "linux", "architecture": "arm64"}},
            {"digest": "sha256:" + "8" * 64, "platform": {"os": "unknown", "architecture": "unknown"}},
            {"digest": digest(IMAGE), "platform": {"os": "linux", "architecture": "amd64"}},
        ],
    }
)
ARM = body({"schemaVersion": 2, "mediaType": LIST, "manifests": json.loads(INDEX)["manifests"][:2]})
ODD = body({"schemaVersion": 1, "mediaType": "application/vnd.docker.distribution.manifest.v1+json"})
AMD64 = {"digest": digest(IMAGE), "platform": {"os": "linux", "architecture": "amd64"}}
BARE = {"digest": "sha256:" + "9" * 64}
# What a builder adds, such as attestations, may have no platform.
MIXED = body({"schemaVersion": 2, "mediaType": LIST, "manifests": [BARE, {**BARE, "platform": None}, AMD64]})
NOWHERE = body({"schemaVersion": 2, "mediaType": LIST, "manifests": [BARE, {**BARE, "platform": None}]})
FAILURES = {"closed": 401, "limited": 429, "broken": 500, "refused": 403}
MANIFESTS = {"1": IMAGE, "multi": INDEX, "arm": ARM, "odd": ODD, digest(IMAGE): IMAGE, "text": b"<html>",
             "mixed": MIXED, "nowhere": NOWHERE}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """Manifests of the repository lab/vllm, and failures by tag."""

    def do_GET(self) -> None:
        self.manifest()

    def manifest(self) -> None:
        name = self.path.rpartition("/")[2]
        content = MANIFESTS.get(name) if self.path == f"/v2/lab/vllm/manifests/{name}" else None
        status = FAILURES.get(name, 200 if content else 404)
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="lab"')
        content = content or b"{}"
        self.send_header("Docker-Content-Digest", digest(content))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@contextmanager
def running_registry() -> Iterator[str]:
    """Serve on a free port of this machine, without TLS; gives host:port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Doors:
    """How a private registry lets people in: by password, or by a token that is had for one."""

    accounts: dict[str, str]
    tokens: bool = False
    address: str = ""
    asked: list[str] = field(
        default_factory=list
    )  # paths with what they were asked with: the kind of log-in, no secret
    scopes: list[str] = field(default_factory=list)

    def account(self, given: str) -> bool:
        """Whether this is the log-in of somebody known."""
        kind, _, value = given.partition(" ")
        user, _, password = (
            base64.b64decode(value).decode().partition(":") if kind == "Basic" else ("", "", "")
        )
        return bool(user) and self.accounts.get(user) == password


class PrivateHandler(Handler):
    """The same manifests, for those who have an account."""

    doors: Doors

    def do_GET(self) -> None:
        doors, given = self.doors, self.headers.get("Authorization") or ""
        parts = urlsplit(self.path)
        doors.asked.append(f"{parts.path} {given.partition(' ')[0] or 'nothing'}")
        if parts.path == "/token" and doors.tokens:
            query = parse_qs(parts.query)
            doors.scopes += query["scope"]
            # An anonymous token opens what is public; this registry has nothing of that.
            known = doors.account(given)
            return self.say(401 if given and not known else 200, {"token": "known" if known else "anonymous"})
        opened = given == "Bearer known" if doors.tokens else doors.account(given)
        return self.manifest() if opened else self.say(401, {})

    def say(self, status: int, data: dict[str, Any]) -> None:
        self.send_response(status)
        if status == 401:
            bearer = f'Bearer realm="https://{self.doors.address}/token",service="lab"'
            self.send_header("WWW-Authenticate", bearer if self.doors.tokens else 'Basic realm="lab"')
        content = json.dumps(data).encode()
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def private_registry(certificate: Path, doors: Doors) -> Iterator[str]:
    """The same behind TLS with a certificate and key, for people with accounts; gives host:port."""
    handler = type("Private", (PrivateHandler,), {"doors": doors})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    doors.address = f"127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield doors.address
    finally:
        server.shutdown()
        server.server_close()
