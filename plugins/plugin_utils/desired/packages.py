# SPDX-License-Identifier: Apache-2.0
"""Packages of the distribution that a host lacks for what it is to do. Pure."""

from __future__ import annotations

import re

from .node_state import NodeState

# The Docker that these come with; its client speaks to BuildKit by itself until 22.x. Source: Docker's release
# notes for 23.0 (buildx became the client's builder, in a package of its own).
_OLD_DOCKER = (("debian", "11"), ("debian", "12"))


def build_packages(state: NodeState | None) -> tuple[str, ...]:
    """What a host lacks to build an image: git, and a client for BuildKit, which vLLM's Dockerfiles need."""
    found: list[str] = []
    if state is None or not state.git:
        found += ["ca-certificates", "git"]  # git only recommends the certificates, without which https fails
    if state is not None and not state.buildx and not _speaks_buildkit(state):
        found.append("docker-buildx-plugin" if state.docker_community else "docker-buildx")
    return tuple(found)


def _speaks_buildkit(state: NodeState) -> bool:
    """The Docker client that is there, or that will be installed, needs no plugin."""
    if not (state.docker_installed or state.docker_available):
        return (state.os_id, state.os_version) in _OLD_DOCKER
    major = re.match(r"\d+", state.docker_version)
    return major is not None and 19 <= int(major.group()) < 23
