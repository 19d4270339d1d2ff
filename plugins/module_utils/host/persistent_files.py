# SPDX-License-Identifier: Apache-2.0
"""Files that keep a host's settings over a boot: sysctl.d, limits.d, drop-ins, and a unit for sysfs. Pure functions.

sysfs has nothing like sysctl.d, so its values are lines for systemd-tmpfiles. That runs early in a boot, when the CPU
frequency driver may not be loaded and tuned has not applied its profile; the toolkit's unit applies them again later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..observe.sysctl import Edit

TMPFILES = "/etc/tmpfiles.d/instinct-fleet.conf"
LIMITS = "/etc/security/limits.d/60-instinct-fleet.conf"
UNIT = "/etc/systemd/system/instinct-fleet-host.service"
WANTED_BY = "/etc/systemd/system/multi-user.target.wants/instinct-fleet-host.service"
DROP_IN = "/etc/systemd/system/{}.d/60-instinct-fleet.conf"
HEADER = "# Written by instinct-fleet.\n"
DOMAINS = ("*", "root")  # pam_limits: a line for * does not apply to root
UNIT_TEXT = f"""{HEADER}[Unit]
Description=Settings of this host for Instinct GPUs
After=systemd-modules-load.service systemd-udev-settle.service tuned.service cpufrequtils.service cpupower.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/systemd-tmpfiles --create {TMPFILES}

[Install]
WantedBy=multi-user.target
"""


def tmpfiles(old: str, values: Mapping[str, str]) -> str:
    """Return the file's text with a line for each path (a shell pattern) and its value."""
    return _merged(
        old, {path: f"w {path} - - - - {value}" for path, value in values.items()}, r"w\S*\s+(\S+)"
    )


def limits(old: str, values: Mapping[str, str]) -> str:
    """Return the file's text with soft and hard limits of all users."""
    lines = {f"{who} {name}": f"{who} - {name} {value}" for name, value in values.items() for who in DOMAINS}
    return _merged(old, lines, r"(\S+)\s+\S+\s+(\S+)\s+\S+\s*$")


def drop_in(old: str, values: Mapping[str, str]) -> str:
    """Return the text of a unit's drop-in with these settings of its section [Service]."""
    begin = old or f"{HEADER}[Service]\n"
    return _merged(begin, {key: f"{key}={value}" for key, value in values.items()}, r"(\w+)\s*=")


def _merged(old: str, lines: Mapping[str, str], pattern: str) -> str:
    """Return the text with these lines, each in place of its key's first line or at the end; keep all other lines."""
    left = dict(lines)
    kept = []
    for line in old.splitlines():
        match = None if line.startswith("#") else re.match(pattern, line)
        key = " ".join(match.groups()) if match else ""
        if key not in lines:
            kept.append(line)
        elif key in left:
            kept.append(left.pop(key))
    return (HEADER if not old else "") + "".join(f"{line}\n" for line in [*kept, *left.values()])


def edits(
    files: Mapping[str, str],
    sysfs: Mapping[str, str],
    wanted: Mapping[str, str],
    units: Mapping[str, Mapping[str, str]],
) -> tuple[Edit, ...]:
    """Return the edits that make values of sysfs, limits and units last. `files` has the present texts, by path."""
    texts = {}
    if sysfs:
        texts[TMPFILES] = tmpfiles(files.get(TMPFILES, ""), sysfs)
        texts[UNIT] = UNIT_TEXT
    if wanted:
        texts[LIMITS] = limits(files.get(LIMITS, ""), wanted)
    said = {
        TMPFILES: ", ".join(f"{path} = {value}" for path, value in sysfs.items()),
        UNIT: "the unit that applies them at boot",
        LIMITS: ", ".join(f"{name} = {value}" for name, value in wanted.items()),
    }
    for unit, values in units.items():
        path = DROP_IN.format(unit)
        texts[path] = drop_in(files.get(path, ""), values)
        said[path] = ", ".join(f"{name}={value}" for name, value in values.items())
    return tuple(
        Edit(path, files.get(path, ""), new, f"write {said[path]} > {path}")
        for path, new in texts.items()
        if new != files.get(path, "")
    )
