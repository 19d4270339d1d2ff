# SPDX-License-Identifier: Apache-2.0
"""Find out where Docker keeps its files, if possible without asking for all that /info has."""

from __future__ import annotations

from .engine import DockerRequest
from .source import Source

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any


def read_info(source: Source, docker: dict[str, Any], socket_path: str) -> None:
    """Ask for what neither headers nor containers contain, as on a node without an instance."""
    if not docker["available"] or (docker["version"] and docker["root_dir"]):
        return
    try:
        info = DockerRequest(socket_path, "/info").answer()
        docker.update(version=info.get("ServerVersion"), root_dir=info.get("DockerRootDir"))
    except (OSError, ValueError, AttributeError) as error:
        source.problem("docker info", error)


def root_dir(container: str, details: dict[str, Any]) -> str | None:
    """Return Docker's directory by the path of a container's file; None if it has none, as before its first start."""
    root, found, _unused = (details.get("HostnamePath") or "").partition(f"/containers/{container}/")
    return root if found else None
