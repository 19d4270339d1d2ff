# SPDX-License-Identifier: Apache-2.0
"""A client for the Docker Engine API over its unix socket, standard library only. See containers.py, image_api.py.

A client holds one connection: every thread creates its own. Works with Docker (API
1.24 and later) and with Podman's compatible socket.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Mapping
from typing import Any, Union
from urllib.parse import quote, urlencode

from ..common.module_main import NodeError

SOCKET = "/var/run/docker.sock"
NEWEST_KNOWN_API = (1, 51)
"""The newest API version for which this client was written; an older daemon is addressed in its own version."""

ALIVE = ("running", "restarting", "paused")
"""Statuses of a container that has, or may soon have, processes."""

_IDLE_SECONDS = 10.0  # a daemon that restarted may have closed a connection that was unused for longer

Json = dict[str, Any]
Query = Mapping[str, Union[str, int, bool]]


class DockerError(NodeError):
    """Docker refused a request or failed to carry it out; `status` is the HTTP status (0 if there was none)."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class DockerUnavailable(DockerError):
    """No Docker engine answers at the socket."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.result = {"class": "docker"}


class DockerTimeout(DockerUnavailable):
    """Docker did not answer in time."""


class NotFound(DockerError):
    """The container or image does not exist (404)."""


class Conflict(DockerError):
    """The name is taken, or the object's state forbids the request (409)."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("docker", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class DockerClient:
    """A client of the Docker engine on this host. `timeout` is in seconds, for one answer."""

    def __init__(self, path: str = SOCKET, timeout: float = 60.0) -> None:
        self.path = path
        self.timeout = timeout
        self._connection: _UnixConnection | None = None
        self._used = 0.0
        self._prefix: str | None = None

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ---- requests --------------------------------------------------------------------------------

    def _open(self, timeout: float) -> tuple[_UnixConnection, bool]:
        """Return a connected connection, and whether it is new."""
        if self._connection is not None and time.monotonic() - self._used > _IDLE_SECONDS:
            self.close()
        if self._connection is not None and self._connection.sock is not None:
            self._connection.sock.settimeout(timeout)
            return self._connection, False
        connection = _UnixConnection(self.path, timeout)
        try:
            connection.connect()
        except PermissionError as error:
            raise DockerUnavailable(
                f"Docker's socket {self.path} may not be used by this user. Run as root (become: true)."
            ) from error
        except FileNotFoundError as error:
            raise DockerUnavailable(
                f"Docker's socket {self.path} does not exist: no Docker engine is installed, or none is running. "
                "Install the distribution's docker.io (or docker-ce) and start it: systemctl start docker."
            ) from error
        except OSError as error:
            raise DockerUnavailable(
                f"The Docker engine does not answer at {self.path} ({error.strerror or error}). Start it "
                "(systemctl start docker); journalctl -u docker shows why it stopped."
            ) from error
        self._connection = connection
        return connection, True

    def _send(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
    ) -> http.client.HTTPResponse:
        while True:
            connection, fresh = self._open(timeout)
            try:
                connection.request(method, target, body=body, headers=dict(headers))
                response = connection.getresponse()
            except socket.timeout as error:
                self.close()
                raise DockerTimeout(
                    f"The Docker engine did not answer {method} {target} within {timeout:.0f} s."
                ) from error
            except (http.client.HTTPException, ConnectionError) as error:
                self.close()
                # The daemon closed an idle connection: the request never arrived. Repeating a GET is safe.
                if not fresh and method == "GET":
                    continue
                raise DockerUnavailable(
                    f"The Docker engine closed the connection during {method} {target}: it was stopped or "
                    "restarted. Check systemctl status docker, then run again."
                ) from error
            self._used = time.monotonic()
            return response

    def _target(self, path: str, query: Query | None) -> str:
        if self._prefix is None:
            response = self._send("GET", "/_ping", None, {}, self.timeout)
            response.read()
            offered = response.getheader("Api-Version") or ""
            self._prefix = _negotiate(offered)
        pairs = {key: _text(value) for key, value in (query or {}).items()}
        return self._prefix + path + (f"?{urlencode(pairs)}" if pairs else "")

    def respond(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> http.client.HTTPResponse:
        """Send a request and return the response. Raise the error that corresponds to an HTTP status of 400 or more."""
        target = self._target(path, query)
        payload = None if body is None else json.dumps(body).encode()
        sent = dict(headers or {})
        if payload is not None:
            sent["Content-Type"] = "application/json"
        elif method == "POST":
            sent["Content-Length"] = "0"
        response = self._send(method, target, payload, sent, timeout or self.timeout)
        if response.status < 400:
            return response
        text = self.read(response).decode("utf-8", "replace")
        try:
            message = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            message = text.strip() or f"HTTP {response.status}"
        kind = {404: NotFound, 409: Conflict}.get(response.status, DockerError)
        raise kind(message, response.status)

    def read(self, response: http.client.HTTPResponse, limit: int | None = None) -> bytes:
        """Read an answer, up to `limit` bytes. Raise DockerTimeout or DockerUnavailable if it breaks off."""
        try:
            data = response.read(limit) if limit else response.read()
        except socket.timeout as error:
            self.close()
            raise DockerTimeout("The Docker engine stopped in the middle of an answer.") from error
        except (http.client.HTTPException, ConnectionError) as error:
            self.close()
            raise DockerUnavailable(
                "The Docker engine closed the connection in the middle of an answer."
            ) from error
        if not response.isclosed():  # there was more than the limit
            self.close()
        return data

    def json(self, method: str, path: str, query: Query | None = None, **options: Any) -> Any:
        """Send one request and return its answer as JSON, or None if it has no content."""
        data = self.read(self.respond(method, path, query, **options))
        return json.loads(data) if data.strip() else None

    def info(self) -> Json:
        """Return GET /info: DockerRootDir, registry settings, …"""
        return dict(self.json("GET", "/info"))

    # ---- containers ------------------------------------------------------------------------------

    def container(self, name: str) -> Json | None:
        """Return GET /containers/<name>/json, or None if there is no such container."""
        try:
            return dict(self.json("GET", f"/containers/{quote(name)}/json"))
        except NotFound:
            return None

    def start(self, name: str) -> None:
        """Start a container; do nothing if it runs already."""
        self.json("POST", f"/containers/{quote(name)}/start")

    def stop(self, name: str, seconds: int) -> None:
        """Ask a container to stop; Docker kills it after `seconds`. Do nothing if it does not run."""
        self.json("POST", f"/containers/{quote(name)}/stop", {"t": seconds}, timeout=seconds + 60.0)


def _negotiate(offered: str) -> str:
    """Return the path prefix of the API version to use: the daemon's own, but at most the newest one known here."""
    try:
        major, minor = (int(part) for part in offered.split("."))
    except ValueError:  # the daemon reports no version: use its default
        return ""
    version = min((major, minor), NEWEST_KNOWN_API)
    return f"/v{version[0]}.{version[1]}"


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
