# SPDX-License-Identifier: Apache-2.0
"""Say how many hosts may download from a hub at once, so that they stay within its limit of requests. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ..changes.actions import ModelStep

PUBLIC = "huggingface.co"
"""The host of an empty endpoint."""


@dataclass(frozen=True)
class HubLoad:
    """What a plan asks of a hub. at_once: hosts that may download at the same time; 0 for all of them."""

    hub: str
    requests: int
    hosts: int
    limit: int
    window: int
    at_once: int

    @property
    def warning(self) -> str:
        """Return what is done about it; "" if nothing is."""
        if not self.at_once:
            return ""
        hosts = "host downloads" if self.at_once == 1 else "hosts download"
        return (
            f"{self.hosts} hosts need {self.requests:,} requests for files of {self.hub}, which answers {self.limit:,} "
            f"in {self.window // 60} minutes to one address without an account: {self.at_once} {hosts} at a time. A "
            "mirror (hf_model_endpoint) has no such limit"
        )


def hub_load(models: Iterable[Iterable[ModelStep]], data: Mapping[str, Any]) -> HubLoad | None:
    """Return what the hosts' downloads ask of the first hub with a known limit; None if they ask none.

    models: of each host. Hosts may share an address, and the limit without an account is the lowest.
    """
    for hub in data["hubs"]:
        asked = [
            sum(len(step.files) for step in steps if not step.verify and _host(step.endpoint) in hub["hosts"])
            for steps in models
        ]
        busy = [count * hub["per_file"] for count in asked if count]
        if not busy:
            continue
        limit = hub["downloads"]["anonymous"]
        at_once = 0 if sum(busy) <= limit else max(1, limit // max(busy))
        return HubLoad(hub["hosts"][0], sum(busy), len(busy), limit, hub["window"], at_once)
    return None


def _host(endpoint: str) -> str:
    return (urlsplit(endpoint).hostname or "") if endpoint else PUBLIC
