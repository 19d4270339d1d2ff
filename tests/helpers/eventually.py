# SPDX-License-Identifier: Apache-2.0
"""Waiting for what another process or thread does."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

GENEROUS = 60.0
"""Seconds that only something that never comes takes, however busy the machine is."""


def eventually(what: str, condition: Callable[[], bool], seconds: float = GENEROUS) -> None:
    """Return when the condition holds; AssertionError with `what` when it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def patient_socket() -> Any:
    """The module socket, for code that takes a connection that is not made in a second for one that nobody accepts."""

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        return socket.create_connection(address, max(timeout, GENEROUS))

    return SimpleNamespace(**{**vars(socket), "create_connection": connect})
