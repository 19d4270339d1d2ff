# SPDX-License-Identifier: Apache-2.0
"""Nodes by their network interfaces."""

from __future__ import annotations

from typing import Any

from tests.worlds.plan_world import state


def ethernet(number: int, **changes: Any) -> dict[str, Any]:
    """A host's interface."""
    found = {"name": "eth0", "addresses": [f"10.0.0.{number}"], "up": True, "mtu": 1500, "speed": 25000}
    return {**found, **changes}


def rail(number: int, **changes: Any) -> dict[str, Any]:
    """A port of an RDMA device, as node_state has it."""
    return {
        "name": f"mlx5_{number}", "port": 1, "state": "ACTIVE", "layer": "Ethernet", "rate": 400,
        "interface": f"rdma{number}", "gid_index": 3, **changes,
    }  # fmt: skip


def node(number: int, **changes: Any) -> dict[str, Any]:
    """A host with eight GPUs, as many NICs for them, and an interface for the rest."""
    found = {"interfaces": [ethernet(number)], "rdma": [rail(i) for i in range(8)], "verbs": True}
    return state(**{**found, **changes})
