# SPDX-License-Identifier: Apache-2.0
"""Take a host apart: remove what the toolkit made on it, check that it is gone, and say what stays.

Nothing is removed while a container of the toolkit runs. What other tools made has no label or marker of the toolkit,
or another path, and stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..common.module_main import NodeError
from ..docker.client import DockerClient, Json
from ..docker.containers import remove_container
from ..leases.run_lock import run_lock
from .forget_data import ForgetRequest, HostData, host_data
from .forget_parts import Part
from .forget_settings import SettingsFiles
from .prune_node import LOCK_SECONDS, LOCKS, OURS, PrunePaths, node_containers

ALIVE = ("running", "restarting", "paused")


@dataclass(frozen=True)
class ForgottenHost:
    """Where the parts of a host are; tests use other paths."""

    node: PrunePaths = field(default_factory=PrunePaths)
    settings: SettingsFiles = field(default_factory=SettingsFiles)


def converge(client: DockerClient, host: ForgottenHost, wanted: ForgetRequest, check: bool) -> dict[str, Any]:
    """Remove the toolkit's parts of a host; in check mode, only name them. Raise NodeError if any stays."""
    with contextlib.ExitStack() as held:
        for name in () if check else (*LOCKS, "model_quantize"):
            held.enter_context(run_lock(name, LOCK_SECONDS))
        alive = _alive(client)
        if alive and not check:
            raise NodeError(
                f"Nothing was removed, because these containers run: {', '.join(alive)}. forget.yml stops "
                "instances first; "
                "wait for downloads and measurements to end, or stop them (docker stop), and run it again."
            )
        parts = _parts(client, host, wanted)
        result: dict[str, Any] = {
            "changed": bool(parts),
            "actions": [part.text for part in parts],
            "left": [],
            "diff": {"before": "".join(f"{part.text}\n" for part in parts), "after": ""},
        }
        if not check:
            done = 0
            try:
                for part in parts:
                    part.remove()
                    done += 1
            except NodeError as error:
                past = {**result, **error.result, "changed": True, "actions": result["actions"][:done]}
                raise NodeError(f"{parts[done].text}: {error}", **past) from error
            still = _parts(client, host, wanted)
            if still:
                names = ", ".join(part.text for part in still)
                raise NodeError(f"These steps had no effect: {names}. Run again.", **result)
        result["left"] = [*_data(client, host, wanted).left(), *host.settings.left()]
        return result


def _parts(client: DockerClient, host: ForgottenHost, wanted: ForgetRequest) -> list[Part]:
    return [
        *_containers(client),
        *host.settings.parts(),
        *_data(client, host, wanted).parts(),
    ]


def _data(client: DockerClient, host: ForgottenHost, wanted: ForgetRequest) -> HostData:
    others = [item for item in node_containers(client) if not _ours(item)]
    return host_data(client, host.node, wanted, others)


def _ours(container: Json) -> bool:
    return any(str(label).startswith(OURS) for label in container.get("Labels") or {})


def _name(container: Json) -> str:
    names: Sequence[str] = container.get("Names") or [str(container["Id"])[:12]]
    return str(names[0]).lstrip("/")


def _alive(client: DockerClient) -> list[str]:
    return sorted(
        _name(item) for item in node_containers(client) if _ours(item) and item.get("State") in ALIVE
    )


def _containers(client: DockerClient) -> Iterator[Part]:
    for item in sorted(filter(_ours, node_containers(client)), key=_name):
        yield Part(f"remove container {_name(item)}", partial(remove_container, client, str(item["Id"])))
