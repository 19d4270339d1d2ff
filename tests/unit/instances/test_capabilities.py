# SPDX-License-Identifier: Apache-2.0
"""What an engine's container may do: less than Docker gives, and what its deployment adds."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.deployment_parts import (
    CAPABILITIES,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.capabilities import (
    ADDED,
    DROPPED,
    capabilities,
)

DOCKER = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
    "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip
"""What it gives by default, https://docs.docker.com/engine/containers/run/#runtime-privilege-and-linux-capabilities."""


@pytest.mark.parametrize(
    ("more", "ports", "added", "kept"),
    [
        ((), (8000, 8001), set(), set()),
        ((), (), set(), set()),
        ((), (8000, 443), set(), {"NET_BIND_SERVICE"}),
        (("NET_RAW", "IPC_LOCK"), (8000,), {"NET_RAW", "IPC_LOCK"}, {"NET_RAW"}),
        (("SYS_PTRACE",), (1024,), set(), set()),
    ],
)
def test_what_is_added_and_dropped(more: Any, ports: Any, added: set[str], kept: set[str]) -> None:
    add, drop = capabilities(more, ports)
    assert add == sorted({"SYS_PTRACE", *added})
    assert drop == sorted(DROPPED.keys() - kept)


def test_what_is_dropped_is_what_docker_gives_and_what_stays_is_for_files_and_processes() -> None:
    assert DROPPED.keys() <= DOCKER
    assert DOCKER - DROPPED.keys() == {"CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"}
    assert {*DOCKER, *ADDED} <= {*CAPABILITIES}
    assert all(DROPPED.values())
