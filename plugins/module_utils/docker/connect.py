# SPDX-License-Identifier: Apache-2.0
"""The Docker engine of a node, or, for check mode, one without anything where none is installed yet."""

from __future__ import annotations

import os
from typing import Any

from .client import Engine, NotFound, Query


class NoEngine(Engine):
    """What a node without an engine has: nothing. For check mode, as a run installs the engine first."""

    def json(self, method: str, path: str, query: Query | None = None, **options: Any) -> Any:
        """As of an engine that has no image and no container. Raises NotFound for each of them."""
        if method != "GET":
            raise AssertionError(f"{method} {path} in check mode")
        if path == "/info":
            return {}
        if path in ("/images/json", "/containers/json"):
            return []
        raise NotFound(f"there is no Docker engine at {self.path}", 404)


def connect(path: str, check: bool) -> Engine:
    """The engine at a socket; in check mode, one without anything where none is installed."""
    return NoEngine(path) if check and not os.path.exists(path) else Engine(path)
