# SPDX-License-Identifier: Apache-2.0
"""Watch instances for a while: check that they keep running, without a restart of container or engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..common import paths
from ..common.abandoned import leave_if_abandoned
from ..common.module_main import NodeError
from ..docker.client import DockerClient, Json
from ..observe.supervisor_file import supervisor_file

POLL_SECONDS = 1.0
ENDED = "ended"
"""The class of an instance that ended without a failure on record."""
NOT_BY_ITSELF = ("absent", "paused")
"""States that no instance enters by itself."""


def watch(
    client: DockerClient, names: Sequence[str], seconds: float, sleep: Callable[[float], None] = time.sleep
) -> dict[str, Any]:
    """Watch the instances for `seconds`. Raise NodeError as soon as one does not run, or was restarted."""
    first = {name: _seen(client, name) for name in names}
    end = time.monotonic() + seconds
    while True:
        leave_if_abandoned()
        wrong = {name: found for name in names if (found := _wrong(name, first[name], _seen(client, name)))}
        if wrong:
            servers = [{"name": name, "class": kind} for name, (kind, _unused) in wrong.items()]
            text = "; ".join(text for _unused, text in wrong.values())
            raise NodeError(text, changed=False, servers=servers)
        left = end - time.monotonic()
        if left <= 0:
            return {"changed": False, "seconds": round(seconds, 1), "servers": list(names)}
        sleep(min(POLL_SECONDS, left))


def _seen(client: DockerClient, name: str) -> Json:
    """Return the facts that distinguish one run of an instance from the next."""
    container = client.container(paths.container_name(name))
    if container is None:
        return {"status": "absent"}
    supervisor = supervisor_record(name)
    failures = supervisor.get("failures") or []
    return {
        "status": str(container["State"]["Status"]),
        "started": str(container["State"].get("StartedAt") or ""),
        "code": container["State"].get("ExitCode"),
        "supervisor": str(supervisor.get("state") or ""),
        "failures": failures,
    }


def supervisor_record(name: str) -> Json:
    """Return the record of the instance's supervisor; {} if there is none."""
    return supervisor_file(paths.cache_dir(name)) or {}


def _wrong(name: str, first: Json, now: Json) -> tuple[str, str] | None:
    """Return the kind of what is wrong with an instance, and a text; None if nothing is."""
    if now["status"] in NOT_BY_ITSELF:
        return "removed", f"{name} no longer runs: its container is {now['status']}"
    new = now["failures"] != first.get("failures")
    kind = str(_last(now).get("kind") or ENDED) if new else ENDED
    if now["status"] != "running":
        code = f" with code {now['code']}" if now["status"] == "exited" else ""
        return kind, f"{name} no longer runs: its container is {now['status']}{code}{_why(now)}"
    if now["started"] != first.get("started"):
        return kind, f"{name} was restarted while it was watched{_why(now)}"
    if new or now["supervisor"] == "gave_up":
        return kind, f"{name}: its vLLM ended while it was watched{_why(now)}"
    return None


def _why(now: Json) -> str:
    """Return the last failure recorded by the supervisor."""
    last = _last(now)
    return f" ({last.get('kind')}: {last.get('line')} | {last.get('next_step')})" if last else ""


def _last(now: Json) -> Json:
    return dict((now.get("failures") or [{}])[-1])
