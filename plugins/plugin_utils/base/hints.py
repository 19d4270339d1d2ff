# SPDX-License-Identifier: Apache-2.0
"""The next step for errors of Ansible and SSH that name none. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ROOT = "Ansible becomes root there by sudo: "
HINTS = (
    (
        re.compile("sudo: (command )?not found|sudo: No such file"),
        ROOT + "install it, or set ansible_user to root.",
    ),
    (
        re.compile(
            "(?i)(missing|incorrect) sudo password|sudo: a password is required|waiting for become success"
        ),
        ROOT + "add -K to be asked for its password, or allow the user sudo without one (NOPASSWD).",
    ),
    (
        re.compile("Permission denied \\(([a-z-]+,)*(publickey|password)"),
        "The host answers, but refuses this user's key: check ansible_user, ssh-add -l, and its authorized_keys.",
    ),
    (
        re.compile("Module result deserialization failed|Could not chdir to home directory"),
        "The host did not return the module's answer. Usually ansible_user has no home directory there, or its "
        "login prints text: ssh to the host with the command true must print nothing.",
    ),
)
"""The first one that matches is printed."""

NO_ROOM = re.compile("No usable temporary directory|\\[Errno 28\\]|No space left on device")
NO_ANSWER = "Module result deserialization failed"


def failed_item(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first failed item of a loop's result, which says why; the result itself where there is none."""
    # Not every module has the items of a loop under this name: dnf has lines of text there.
    items = result.get("results")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, Mapping) and item.get("failed"):
            return item
    return result


def cause(result: Mapping[str, Any]) -> str:
    """Return why a module could not begin on a host, if its output shows it; "" if it began, or the reason is another.

    On a full disk there is no space for Ansible's module, and only a Python traceback comes back.
    """
    if not str(result.get("msg") or "").removeprefix("Task failed: ").startswith(NO_ANSWER):
        return ""
    said = "\n".join(
        str(result.get(key) or "") for key in ("module_stderr", "module_stdout", "stderr", "exception")
    )
    if not NO_ROOM.search(said):
        return ""
    return (
        "No space left on this host's disk, not even for Ansible's module in /tmp. Free some (df -h says where), and "
        "run the same command again."
    )


def hint(text: str) -> str:
    """Return the next step for an error, "" where none is known."""
    return next((found for pattern, found in HINTS if pattern.search(text)), "")
