# SPDX-License-Identifier: Apache-2.0
"""Decide what makes automatic NUMA balancing stay on or off, now and after the next boot. Pure functions.

AMD's guides want it off on GPU hosts: the kernel unmaps pages to sample accesses, which disturbs GPU memory
access and makes RCCL's performance vary (RCCL warns about it at start).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .observe import sysctl_value

KEY = "kernel.numa_balancing"
RUNTIME = "/proc/sys/kernel/numa_balancing"
HEADER = "# Written by instinct-fleet.\n"
TURNED_OFF = "# turned off by instinct-fleet: "


class NumaError(Exception):
    """The setting cannot be made to last; the text says why and what to do."""


@dataclass(frozen=True)
class Setting:
    """One line that sets the key; `path` is the file as the boot reads it, `real` where its links lead."""

    path: str
    real: str
    line: int
    value: str


@dataclass(frozen=True)
class Edit:
    """A file's new text; `text` says what changes, for `actions`."""

    path: str
    old: str
    new: str
    text: str


@dataclass(frozen=True)
class Change:
    """What to do: files to write, then the value for the running kernel, if any.

    `file` decides at boot once the edits are made.
    """

    runtime: str | None
    edits: tuple[Edit, ...] = ()
    file: str | None = None

    @property
    def actions(self) -> tuple[str, ...]:
        """What is written, in order."""
        now = (f"write {self.runtime} > {RUNTIME}",) if self.runtime is not None else ()
        return tuple(edit.text for edit in self.edits) + now


def is_on(value: str) -> bool | None:
    """Whether a value of the key means on (1, or 2 for memory tiering); None when it is not a number."""
    return int(value) != 0 if value.isdigit() else None


def plan(
    state: Mapping[str, Any],
    settings: Sequence[Setting],
    files: Mapping[str, str],
    *,
    enabled: bool,
    persist: bool,
    sysctl_file: str,
) -> Change:
    """What to change. Raises NumaError when a file that is not ours to edit would undo it at boot.

    `state` is node_state's numa_balancing. `settings` are in the order of a boot, in which the last one wins.
    `files` holds the text of every file that `settings` names, by real path, and of `sysctl_file` if it is
    there.
    """
    if state["runtime"] is None:  # a kernel without the feature: it can never be on
        return Change(None)
    value = "1" if enabled else "0"
    runtime = value if (state["runtime"] != 0) != enabled else None
    # Nothing says anything about the next boot: what the kernel does by itself now, it will do again.
    lasting = enabled and not runtime if state["persisted"] is None else (state["persisted"] != 0) == enabled
    if not persist or lasting:
        return Change(runtime)
    edits = []
    old = files.get(sysctl_file, "")
    new = with_setting(old, f"{KEY} = {value}")
    if new != old:
        edits.append(Edit(sysctl_file, old, new, f"write {KEY} = {value} > {sysctl_file}"))
    later = [setting for setting in settings if setting.real != sysctl_file and follows(setting, sysctl_file)]
    edits += silence([setting for setting in later if is_on(setting.value) != enabled], files, sysctl_file)
    agreeing = [setting.path for setting in later if is_on(setting.value) == enabled]
    return Change(runtime, tuple(edits), agreeing[-1] if agreeing else sysctl_file)


def follows(setting: Setting, sysctl_file: str) -> bool:
    """Whether a boot applies the setting after the file.

    Names sort by their last part alone, whatever the directory; /etc/sysctl.conf comes last.
    """
    return setting.path == "/etc/sysctl.conf" or basename(setting.path) > basename(sysctl_file)


def silence(contrary: Sequence[Setting], files: Mapping[str, str], sysctl_file: str) -> list[Edit]:
    """Comment out lines that would win over ours at boot. Raises NumaError for files outside of /etc."""
    lines: dict[str, dict[int, str]] = {}
    for setting in contrary:
        if not setting.real.startswith("/etc/"):
            raise NumaError(
                f"{setting.path}, line {setting.line}, sets {KEY} = {setting.value} after {sysctl_file} at "
                "every boot, and is not ours to edit. Set sysctl_file to a name that sorts after "
                f"{basename(setting.path)}, such as /etc/sysctl.d/zz-instinct-fleet.conf."
            )
        lines.setdefault(setting.real, {})[setting.line] = setting.value
    return [comment_out(path, files[path], found) for path, found in lines.items()]


def comment_out(path: str, text: str, lines: Mapping[int, str]) -> Edit:
    """Turn lines of a file (counted from 1) into comments."""
    new = "".join(
        f"{TURNED_OFF}{line}" if number in lines else line
        for number, line in enumerate(text.splitlines(keepends=True), 1)
    )
    values = ", ".join(f"line {number} ({KEY} = {value})" for number, value in sorted(lines.items()))
    return Edit(path, text, new, f"comment out {values} in {path}")


def with_setting(text: str, line: str) -> str:
    """The file's text with this one line for the key: in place of the first one it has, or at the end."""
    kept: list[str] = []
    done = False
    for old in text.splitlines():
        if sysctl_value(old, KEY) is None:
            kept.append(old)
        elif not done:
            kept.append(line)
            done = True
    if not done:
        kept.append(line)
    return (HEADER if not text else "") + "\n".join(kept) + "\n"


def basename(path: str) -> str:
    """The last part of a path."""
    return path.rsplit("/", 1)[-1]
