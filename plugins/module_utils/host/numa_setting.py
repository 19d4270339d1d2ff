# SPDX-License-Identifier: Apache-2.0
"""What the module numa_balancing does: the kernel's automatic NUMA balancing, now and after the next boot."""

from __future__ import annotations

import os
from typing import Any

from ..common.module_main import NodeError
from ..observe.source import Source
from ..observe.sysctl import SysctlError
from ..observe.sysctl_files import SYSCTL_DIRS, read_numa_balancing
from . import numa, system_files
from .sysctl_settings import resolved_settings
from .system_files import local, replace_text


def read(source: Source) -> dict[str, Any]:
    """Return the setting now and after the next boot."""
    return read_numa_balancing(source, (source.text("/proc/cmdline") or "").split())


def make_change(params: dict[str, Any], source: Source) -> numa.Change:
    """Read the files and decide on the change. Raise NodeError if it is impossible."""
    path = params["sysctl_file"]
    if os.path.dirname(path) not in SYSCTL_DIRS or not path.endswith(".conf"):
        raise NodeError(
            f"sysctl_file: {path} is not read at boot. It must end in .conf and be in one of "
            f"{', '.join(SYSCTL_DIRS)}."
        )
    settings = resolved_settings(source, numa.KEY)
    files = {}
    for file in {path, *(setting.real for setting in settings)}:
        if os.path.exists(local(file)):
            with open(local(file), encoding="utf-8", errors="surrogateescape") as stream:
                files[file] = stream.read()
    wanted = {"enabled": params["enabled"], "persist": params["persist"], "sysctl_file": path}
    try:
        return numa.plan(read(source), settings, files, **wanted)
    except SysctlError as error:
        raise NodeError(str(error)) from None


def apply(module: Any, change: numa.Change) -> None:
    """Write the files, then the kernel's value: after a crash in between, a boot completes the change."""
    for edit in change.edits:
        replace_text(module, edit.path, edit.new)
    if change.runtime is not None:
        with open(local(numa.RUNTIME), "w", encoding="ascii") as stream:
            stream.write(change.runtime + "\n")


def diff(change: numa.Change, before: dict[str, Any]) -> list[dict[str, str]]:
    """Return the kernel's value and every file before and after."""
    entries = [
        {"before_header": edit.path, "before": edit.old, "after_header": edit.path, "after": edit.new}
        for edit in change.edits
    ]
    if change.runtime is not None:
        old, new, header = f"{before['runtime']}\n", f"{change.runtime}\n", numa.RUNTIME
        entries.append({"before_header": header, "before": old, "after_header": header, "after": new})
    return entries


def converge(module: Any) -> dict[str, Any]:
    """Change or predict the settings, and read them back. Return the module's result. Raise NodeError on failure."""
    source = Source(system_files.ROOT)
    params = module.params
    before = read(source)
    change = make_change(params, source)
    actions = list(change.actions)
    result: dict[str, Any] = {"changed": bool(actions), "before": before, "actions": actions}
    if module._diff:
        result["diff"] = diff(change, before)
    if before["runtime"] is None:
        result["message"] = "This kernel has no automatic NUMA balancing; nothing to do."
    if actions and os.geteuid() != 0:
        raise NodeError("Setting kernel.numa_balancing needs root: use become: true (-b).")
    if module.check_mode:
        return {**result, "after": predict_state(before, change, params)}
    try:
        apply(module, change)
    except OSError as error:
        raise NodeError(
            f"Cannot write {error.filename or 'a file'}: {error.strerror or error}.", **result
        ) from None
    after = result["after"] = read(source)
    now, boot = after["runtime"], after["persisted"]
    wrong = now is not None and (now != 0) != params["enabled"]
    if wrong or (params["persist"] and change.edits and (boot is None or (boot != 0) != params["enabled"])):
        raise NodeError(
            f"kernel.numa_balancing does not read back as written: now {now}, after a boot {boot} by "
            f"{after['file']}. Something else on this host sets it.",
            **result,
        )
    return result


def predict_state(before: dict[str, Any], change: numa.Change, params: dict[str, Any]) -> dict[str, Any]:
    """Return the state that reading back will show."""
    after = dict(before)
    if change.runtime is not None:
        after["runtime"] = int(change.runtime)
    if change.edits:
        after.update(persisted=int(params["enabled"]), file=change.file)
    return after
