#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: add words to the kernel's command line, from the next boot on."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_cmdline
short_description: Add words to the kernel command line from the next boot on
version_added: "0.1.0"
description:
  - Adds parameters to the kernel's command line in the boot loader's configuration. They take effect at the next
    boot; this module does not reboot.
  - On systems with C(grubby) (RHEL and its relatives) it uses that, for every kernel. On Debian and Ubuntu it uses a
    file in C(/etc/default/grub.d) and C(update-grub), and does not touch C(/etc/default/grub).
  - Reads the boot loader's configuration back. Parameters that are already set, even by another file, are not added
    again; C(pci=a,b) counts as C(pci=a) and C(pci=b).
options:
  words:
    description: Parameters such as C(iommu=pt). Without white space or quotes.
    type: list
    elements: str
    required: true
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: The command line of the next boot.
  idempotent:
    support: full
requirements:
  - Python 3.9 on the node
  - root
seealso:
  - module: instinct.fleet.host_settings
author: instinct-fleet contributors (@instinct-fleet)
"""

EXAMPLES = r"""
- name: Let the GPUs pass the IOMMU from the next boot on
  instinct.fleet.kernel_cmdline:
    words: [pci=realloc=off, pci=bfsort, iommu=pt]
  become: true
"""

RETURN = r"""
before:
  description: Words of the next boot before the change; null if the configuration could not be read.
  returned: success
  type: list
  elements: str
after:
  description: Words of the next boot after the change, read back; in check mode as expected.
  returned: success
  type: list
  elements: str
reboot_required:
  description: Whether a word is missing on the command line of the running kernel.
  returned: success
  type: bool
actions:
  description: Files written and commands run, in order; in check mode those that would be.
  returned: success
  type: list
  elements: str
  sample: ["write iommu=pt > /etc/default/grub.d/60-instinct-fleet.cfg", update-grub]
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.checked_program import run_checked
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError, finish
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, leased
from ansible_collections.instinct.fleet.plugins.module_utils.observe import kernel_cmdline
from ansible_collections.instinct.fleet.plugins.module_utils.observe.audit_facts import next_boot
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source

ROOT = "/"
UPDATE_SECONDS = 600  # it may look for other systems on every disk


def argument_spec() -> dict[str, Any]:
    """Return the module's arguments, as DOCUMENTATION describes them."""
    return {"words": {"type": "list", "elements": "str", "required": True}, **LEASE_OPTION}


def drop_in_path() -> str:
    """Return the path at which this process sees the toolkit's drop-in."""
    return ROOT.rstrip("/") + kernel_cmdline.DROP_IN


def grub(module: AnsibleModule, missing: list[str]) -> tuple[str, list[list[str]]]:
    """Return the drop-in's new text and the command that updates GRUB's configuration. Raise NodeError without GRUB."""
    program = module.get_bin_path("update-grub")
    if not program:
        raise NodeError(
            "This host has neither grubby nor update-grub, so its boot loader is not one that this module knows. "
            f"Put {' '.join(missing)} on the kernel command line by hand."
        )
    try:
        with open(drop_in_path(), encoding="utf-8") as stream:
            old = stream.read()
    except FileNotFoundError:
        old = ""
    have = kernel_cmdline.drop_in_words(old)
    return kernel_cmdline.drop_in([*have, *(word for word in missing if word not in have)]), [[program]]


def write(module: AnsibleModule, text: str) -> None:
    """Write the drop-in atomically."""
    temporary = os.path.join(module.tmpdir, "kernel_cmdline")
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(temporary, 0o644)
    os.makedirs(os.path.dirname(drop_in_path()), mode=0o755, exist_ok=True)
    module.atomic_move(temporary, drop_in_path())


def work(module: AnsibleModule) -> dict[str, Any]:
    """Change or predict the settings, and read them back. Return the module's result. Raise NodeError on failure."""
    wanted = module.params["words"]
    for word in wanted:
        if not kernel_cmdline.is_word(word):
            raise NodeError(f"words: {word!r} is not one parameter without white space and quotes.")
    source = Source(ROOT)
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
        write(module, text)
    for command in commands:
        try:
            run_checked(command, UPDATE_SECONDS)
        except NodeError as error:
            raise NodeError(str(error), **result) from error
    file, after = next_boot(Source(ROOT))
    if after is None or not set(wanted) <= set(after):
        lost = [word for word in wanted if word not in (after or ())]
        raise NodeError(
            f"{file or 'The boot loader'} does not have {' '.join(lost)} although {commands[-1][0]} succeeded. "
            "Check whether a later file in /etc/default/grub.d replaces GRUB_CMDLINE_LINUX.",
            **result,
        )
    return {**result, "after": list(after)}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, [], leased(module, lambda: work(module)))


if __name__ == "__main__":
    main()
