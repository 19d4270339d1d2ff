# SPDX-License-Identifier: Apache-2.0
"""The hours in which hosts may pull images and download weights. Pure: the caller has the time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

VARIABLE = "fetch_window"
NOW = "fetch_now"
EXAMPLE = '"22:00-06:00", or with a time zone "22:00-06:00 Europe/Berlin"'
_FORM = re.compile(
    r"([01]?\d|2[0-3]):([0-5]\d)\s*-\s*([01]?\d|2[0-3]|24):([0-5]\d)(?:\s+([A-Za-z0-9_+/-]+))?"
)


@dataclass(frozen=True)
class FetchWindow:
    """From `begin` until just before `end` every day, in local time of a zone; past midnight if `end` is earlier."""

    begin: time
    end: time
    zone: str

    @property
    def text(self) -> str:
        """Return it in the form of the inventory."""
        return f"{self.begin:%H:%M}-{self.end:%H:%M} {self.zone}"

    def contains(self, now: datetime) -> bool:
        """Return whether the local time of the zone is within the window. now: with a time zone."""
        clock = now.astimezone(ZoneInfo(self.zone)).time()
        if self.begin < self.end:
            return self.begin <= clock < self.end
        return clock >= self.begin or clock < self.end

    def opens(self, now: datetime) -> datetime:
        """Return when it begins next, in local time of the zone; at the end of an hour that clocks skip."""
        zone = ZoneInfo(self.zone)
        local = now.astimezone(zone)
        for days in range(3):
            day = local.date() + timedelta(days=days)
            # Through UTC: a local time that does not exist becomes the one that clocks show then.
            found = datetime.combine(day, self.begin, zone).astimezone(UTC).astimezone(zone)
            if found > local:
                return found
        raise AssertionError("a day begins within three")  # pragma: no cover


def parse_window(text: str) -> FetchWindow | None:
    """Return the window that a text describes; None for other text, an unknown time zone, or an empty window."""
    found = _FORM.fullmatch(text.strip())
    if not found:
        return None
    hours, minutes, end_hours, end_minutes, zone = found.groups()
    whole_day = int(end_hours) == 24
    if whole_day and end_minutes != "00":
        return None
    begin, end = time(int(hours), int(minutes)), time(0 if whole_day else int(end_hours), int(end_minutes))
    if begin == end:
        return None
    try:
        ZoneInfo(zone or "UTC")
    except (KeyError, ValueError, OSError):
        return None
    return FetchWindow(begin, end, zone or "UTC")
