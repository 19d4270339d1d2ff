# SPDX-License-Identifier: Apache-2.0
"""Check whether the fetches of a plan may begin now, and which of them would fail through a proxy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import urlsplit

from ....module_utils.common.errors import Problem
from ....module_utils.content.image_names import mirror_ref
from ....module_utils.content.image_ref import parse_ref
from ..desired.fetch_window import NOW, VARIABLE, FetchWindow
from ..desired.fleet import Host
from ..desired.no_proxy import behind_proxy, host_of
from .host_plan import FleetPlan


def outside_window(plan: FleetPlan, now: datetime) -> tuple[Problem, ...]:
    """Return a problem for each window with the hosts that would fetch outside it."""
    # What waits for an image whose software must be read first is only among the downloads.
    downloading = {name for item in plan.downloads for name in item.hosts}
    found: dict[FetchWindow, list[str]] = {}
    for host in plan.hosts:
        name, settings = host.host.name, host.host.settings
        # An image that is present is only probed, and one that is built fetches as much as one that is pulled.
        pulling = any(item.kind == "image" and item.before != "present" for item in host.actions)
        window = None if settings.fetch_now or settings.air_gap else settings.window
        if window and (pulling or name in downloading) and not window.contains(now):
            found.setdefault(window, []).append(name)
    return tuple(_problem(window, names, now) for window, names in found.items())


def _problem(window: FetchWindow, names: Sequence[str], now: datetime) -> Problem:
    opens = window.opens(now)
    what = f"images or weights must be fetched, but it is outside the window {window.text}."
    fix = f"It begins {opens:%Y-%m-%d %H:%M} {window.zone}; to fetch now, add -e {NOW}=true."
    return Problem((VARIABLE,), what, fix, tuple(names))


def proxy_warnings(host: Host) -> tuple[str, ...]:
    """Return a warning about servers of the own network that a host would try to reach through its proxy."""
    settings = host.settings
    if settings.no_proxy is None or settings.air_gap:
        return ()
    images = (parse_ref(item.image) for item in host.deployments if item.image)
    places = [host_of(mirror_ref(ref, settings.overrides).registry) for ref in images]
    places.append(urlsplit(settings.endpoint).hostname or "")
    missing = behind_proxy(places, settings.no_proxy)
    if not missing:
        return ()
    line = ",".join(filter(None, (settings.no_proxy, *missing)))
    return (
        f"{', '.join(missing)} would be reached through the proxy of instinct_proxy: set its no_proxy to {line!r}, and "
        "set the same for Docker if the toolkit did not install it",
    )
