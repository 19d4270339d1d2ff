# SPDX-License-Identifier: Apache-2.0
"""What the module kernel_cmdline does: words for the kernel's next boot, in the boot loader's configuration."""

from __future__ import annotations

import os
from typing import Any

from ..common.checked_program import run_checked
from ..common.module_main import NodeError
from ..observe import kernel_cmdline
from ..observe.audit_facts import next_boot
from ..observe.source import Source
from . import system_files
from .system_files import local, replace_text

UPDATE_SECONDS = 600  # it may look for other systems on every disk


def grub(module: Any, missing: list[str]) -> tuple[str, list[list[str]]]:
    """Return the drop-in's new text and the command that updates GRUB's configuration. Raise NodeError without GRUB."""
    program = module.get_bin_path("update-grub")
    if not program:
        raise NodeError(
            "This host has neither grubby nor update-grub, so its boot loader is not one that this module knows. "
            f"Put {' '.join(missing)} on the kernel command line by hand."
        )
    try:
        with open(local(kernel_cmdline.DROP_IN), encoding="utf-8") as stream:
            old = stream.read()
    except FileNotFoundError:
        old = ""
    have = kernel_cmdline.drop_in_words(old)
    return kernel_cmdline.drop_in([*have, *(word for word in missing if word not in have)]), [[program]]


def converge(module: Any) -> dict[str, Any]:
    """Change or predict the settings, and read them back. Return the module's result. Raise NodeError on failure."""
    wanted = module.params["words"]
    for word in wanted:
        if not kernel_cmdline.is_word(word):
            raise NodeError(f"words: {word!r} is not one parameter without white space and quotes.")
    source = Source(system_files.ROOT)
    _unused, before = next_boot(source)
    now = kernel_cmdline.words(source.text("/proc/cmdline") or "")
    missing = [word for word in wanted if word not in (before or ())]
    result: dict[str, Any] = {
        "changed": bool(missing),
        "before": None if before is None else list(before),
        "after": [*(before or ()), *missing],
        "reboot_required": not set(wanted) <= set(now),
        "actions": [],
    }
    if module._diff:
        result["diff"] = {"before": " ".join(before or ()) + "\n", "after": " ".join(result["after"]) + "\n"}
    if not missing:
        return result
    grubby = module.get_bin_path("grubby")
    text = ""
    if grubby:
        commands = [[grubby, "--update-kernel=ALL", f"--args={' '.join(missing)}"]]
    else:
        text, commands = grub(module, missing)
        result["actions"].append(f"write {' '.join(missing)} > {kernel_cmdline.DROP_IN}")
    result["actions"] += [" ".join(command) for command in commands]
    if os.geteuid() != 0:
        raise NodeError("The boot loader's configuration needs root: use become: true (-b).")
    if module.check_mode:
        return result
    if text:
        replace_text(module, kernel_cmdline.DROP_IN, text)
    for command in commands:
        try:
            run_checked(command, UPDATE_SECONDS)
        except NodeError as error:
            raise NodeError(str(error), **result) from error
    file, after = next_boot(Source(system_files.ROOT))
    if after is None or not set(wanted) <= set(after):
        lost = [word for word in wanted if word not in (after or ())]
        raise NodeError(
            f"{file or 'The boot loader'} does not have {' '.join(lost)} although {commands[-1][0]} succeeded. "
            "Check whether a later file in /etc/default/grub.d replaces GRUB_CMDLINE_LINUX.",
            **result,
        )
    return {**result, "after": list(after)}
