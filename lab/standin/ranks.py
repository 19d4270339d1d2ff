# SPDX-License-Identifier: Apache-2.0
"""Servers of an engine over several hosts: they meet at the head's address, as vLLM's do at torch's store.

If a rank is lost later, the head hangs, like the real one's collectives: /health still returns 200.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from .startup import StartError, log

SECONDS = 300.0  # after which a rank that does not find the others gives up


@dataclass(frozen=True)
class Place:
    """Flags of vLLM's own launcher."""

    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int


def meet(place: Place) -> list[socket.socket]:
    """Wait until all ranks are connected; return the head's connections to the others, or a rank's to the head."""
    where = f"{place.master_addr}:{place.master_port}"
    log(
        "Worker",
        "parallel_state.py:1373",
        f"world_size={place.nnodes} rank={place.node_rank} init=tcp://{where}",
    )
    if place.node_rank == 0:
        with socket.create_server((place.master_addr, place.master_port)) as listener:
            listener.settimeout(SECONDS)
            try:
                return [listener.accept()[0] for _ in range(place.nnodes - 1)]
            except TimeoutError as error:
                raise StartError(
                    f"torch.distributed.DistStoreError: Timed out at {where}", "Worker"
                ) from error
    end = time.monotonic() + SECONDS
    while True:
        try:
            return [socket.create_connection((place.master_addr, place.master_port), timeout=5)]
        except OSError as error:
            if time.monotonic() > end:
                raise StartError(f"torch.distributed.DistNetworkError: {where}: {error}", "Worker") from error
            time.sleep(0.1)
