# SPDX-License-Identifier: Apache-2.0
"""Check whether a vLLM server serves. A healthy answer proves nothing: an engine can die on its first request."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
from dataclasses import dataclass
from typing import Any

PROMPT = "Hello"
MAX_TOKENS = 4


@dataclass(frozen=True)
class ServerAddress:
    """A server's address and model. `api_key` is a secret."""

    host: str
    port: int
    model: str
    api_key: str = ""


@dataclass(frozen=True)
class ProbeAnswer:
    """The result of a probe: `tokens` generated; otherwise `status` (0: no HTTP answer) and the server's text."""

    tokens: int = 0
    status: int = 0
    text: str = ""

    @property
    def refused(self) -> bool:
        """Return whether the server understood the request and rejected it: a retry will not help."""
        return 400 <= self.status < 500 and self.status not in (408, 425, 429)


def healthy(endpoint: ServerAddress, timeout: float = 5.0) -> ProbeAnswer:
    """Send GET /health; `status` is 200 if the engine reports that it is alive."""
    return ask(endpoint, "GET", "/health", None, timeout)


def generate(endpoint: ServerAddress, timeout: float) -> ProbeAnswer:
    """Request a few tokens. `timeout` in seconds: the first request may have to compile kernels."""
    body = {"model": endpoint.model, "prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 0}
    answer = ask(endpoint, "POST", "/v1/completions", body, timeout)
    if answer.status != 200:
        return answer
    try:
        tokens = int(json.loads(answer.text)["usage"]["completion_tokens"])
    except (ValueError, KeyError, TypeError):
        return ProbeAnswer(0, 200, f"no usage.completion_tokens in the answer: {answer.text[:200]}")
    return ProbeAnswer(tokens, 200, "" if tokens else "the answer contains no generated token")


def ask(endpoint: ServerAddress, method: str, path: str, body: Any, timeout: float) -> ProbeAnswer:
    """Send one request, with JSON unless `body` is None; return its status and the answer's text (64 KiB at most)."""
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        return ProbeAnswer(0, response.status, response.read(65536).decode("utf-8", "replace").strip())
    except socket.timeout:
        return ProbeAnswer(0, 0, f"{method} {path}: no answer within {timeout:.0f} s")
    except (OSError, http.client.HTTPException) as error:
        return ProbeAnswer(0, 0, f"{method} {path}: {error or type(error).__name__}")
    finally:
        connection.close()


def port_holder(host: str, port: int) -> str | None:
    """Return the process that listens at host:port, as "pid 123 (name)"; None if connections are refused."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return None
    inodes = {inode for table in ("tcp", "tcp6") for inode in _listening(table, port)}
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        try:
            links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
        except OSError:  # it ended in the meantime, or may not be inspected
            continue
        if any(link == f"socket:[{inode}]" for link in links for inode in inodes):
            return f"pid {pid} ({_command(pid)})"
    return "a process that cannot be named here"


def _listening(table: str, port: int) -> list[str]:
    """Return the socket inodes that listen on a port, from /proc/net/tcp or tcp6."""
    try:
        with open(f"/proc/net/{table}", encoding="ascii") as stream:
            rows = [line.split() for line in stream.readlines()[1:]]
    except OSError:
        return []
    return [row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port]


def _command(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as stream:
            return re.sub(r"\s+", " ", stream.read()).strip()
    except OSError:
        return "ended in the meantime"
