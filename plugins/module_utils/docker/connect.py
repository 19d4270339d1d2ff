# SPDX-License-Identifier: Apache-2.0
"""Connect to a node's Docker engine or, in check mode, to an empty stand-in if none is installed yet."""

from __future__ import annotations

import os
from typing import Any

from .client import DockerClient, NotFound, Query


class EmptyDockerClient(DockerClient):
    """A stand-in for check mode on a node without Docker: it has no objects. A real run would install Docker first."""

    def json(self, method: str, path: str, query: Query | None = None, **options: Any) -> Any:
        """Answer as an engine without images and containers does. Raise NotFound for any single object."""
        if method != "GET":
            raise AssertionError(f"{method} {path} in check mode")
        if path == "/info":
            return {}
        if path in ("/images/json", "/containers/json"):
            return []
        raise NotFound(f"there is no Docker engine at {self.path}", 404)


def connect(path: str, check: bool) -> DockerClient:
    """Return a client for the socket; in check mode, an empty stand-in if Docker is not installed."""
    return EmptyDockerClient(path) if check and not os.path.exists(path) else DockerClient(path)
