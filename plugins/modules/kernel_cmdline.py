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

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.host.boot_loader import converge
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased


def argument_spec() -> dict[str, Any]:
    """Return the module's arguments, as DOCUMENTATION describes them."""
    return {"words": {"type": "list", "elements": "str", "required": True}, **LEASE_OPTION}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, [], run_leased(module, lambda: converge(module)))


if __name__ == "__main__":
    main()
