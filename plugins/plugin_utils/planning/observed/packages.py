# SPDX-License-Identifier: Apache-2.0
"""List the distribution packages that a host still needs for its tasks. Pure."""

from __future__ import annotations

import re

from .node_state import NodeState

# Distributions whose Docker is older than 23.0: up to 22.x its client speaks to BuildKit without a plugin. Source:
# Docker's release notes for 23.0 (buildx became the client's builder, in its own package).
_OLD_DOCKER = (("debian", "11"), ("debian", "12"))


def build_packages(state: NodeState | None) -> tuple[str, ...]:
    """Return what a host needs to build an image: git, and a client for BuildKit, which vLLM's Dockerfiles require."""
    found: list[str] = []
    if state is None or not state.git:
        found += ["ca-certificates", "git"]  # git only recommends the certificates; https fails without them
    if state is not None and not state.buildx and not _speaks_buildkit(state):
        found.append("docker-buildx-plugin" if state.docker_community else "docker-buildx")
    return tuple(found)


def _speaks_buildkit(state: NodeState) -> bool:
    """Return whether the Docker client, installed or about to be, works with BuildKit without a plugin."""
    if not (state.docker_installed or state.docker_available):
        return (state.os_id, state.os_version) in _OLD_DOCKER
    major = re.match(r"\d+", state.docker_version)
    return major is not None and 19 <= int(major.group()) < 23
