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


def watch(
    client: DockerClient, names: Sequence[str], seconds: float, sleep: Callable[[float], None] = time.sleep
) -> dict[str, Any]:
    """Watch the instances for `seconds`. Raise NodeError as soon as one does not run, or was restarted."""
    first = {name: _seen(client, name) for name in names}
    end = time.monotonic() + seconds
    while True:
        leave_if_abandoned()
        wrong = [text for name in names for text in [_wrong(name, first[name], _seen(client, name))] if text]
        if wrong:
            raise NodeError("; ".join(wrong), changed=False)
        left = end - time.monotonic()
        if left <= 0:
            return {"changed": False, "seconds": round(seconds, 1), "servers": list(names)}
        sleep(min(POLL_SECONDS, left))


def _seen(client: DockerClient, name: str) -> Json:
    """Return the facts that distinguish one run of an instance from the next."""
    container = client.container(paths.container_name(name))
    if container is None:
        return {"status": "absent"}
    supervisor = supervised(name)
    failures = supervisor.get("failures") or []
    return {
        "status": str(container["State"]["Status"]),
        "started": str(container["State"].get("StartedAt") or ""),
        "code": container["State"].get("ExitCode"),
        "supervisor": str(supervisor.get("state") or ""),
        "failures": failures,
    }


def supervised(name: str) -> Json:
    """Return the record of the instance's supervisor; {} if there is none."""
    return supervisor_file(paths.cache_dir(name)) or {}


def _wrong(name: str, first: Json, now: Json) -> str:
    if now["status"] != "running":
        code = f" with code {now['code']}" if now["status"] == "exited" else ""
        return f"{name} does not run any more: its container is {now['status']}{code}{_why(now)}"
    if now["started"] != first.get("started"):
        return f"{name} was restarted while it was watched{_why(now)}"
    if now["failures"] != first.get("failures") or now["supervisor"] == "gave_up":
        return f"{name}: its vLLM ended while it was watched{_why(now)}"
    return ""


def _why(now: Json) -> str:
    """Return the last failure recorded by the supervisor."""
    failures = now.get("failures") or []
    if not failures:
        return ""
    last = failures[-1]
    return f" ({last.get('kind')}: {last.get('line')} | {last.get('next_step')})"
