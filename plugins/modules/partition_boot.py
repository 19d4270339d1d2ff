#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: keep the partition modes of GPUs over reboots."""

from __future__ import annotations

DOCUMENTATION = r"""
module: partition_boot
short_description: Keep the partition modes of AMD Instinct GPUs over reboots
version_added: "0.1.0"
description:
  - The driver forgets compute partition modes at a reboot, and Docker does not start containers whose devices are
    missing. This installs a oneshot unit, C(instinct-partition.service), which runs before C(docker.service) and sets
    the modes again with the transaction of M(instinct.fleet.rocm_partition). The unit logs its actions to the journal,
    does nothing if the modes are correct, and delays Docker by five minutes at most.
  - If the modes are the driver's defaults (V(SPX), V(NPS1)), the unit is removed.
options:
  compute:
    description: The compute mode to keep. Default is the present mode of each GPU.
    type: str
    choices: [SPX, DPX, TPX, QPX, CPX]
  memory:
    description: The memory mode to keep. Default is the present mode of the GPUs.
    type: str
    choices: [NPS1, NPS2, NPS4]
  program:
    description: The program that sets the modes at boot. The module's action plugin sets it; leave it out.
    type: str
    default: ""
extends_documentation_fragment:
  - instinct.fleet.attributes
  - instinct.fleet.lease
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: The unit and the recorded modes.
  idempotent:
    support: full
requirements:
  - Python 3.9 on the node
  - root
  - systemd
seealso:
  - module: instinct.fleet.rocm_partition
author: instinct-fleet contributors (@instinct-fleet)
"""

EXAMPLES = r"""
- name: Keep the modes that rocm_partition has set
  instinct.fleet.partition_boot:
    compute: CPX
    memory: NPS4
  become: true
"""

RETURN = r"""
actions:
  description: Files written, linked or removed; in check mode those that would be.
  returned: success
  type: list
  elements: str
  sample: [write /etc/systemd/system/instinct-partition.service]
"""

import base64
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.checked_program import run_checked
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import LEASE_OPTION, run_leased
from ansible_collections.instinct.fleet.plugins.module_utils.partition.boot_unit import converge
from ansible_collections.instinct.fleet.plugins.module_utils.partition.gpu_files import GpuFiles
from ansible_collections.instinct.fleet.plugins.module_utils.partition.gpus import COMPUTE_MODES, MEMORY_MODES
from ansible_collections.instinct.fleet.plugins.module_utils.partition.record import record_of

RELOAD_SECONDS = 90


def argument_spec() -> dict[str, Any]:
    """Return the module's arguments, as DOCUMENTATION describes them."""
    return {
        "compute": {"type": "str", "choices": list(COMPUTE_MODES)},
        "memory": {"type": "str", "choices": list(MEMORY_MODES)},
        "program": {"type": "str", "default": ""},
        **LEASE_OPTION,
    }


def work(module: AnsibleModule, node: GpuFiles) -> dict[str, Any]:
    """Keep the modes over reboots. Return the module's result."""
    record = record_of(node.gpus(), module.params["compute"], module.params["memory"])
    return converge(
        node.path,
        record,
        module.check_mode,
        lambda command: run_checked(command, RELOAD_SECONDS),
        base64.b64decode(module.params["program"]),
    )


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, [], run_leased(module, lambda: work(module, GpuFiles())))


if __name__ == "__main__":
    main()
