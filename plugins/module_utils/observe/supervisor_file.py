# SPDX-License-Identifier: Apache-2.0
"""The file that the supervisor around an instance's vLLM writes about itself. Nothing in it is trusted."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any
SUPERVISOR_STATES = ("waiting", "starting", "running", "stopping", "gave_up")
SUPERVISOR_BYTES = 65536  # the supervisor writes a few thousand


def read_supervisor(cache_dir: str) -> dict[str, Any] | None:
    """Return what the supervisor around an instance's vLLM reports; None if it is unreadable or missing."""
    try:
        data = supervisor_file(cache_dir) or {}
        failures = data["failures"]
        return {
            "state": data["state"] if data["state"] in SUPERVISOR_STATES else None,
            "since": float(data["since"]),
            "why": printable(data["why"]),
            "failures": len(failures),
            "first": told_failure(failures[0]) if failures else None,
            "peer": told_failure(data["peer"]) if data["peer"] else None,
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None


def supervisor_file(cache_dir: str) -> dict[str, Any] | None:
    """Return the supervisor's state.json unchanged; None if it is unreadable or missing.

    The container's root user writes it, so it may be anything: a link to a file of the node, a pipe, a huge file.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    opened: list[int] = []
    try:
        opened.append(os.open(cache_dir, flags | os.O_DIRECTORY))
        opened.append(os.open("supervise", flags | os.O_DIRECTORY, dir_fd=opened[-1]))
        if os.stat("state.json", dir_fd=opened[-1], follow_symlinks=False).st_mode & 0o170000 != 0o100000:
            return None  # no regular file
        opened.append(os.open("state.json", flags, dir_fd=opened[-1]))
        data = json.loads(os.read(opened[-1], SUPERVISOR_BYTES))
        return data if isinstance(data, dict) else None
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def told_failure(item: dict[str, Any]) -> dict[str, str]:
    """Return the parts of a failure to display; for another rank's failure, name that rank."""
    found = {key: printable(item[key]) for key in ("kind", "line", "next_step")}
    if "host" in item:
        found["line"] = printable(
            f"{item['host']} (rank {item['rank']}) ended: {found['kind']}: {found['line']}"
        )
        found["kind"] = "peer_lost" if item["kind"] in ("stopped", "peer_lost") else "peer_failed"
    return found


def printable(value: Any) -> str:
    """Return a text of unknown origin as one line of limited length."""
    return "".join(char if char.isprintable() else " " for char in str(value)[:800])
