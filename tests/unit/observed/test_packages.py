# SPDX-License-Identifier: Apache-2.0
"""Packages for building images, on the systems that the toolkit runs on."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.node_state import NodeState
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.packages import build_packages

from tests.worlds.plan_world import state

GIT = ("ca-certificates", "git")


@pytest.mark.parametrize(
    ("system", "docker", "git", "wanted"),
    [
        # Debian 12's client of 20.10 speaks to BuildKit by itself, and its distribution has no buildx.
        (("debian", "12"), {"version": "20.10.24+dfsg1"}, True, ()),
        (("debian", "12"), {"version": "20.10.24+dfsg1"}, False, GIT),
        (("debian", "12"), {"installed": False, "available": False, "version": None}, False, GIT),
        (
            ("debian", "13"),
            {"installed": False, "available": False, "version": None},
            True,
            ("docker-buildx",),
        ),
        (("ubuntu", "24.04"), {"installed": False, "available": False}, False, (*GIT, "docker-buildx")),
        (("ubuntu", "22.04"), {"version": "28.2.2"}, True, ("docker-buildx",)),
        (("ubuntu", "22.04"), {"version": "28.2.2", "buildx": True}, True, ()),
        (("ubuntu", "22.04"), {"version": "28.2.2", "community": True}, True, ("docker-buildx-plugin",)),
        (("ubuntu", "22.04"), {"version": "20.10.12"}, True, ()),
    ],
)
def test_what_a_build_needs(
    system: tuple[str, str], docker: dict[str, Any], git: bool, wanted: tuple[str, ...]
) -> None:
    base = state(git=git)
    base["os"] = {"id": system[0], "version_id": system[1], "pretty_name": "x"}
    base["docker"] = {**base["docker"], **docker}
    assert build_packages(NodeState.from_json(base)) == wanted


def test_a_host_that_was_not_looked_at() -> None:
    assert build_packages(None) == GIT
