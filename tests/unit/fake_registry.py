# SPDX-License-Identifier: Apache-2.0
"""A registry of a few lines: manifests of the repository lab/vllm, and failures by tag."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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
FAILURES = {"closed": 401, "limited": 429, "broken": 500, "refused": 403}
MANIFESTS = {"1": IMAGE, "multi": INDEX, "arm": ARM, "odd": ODD, digest(IMAGE): IMAGE, "text": b"<html>"}


class Handler(BaseHTTPRequestHandler):
    """Manifests of the repository lab/vllm, and failures by tag."""

    def do_GET(self) -> None:
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
