# SPDX-License-Identifier: Apache-2.0
"""The part of the Docker Engine API that concerns images."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from .client import DockerClient, DockerError, DockerTimeout, DockerUnavailable, Json, NotFound


def image(client: DockerClient, name: str) -> Json | None:
    """Return an image by tag, digest or id; None if Docker does not have it."""
    try:
        return dict(client.json("GET", f"/images/{quote(name, safe='/:@')}/json"))
    except NotFound:
        return None


def images_labelled(client: DockerClient, label: str) -> list[Json]:
    """Return the images that have a label ("name=value")."""
    return list(client.json("GET", "/images/json", {"filters": json.dumps({"label": [label]})}))


def tag(client: DockerClient, name: str, repository: str, new: str) -> None:
    """Give an image another name."""
    client.json("POST", f"/images/{quote(name, safe='/:@')}/tag", {"repo": repository, "tag": new})


def pull(
    client: DockerClient,
    repository: str,
    tag_or_digest: str,
    auth: Mapping[str, str] | None = None,
    timeout: float = 600.0,
) -> Iterator[Json]:
    """Pull an image and yield its progress. `timeout`: seconds without progress.

    Raise DockerError on a reported error.
    """
    query = {"fromImage": repository, "tag": tag_or_digest}
    return progress(client, "/images/create", query, auth, timeout)


def progress(
    client: DockerClient,
    path: str,
    query: Mapping[str, str],
    auth: Mapping[str, str] | None,
    timeout: float = 600.0,
) -> Iterator[Json]:
    """Send a request about a registry and yield its progress; as pull()."""
    headers = {}
    if auth is not None:
        headers["X-Registry-Auth"] = base64.urlsafe_b64encode(json.dumps(dict(auth)).encode()).decode()
    response = client.respond("POST", path, query, headers=headers, timeout=timeout)
    try:
        for line in _lines(response):
            if not line.strip():
                continue
            event = json.loads(line)
            if "error" in event or "errorDetail" in event:
                detail = event.get("errorDetail") or {}
                raise DockerError(str(detail.get("message") or event.get("error")))
            yield event
    except socket.timeout as error:
        raise DockerTimeout(f"POST {path} made no progress for a long time.") from error
    except (http.client.HTTPException, ConnectionError) as error:
        raise DockerUnavailable(f"The Docker engine closed the connection during {path}.") from error
    finally:
        if not response.isclosed():
            client.close()


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the lines of a response. readline() would take a line split between two chunks for a complete one."""
    rest = b""
    while True:
        part = response.read1(65536)
        if not part:
            break
        *lines, rest = (rest + part).split(b"\n")
        yield from lines
    yield rest
