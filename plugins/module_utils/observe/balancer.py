# SPDX-License-Identifier: Apache-2.0
"""The load balancer on a node."""

from __future__ import annotations

import json
import os

from .hashes import sha256
from .source import Source, listing

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any
NO_BALANCER = {
    "installed": False,
    "keepalived": False,
    "running": False,
    "files": {},
    "keys": [],
    "applied": None,
    "config": None,
    "out": None,
}
KEEPALIVED_PID = "/run/instinct-balancer-address.pid"


def read_balancer(source: Source, state_dir: str, data_dir: str) -> dict[str, Any]:
    """Read the load balancer: hashes of its files, the configuration last loaded by HAProxy, drained servers."""
    found: dict[str, Any] = {**NO_BALANCER, "installed": source.exists("/usr/sbin/haproxy")}
    found["keepalived"] = source.exists("/usr/sbin/keepalived")
    current = os.path.join(state_dir, "balancer", "current")
    if not os.path.isdir(current):
        return found
    texts: dict[str, bytes] = {}
    for name in listing(current):
        with open(os.path.join(current, name), "rb") as file:
            texts[name] = file.read()
    state = os.path.join(data_dir, "balancer")
    for key, name in (("applied", "applied"), ("out", "out.json")):
        try:
            with open(os.path.join(state, name), encoding="utf-8") as file:
                found[key] = file.read().strip()
        except FileNotFoundError:
            continue
    found["out"] = json.loads(found["out"]) if found["out"] else None
    found["config"] = json.loads(texts["balancer.json"]) if "balancer.json" in texts else None
    found["files"] = {name: sha256(text) for name, text in texts.items()}
    # Enough to recognize a key by: the rule of credentials/api_keys.py.
    found["keys"] = [line[:12].decode("ascii", "replace") for line in texts.get("keys.map", b"").splitlines()]
    found["running"] = all(
        process_of(os.path.join(state, name), word)  # an absolute name stays as it is
        for name, word in (
            ("haproxy.pid", b"haproxy"),
            ("agent.pid", b"agent.py"),
            *([("router.pid", b"router.py")] if (found["config"] or {}).get("routers") else []),
            *([(f"{source.root}{KEEPALIVED_PID}", b"keepalived")] if "keepalived.conf" in texts else []),
        )
    )
    return found


def process_of(pid_file: str, word: bytes) -> bool:
    """Return whether the process of a pid file runs with `word` in its command line."""
    try:
        with open(pid_file, "rb") as file, open(f"/proc/{int(file.read())}/cmdline", "rb") as command:
            return word in command.read()
    except (OSError, ValueError):
        return False
