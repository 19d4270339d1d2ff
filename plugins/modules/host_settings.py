#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: settings of the running kernel and of logins, now and after every boot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_settings
short_description: Set sysctls, files of sysfs, limits and settings of units, now and after every boot
version_added: "0.1.0"
description:
  - Sets values in the running kernel, and writes the files that set them again at boot - one in C(sysctl.d), one in
    C(tmpfiles.d) with a unit that applies it late in the boot, one in C(limits.d), and a drop-in of each unit. Other
    lines in these files are kept.
  - If another file under C(/etc) would override a sysctl later in a boot, its line is commented out. Such a file
    elsewhere belongs to a package, so the module fails and names it.
  - Reads the written values back.
options:
  sysctl:
    description: Values by key.
    type: dict
    default: {}
  sysfs:
    description: Values by file below C(/sys); C(*) in a name matches any CPU or device.
    type: dict
    default: {}
  limits:
    description: Soft and hard limits of every user, root included, by their names in C(limits.conf). For new logins.
    type: dict
    default: {}
  units:
    description: Settings of the section C([Service]) by systemd unit and name. They hold at once; the unit is not
      restarted.
    type: dict
    default: {}
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: Values and files.
  idempotent:
    support: full
requirements:
  - Python 3.9 on the node
  - root
  - systemd, to keep values of sysfs over a reboot
seealso:
  - module: instinct.fleet.kernel_cmdline
  - module: instinct.fleet.numa_balancing
author: instinct-fleet contributors (@instinct-fleet)
"""

EXAMPLES = r"""
- name: Keep the CPUs awake and their clock high
  instinct.fleet.host_settings:
    sysfs:
      /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor: performance
      /sys/devices/system/cpu/cpu*/cpuidle/state2/disable: "1"
    limits:
      memlock: unlimited
  become: true
"""

RETURN = r"""
actions:
  description: Values and files written, in order; in check mode those that would be.
  returned: success
  type: list
  elements: str
  sample: ["write performance > /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor (384 files)"]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.host.kernel_settings import converge
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased


def argument_spec() -> dict[str, Any]:
    """Return the module's arguments, as DOCUMENTATION describes them."""
    names = ("sysctl", "sysfs", "limits", "units")
    return {**{name: {"type": "dict", "default": {}} for name in names}, **LEASE_OPTION}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, [], run_leased(module, lambda: converge(module)))


if __name__ == "__main__":
    main()
