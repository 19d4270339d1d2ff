# SPDX-License-Identifier: Apache-2.0
"""A network that ends at a forward proxy with an account, and servers behind it whose certificate a private CA made."""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path

from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.certificate import self_signed

ACCOUNT = "fleet:p%40ss-of-the-proxy"
SECRET = "p@ss-of-the-proxy"
OUTSIDE = "outside.example"  # no name server knows it: only the proxy gets there


class ForwardProxy(ThreadingHTTPServer):
    """A proxy that connects everybody with the account to one port of this machine, whatever name they ask for."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port = port
        self.asked: list[str] = []

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{ACCOUNT}@{self.host}"

    def __enter__(self) -> ForwardProxy:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ForwardProxy

    def do_CONNECT(self) -> None:
        expected = "Basic " + base64.b64encode(f"fleet:{SECRET}".encode()).decode()
        if self.headers.get("Proxy-Authorization") != expected:
            self.send_response(407)
            self.send_header("Proxy-Authenticate", 'Basic realm="x"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.server.asked.append(self.path)
        with socket.create_connection(("127.0.0.1", self.server.port)) as outside:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_copy, args=(outside, self.connection), daemon=True)
            back.start()
            _copy(self.connection, outside)
            back.join(20)
        self.close_connection = True

    def log_message(self, *_args: object) -> None: ...


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def with_private_ca(server: HTTPServer, directory: Path) -> Path:
    """Let a server speak TLS as OUTSIDE; return the file of the CA, which no program trusts by itself."""
    pem = directory / "server.pem"
    pem.write_text(self_signed([OUTSIDE]), encoding="utf-8")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    ca = directory / "ca.pem"
    ca.write_text(pem.read_text().partition("-----BEGIN PRIVATE KEY-----")[0], encoding="utf-8")
    return ca
