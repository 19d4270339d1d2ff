#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: automatic NUMA balancing, now and after reboot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: numa_balancing
short_description: Turn the kernel's automatic NUMA balancing off or on, now and after reboot
version_added: "0.1.0"
description:
  - Sets C(kernel.numa_balancing) in the running kernel and, for the next boots, in a file of C(sysctl.d).
  - AMD's guides recommend turning it off on hosts with Instinct GPUs.
  - If another file under C(/etc) would override it later in a boot, its line is commented out. Such a file elsewhere
    belongs to a package, so the module fails and names it.
  - Reads the written value back. On a kernel without the feature it does nothing, and RV(message) explains that.
options:
  enabled:
    description: Whether NUMA balancing should be on.
    type: bool
    default: false
  persist:
    description:
      - Whether to keep the setting over reboots.
      - Nothing is written if the next boot gives the same value anyway, by another file or by
        C(numa_balancing=disable) on the kernel command line.
    type: bool
    default: true
  sysctl_file:
    description: The file to write, in a C(sysctl.d) directory. Other lines in it are kept.
    type: path
    default: /etc/sysctl.d/60-instinct-fleet.conf
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: The kernel's value and every file.
  idempotent:
    support: full
requirements:
  - Python 3.9 on the node
  - root
seealso:
  - module: instinct.fleet.node_state
  - name: System optimization
    description: AMD's guide for hosts with Instinct GPUs.
    link: https://instinct.docs.amd.com/projects/amdgpu-docs/en/latest/system-optimization/mi300x.html
author: instinct-fleet contributors (@instinct-fleet)
"""

EXAMPLES = r"""
- name: Turn NUMA balancing off, now and after reboot
  instinct.fleet.numa_balancing:
  become: true

- name: Turn it on again
  instinct.fleet.numa_balancing:
    enabled: true
  become: true
"""

RETURN = r"""
before:
  description: The kernel's value, the value after the next boot, and the file that sets it; null for none.
  returned: success
  type: dict
  sample: {runtime: 1, persisted: null, file: null}
after:
  description: The same after the change, read back; in check mode as expected.
  returned: success
  type: dict
  sample: {runtime: 0, persisted: 0, file: /etc/sysctl.d/60-instinct-fleet.conf}
actions:
  description: Values and files written, in order; in check mode those that would be.
  returned: success
  type: list
  elements: str
  sample:
    - write kernel.numa_balancing = 0 > /etc/sysctl.d/60-instinct-fleet.conf
    - write 0 > /proc/sys/kernel/numa_balancing
message:
  description: The reason for doing nothing if the kernel has no automatic NUMA balancing.
  returned: when the kernel does not have the feature
  type: str
  sample: This kernel has no automatic NUMA balancing; nothing to do.
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.host.numa_setting import converge
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased


def argument_spec() -> dict[str, Any]:
    """Return the module's arguments, as DOCUMENTATION describes them."""
    return {
        "enabled": {"type": "bool", "default": False},
        "persist": {"type": "bool", "default": True},
        "sysctl_file": {"type": "path", "default": "/etc/sysctl.d/60-instinct-fleet.conf"},
        **LEASE_OPTION,
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, [], run_leased(module, lambda: converge(module)))


if __name__ == "__main__":
    main()
