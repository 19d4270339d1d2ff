# SPDX-License-Identifier: Apache-2.0
"""The part of a server's command that its caches depend on.

The planner and the supervisor extract it in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

_ADDRESSES = (
    "--host",
    "--port",
    "--master-addr",
    "--master-port",
    "--data-parallel-address",
    "--data-parallel-rpc-port",
)


def without_addresses(argv: Sequence[str]) -> list[str]:
    """Return a command without where it listens and whom it meets."""
    found, skip = [], False
    for word in argv:
        if skip:
            skip = False
        elif word in _ADDRESSES:
            skip = True
        elif not word.startswith(tuple(f"{name}=" for name in _ADDRESSES)):
            found.append(word)
    return found
