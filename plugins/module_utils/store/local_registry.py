# SPDX-License-Identifier: Apache-2.0
"""A read-only registry over one image of the content store, for this node's engine while it pulls."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..common.module_main import NodeError
from .blobs import Store
from .manifest import Manifest

HOST = "127.0.0.1"
_BLOB = "application/octet-stream"
_PATH = re.compile(r"/v2/.+/(manifests|blobs)/sha256:([0-9a-f]{64})")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, store: Store, manifest: Manifest, port: int) -> None:
        self.store, self.blobs = store, manifest.blobs
        super().__init__((HOST, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD of what the image has, by digest."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    server: _Server

    def do_GET(self) -> None:
        """Answer with the content."""
        self._answer(True)

    def do_HEAD(self) -> None:
        """Answer with the headers."""
        self._answer(False)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the engine reports what it gets."""

    def _answer(self, with_body: bool) -> None:
        found = _PATH.fullmatch(self.path)
        sha256 = found[2] if found else ""
        path = self.server.store.path(sha256)
        if found is None or sha256 not in self.server.blobs or not os.path.exists(path):
            self._head(200 if self.path.rstrip("/") == "/v2" else 404, "text/plain", 0)
            return
        kind = _media_type(path) if found[1] == "manifests" else _BLOB
        self._head(200, kind, os.path.getsize(path), f"sha256:{sha256}")
        if with_body:
            with open(path, "rb") as file, contextlib.suppress(ConnectionError):
                shutil.copyfileobj(file, self.wfile, 2**20)

    def _head(self, status: int, kind: str, length: int, digest: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()


@contextlib.contextmanager
def serve_image(store: Store, manifest: Manifest, port: int = 0) -> Iterator[str]:
    """Serve an image on a port of the loopback interface, a free one unless it is given; yield host:port.

    Raise NodeError if the port is in use.
    """
    try:
        server = _Server(store, manifest, port)
    except OSError as error:
        raise NodeError(
            f"Port {port} of {HOST} cannot be used ({error.strerror}), and Docker gets images from the content "
            "store there. Find what listens there (ss -ltnp), stop it, and run again."
        ) from error
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield f"{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _media_type(path: str) -> str:
    """Return a manifest's own type; in older forms of OCI it may not state it."""
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    kind = "index" if "manifests" in content else "manifest"
    return str(content.get("mediaType") or f"application/vnd.oci.image.{kind}.v1+json")
