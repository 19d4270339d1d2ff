# SPDX-License-Identifier: Apache-2.0
"""What the module host_settings does: values of the running kernel, and the files that set them at the next boot."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..common.checked_program import run_checked
from ..common.module_main import NodeError
from ..observe.audit_facts import selected_word
from ..observe.source import Source
from ..observe.sysctl import FILE, Edit, SysctlError, keep, runtime_path, same
from . import persistent_files, system_files
from .sysctl_settings import resolved_settings
from .system_files import local, replace_text

RELOAD_SECONDS = 90


@dataclass(frozen=True)
class SettingWrite:
    """A value for files of the kernel that have another one; `name` is the pattern that matched them."""

    name: str
    value: str
    files: tuple[str, ...]
    old: str

    @property
    def text(self) -> str:
        """Return the text for `actions`."""
        more = f" ({len(self.files)} files)" if len(self.files) > 1 else ""
        return f"write {self.value} > {self.name}{more}"


def text_of(path: str) -> str:
    """Return a file's text; empty if it does not exist."""
    try:
        with open(local(path), encoding="utf-8", errors="surrogateescape") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def value_of(path: str) -> str:
    """Return the value in a file of the kernel. Raise NodeError if it cannot be read."""
    try:
        return selected_word(text_of(path).strip()) or ""
    except OSError as error:
        raise NodeError(f"{path} cannot be read: {error.strerror}.") from None


def writes(sysctl: Mapping[str, str], sysfs: Mapping[str, str]) -> list[SettingWrite]:
    """Return the files of the kernel whose value differs. Raise NodeError for an unknown sysctl or file."""
    found = []
    for key, value in sysctl.items():
        path = runtime_path(key)
        if not os.path.exists(local(path)):
            raise NodeError(f"This kernel has no sysctl {key}.")
        old = value_of(path)
        if not same(old, value):
            found.append(SettingWrite(path, value, (path,), old))
    for pattern, value in sysfs.items():
        files = sorted("/" + os.path.relpath(file, local("/")) for file in glob.glob(local(pattern)))
        if not files:
            raise NodeError(f"No file on this host matches {pattern}.")
        olds = {file: value_of(file) for file in files}
        wrong = tuple(file for file, old in olds.items() if old != value)
        if wrong:
            found.append(
                SettingWrite(pattern, value, wrong, ", ".join(sorted({olds[file] for file in wrong})))
            )
    return found


def sysctl_edits(sysctl: Mapping[str, str]) -> list[Edit]:
    """Return the edits that keep sysctls over a boot. Raise NodeError if a package's file would override one."""
    source = Source(system_files.ROOT)
    found: dict[str, Edit] = {}
    for key, value in sysctl.items():
        settings = resolved_settings(source, key)
        if settings and same(settings[-1].value, value):
            continue
        files = {path: text_of(path) for path in {FILE, *(setting.real for setting in settings)}}
        files.update({path: edit.new for path, edit in found.items()})
        try:
            edits, _unused = keep(key, value, settings, files)
        except SysctlError as error:
            raise NodeError(str(error)) from None
        for edit in edits:
            before = found.get(edit.path)
            said = f"{before.text}; {edit.text}" if before else edit.text
            found[edit.path] = Edit(edit.path, before.old if before else edit.old, edit.new, said)
    return list(found.values())


def apply(module: Any, edits: list[Edit], changed: list[SettingWrite], link: bool) -> None:
    """Write the files first, then the kernel's values: after a crash in between, a boot completes the change."""
    for edit in edits:
        replace_text(module, edit.path, edit.new)
    if link:
        os.makedirs(os.path.dirname(local(persistent_files.WANTED_BY)), mode=0o755, exist_ok=True)
        os.symlink(persistent_files.UNIT, local(persistent_files.WANTED_BY))
    if os.path.isdir(local("/run/systemd/system")) and any(
        edit.path.startswith("/etc/systemd/system/") for edit in edits
    ):
        run_checked(["systemctl", "daemon-reload"], RELOAD_SECONDS)
    for write in changed:
        for file in write.files:
            with open(local(file), "w", encoding="ascii") as stream:
                stream.write(f"{write.value}\n")


def diff(edits: list[Edit], changed: list[SettingWrite]) -> list[dict[str, str]]:
    """Return files and values before and after."""
    found = [(edit.path, edit.old, edit.new) for edit in edits]
    found += [(write.name, f"{write.old}\n", f"{write.value}\n") for write in changed]
    return [
        {"before_header": name, "before": old, "after_header": name, "after": new} for name, old, new in found
    ]


def converge(module: Any) -> dict[str, Any]:
    """Change or predict the settings, and read them back. Return the module's result. Raise NodeError on failure."""
    sysctl, sysfs, limits = (
        {str(key): str(value) for key, value in module.params[name].items()}
        for name in ("sysctl", "sysfs", "limits")
    )
    for path in sysfs:
        if not path.startswith("/sys/") or ".." in path:
            raise NodeError(f"sysfs: {path} is not a file below /sys.")
    changed = writes(sysctl, sysfs)
    units = {
        str(unit): {str(name): str(value) for name, value in values.items()}
        for unit, values in module.params["units"].items()
    }
    for unit in units:
        if not re.fullmatch(r"[\w@.-]+\.service", unit, re.ASCII):
            raise NodeError(f"units: {unit} is not the name of a service, such as docker.service.")
    files = {
        path: text_of(path)
        for path in (
            persistent_files.TMPFILES,
            persistent_files.UNIT,
            persistent_files.LIMITS,
            *map(persistent_files.DROP_IN.format, units),
        )
    }
    edits = sysctl_edits(sysctl) + list(persistent_files.edits(files, sysfs, limits, units))
    link = bool(sysfs) and not os.path.lexists(local(persistent_files.WANTED_BY))
    actions = [edit.text for edit in edits] + ([f"link {persistent_files.WANTED_BY}"] if link else [])
    actions += [write.text for write in changed]
    result: dict[str, Any] = {"changed": bool(actions), "actions": actions}
    if module._diff:
        result["diff"] = diff(edits, changed)
    if actions and os.geteuid() != 0:
        raise NodeError("Settings of a host need root: use become: true (-b).")
    if module.check_mode or not actions:
        return result
    try:
        apply(module, edits, changed, link)
    except OSError as error:
        raise NodeError(
            f"Cannot write {error.filename or 'a file'}: {error.strerror or error}.", **result
        ) from None
    left = writes(sysctl, sysfs)
    if left:
        raise NodeError(
            f"{left[0].name} reads back as {left[0].old} instead of {left[0].value}. Something else on "
            "this host sets it.",
            **result,
        )
    return result
