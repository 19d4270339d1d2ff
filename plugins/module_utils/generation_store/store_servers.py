# SPDX-License-Identifier: Apache-2.0
"""What vllm_server takes from the generations that a node keeps, and notes in their journal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from ..common.module_main import NodeError
from ..docker.client import Json
from ..engines.names import NAME
from .store import GenerationStore, now_text


def resolve_servers(items: Iterable[Mapping[str, Any]], store: GenerationStore | None = None) -> list[Json]:
    """Return the servers; those that name a generation are read from the node's store.

    Raise NodeError for a generation that is not stored.
    """
    source = store or GenerationStore()
    return [
        {key: value for key, value in item.items() if key != "generation"}
        if item.get("generation") is None
        else source.server(item)
        for item in items
    ]


def note_servers(
    servers: Iterable[Any],
    result: Mapping[str, Any],
    removed: Iterable[str],
    store: GenerationStore | None = None,
) -> None:
    """Add journal lines for vllm_server's changes; `servers`: server.Server objects, `result`: the module's."""
    target = store or GenerationStore()
    known = {server.name: server for server in servers}
    found: dict[tuple[str, str, str], list[str]] = {}
    for outcome in result.get("servers") or ():
        if outcome["changed"] or outcome["state"] == "failed":
            one, many = VERBS.get(outcome["state"], ("failed", "failed"))
            if one == "failed":
                one = many = f"failed: {outcome.get('class')}: {outcome.get('log_line')}"
            key = (_owner(target, known[outcome["name"]]), one, many)
            found.setdefault(key, []).append(outcome["name"])
    lines = [
        f"{owner}{', '.join(names)} {one if len(names) == 1 else many}"
        for (owner, one, many), names in found.items()
    ]
    target.note([*lines, *(f"{name} removed" for name in removed)], now_text())


VERBS = {"ready": ("serves", "serve"), "started": ("starts", "start"), "stopped": ("stopped", "stopped")}


def _owner(store: GenerationStore, server: Any) -> str:
    """Return the start of a journal line: a server's deployment and, if known, its generation."""
    number = 0
    if NAME.fullmatch(server.deployment):
        with contextlib.suppress(NodeError):
            number = store.number_of(server.deployment, server.name, server.spec_hash)
    if number:
        return f"{server.deployment} generation {number}: "
    return f"{server.deployment}: " if server.deployment else ""
