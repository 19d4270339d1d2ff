# SPDX-License-Identifier: Apache-2.0
"""Containers that are created, found by their labels, awaited and removed: what only some users of the client do."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from .client import Conflict, DockerClient, DockerTimeout, Json, NotFound, Query


def containers_labelled(client: DockerClient, label: str) -> list[Json]:
    """Return the containers that have a label, in any state."""
    query: Query = {"all": True, "filters": json.dumps({"label": [label]})}
    return list(client.json("GET", "/containers/json", query))


def create_container(client: DockerClient, name: str, body: Mapping[str, Any]) -> str:
    """Create a container and return its id."""
    return str(client.json("POST", "/containers/create", {"name": name}, body=body)["Id"])


def rename_container(client: DockerClient, name: str, new: str) -> None:
    """Rename a container."""
    client.json("POST", f"/containers/{quote(name)}/rename", {"name": new})


def remove_container(client: DockerClient, name: str) -> None:
    """Remove a stopped container and its anonymous volumes; do nothing if it does not exist."""
    try:
        client.json("DELETE", f"/containers/{quote(name)}", {"v": True})
    except NotFound:
        return
    except Conflict as error:
        if "already in progress" not in str(error):
            raise
        # Another client is removing it; it is gone once its name is free.
        deadline = time.monotonic() + client.timeout
        while client.container(name) is not None and time.monotonic() < deadline:
            time.sleep(0.1)


def wait_container(client: DockerClient, name: str, seconds: float) -> int | None:
    """Wait until a container has ended. Return its exit code, or None if it still runs after `seconds`."""
    try:
        answer = client.json("POST", f"/containers/{quote(name)}/wait", timeout=max(seconds, 0.01))
    except DockerTimeout:
        return None
    return int(answer["StatusCode"])
