# SPDX-License-Identifier: Apache-2.0
"""The next step for errors of Ansible and SSH that name none. Pure."""

from __future__ import annotations

import re

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
        "The host answers, and refuses this user's key: check ansible_user, ssh-add -l, and its authorized_keys.",
    ),
    (
        re.compile("Module result deserialization failed|Could not chdir to home directory"),
        "Something else than the module's answer came back. Mostly ansible_user has no home directory there, or its "
        "login prints text: ssh to the host with the command true must print nothing.",
    ),
)
"""The first that matches is told."""


def hint(text: str) -> str:
    """Return the next step for an error, "" where none is known."""
    return next((found for pattern, found in HINTS if pattern.search(text)), "")
