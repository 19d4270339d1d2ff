# SPDX-License-Identifier: Apache-2.0
"""Make a sysctl keep its value over a boot. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Callable

from .sysctl_files import sysctl_value

FILE = "/etc/sysctl.d/60-instinct-fleet.conf"
HEADER = "# Written by instinct-fleet.\n"
TURNED_OFF = "# turned off by instinct-fleet: "


class SysctlError(Exception):
    """The setting cannot be made permanent; the text says why and what to do."""


@dataclass(frozen=True)
class Setting:
    """One line that sets a key; `path` is the file as the boot reads it, `real` its path with links resolved."""

    path: str
    real: str
    line: int
    value: str


@dataclass(frozen=True)
class Edit:
    """A file's new text; `text` describes the change, for `actions`."""

    path: str
    old: str
    new: str
    text: str


def same(one: str, other: str) -> bool:
    """Return whether two values are equal; the amount of white space between numbers does not matter."""
    return one.split() == other.split()


def runtime_path(key: str) -> str:
    """Return the kernel's file of a key."""
    return "/proc/sys/" + key.replace(".", "/")


def keep(
    key: str,
    value: str,
    settings: Sequence[Setting],
    files: Mapping[str, str],
    sysctl_file: str = FILE,
    fits: Callable[[str], bool] | None = None,
) -> tuple[tuple[Edit, ...], str]:
    """Return edits after which a boot sets the value, and the file that then decides it.

    `settings` are those of the key in boot order; the last one wins. `files` has the text of every file that they name,
    by real path, and of `sysctl_file` if it exists. `fits` tells whether another value is as good as `value`. Raise
    SysctlError if a file that this toolkit must not edit would undo it.
    """
    good = fits or (lambda other: same(other, value))
    edits = []
    old = files.get(sysctl_file, "")
    new = with_setting(old, key, value)
    if new != old:
        edits.append(Edit(sysctl_file, old, new, f"write {key} = {value} > {sysctl_file}"))
    later = [item for item in settings if item.real != sysctl_file and follows(item, sysctl_file)]
    edits += silence(key, [item for item in later if not good(item.value)], files, sysctl_file)
    agreeing = [item.path for item in later if good(item.value)]
    return tuple(edits), agreeing[-1] if agreeing else sysctl_file


def follows(setting: Setting, sysctl_file: str) -> bool:
    """Return whether a boot applies the setting after the file.

    Names sort by their last part alone, in whatever directory; /etc/sysctl.conf comes last.
    """
    return setting.path == "/etc/sysctl.conf" or basename(setting.path) > basename(sysctl_file)


def silence(key: str, contrary: Sequence[Setting], files: Mapping[str, str], sysctl_file: str) -> list[Edit]:
    """Comment out lines that would override ours at boot. Raise SysctlError for files outside /etc."""
    lines: dict[str, dict[int, str]] = {}
    for setting in contrary:
        if not setting.real.startswith("/etc/"):
            raise SysctlError(
                f"{setting.path}, line {setting.line}, sets {key} = {setting.value} after {sysctl_file} at "
                "every boot, and is not ours to edit. Set sysctl_file to a name that sorts after "
                f"{basename(setting.path)}, such as /etc/sysctl.d/zz-instinct-fleet.conf."
            )
        lines.setdefault(setting.real, {})[setting.line] = setting.value
    return [comment_out(key, path, files[path], found) for path, found in lines.items()]


def comment_out(key: str, path: str, text: str, lines: Mapping[int, str]) -> Edit:
    """Comment out lines of a file (counted from 1)."""
    new = "".join(
        f"{TURNED_OFF}{line}" if number in lines else line
        for number, line in enumerate(text.splitlines(keepends=True), 1)
    )
    values = ", ".join(f"line {number} ({key} = {value})" for number, value in sorted(lines.items()))
    return Edit(path, text, new, f"comment out {values} in {path}")


def with_setting(text: str, key: str, value: str) -> str:
    """Return the file's text with one line for the key, in place of its first one or at the end."""
    line = f"{key} = {value}"
    kept: list[str] = []
    done = False
    for old in text.splitlines():
        if sysctl_value(old, key) is None:
            kept.append(old)
        elif not done:
            kept.append(line)
            done = True
    if not done:
        kept.append(line)
    return (HEADER if not text else "") + "\n".join(kept) + "\n"


def basename(path: str) -> str:
    """Return the last part of a path."""
    return path.rsplit("/", 1)[-1]
