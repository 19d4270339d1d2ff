# SPDX-License-Identifier: Apache-2.0
"""Logs of containers."""

from __future__ import annotations

from urllib.parse import quote

from .client import DockerClient, NotFound, Query

_LOG_LIMIT = 16 * 1024 * 1024  # bytes of a container's log that are read at most


def container_log(client: DockerClient, name: str, lines: int = 5000) -> str:
    """Return the last lines of a container's output (stdout and stderr, in order); "" if it does not exist."""
    query: Query = {"stdout": True, "stderr": True, "tail": lines}
    try:
        response = client.respond("GET", f"/containers/{quote(name)}/logs", query)
    except NotFound:
        return ""
    return demultiplex(client.read(response, _LOG_LIMIT)).decode("utf-8", "replace")


def demultiplex(raw: bytes) -> bytes:
    """Join the frames of a log stream. Return a log without frames (a container with a terminal) unchanged."""
    parts: list[bytes] = []
    place = 0
    while place + 8 <= len(raw):
        if raw[place] not in (0, 1, 2) or raw[place + 1 : place + 4] != b"\0\0\0":
            return raw if place == 0 else b"".join(parts)
        size = int.from_bytes(raw[place + 4 : place + 8], "big")
        parts.append(raw[place + 8 : place + 8 + size])
        place += 8 + size
    return b"".join(parts) if parts else raw
