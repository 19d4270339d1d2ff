#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: read a host for its audit."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_facts
short_description: Read the facts for the audit of an AMD Instinct host
version_added: "0.1.0"
description:
  - Reads in one call the facts of M(instinct.fleet.node_state), and in addition the kernel command line of this boot
    and the next, sysctls with the file that sets each at boot, CPU governors and idle states, huge pages, limits, PCI
    links, Access Control Services, RDMA ports, the state of the clock, and amdgpu's messages in the kernel log.
  - Changes nothing, and leaves the judgement to M(instinct.fleet.host_audit). Runs C(dmesg) and no other program.
  - A source that cannot be read gives null, and an entry in RV(host_facts.problems).
options:
  cache_dirs:
    description: Hugging Face caches (C(HF_HOME)) whose disks are checked, as in M(instinct.fleet.node_state).
    type: list
    elements: path
extends_documentation_fragment:
  - instinct.fleet.attributes.read_only
requirements:
  - Python 3.9 on the node
  - root, to see PCI configuration space and the kernel log
seealso:
  - module: instinct.fleet.node_state
  - module: instinct.fleet.host_audit
author: instinct-fleet contributors (@instinct-fleet)
"""

EXAMPLES = r"""
- name: Read the host
  instinct.fleet.host_facts:
  become: true
  register: host_facts_result
"""

RETURN = r"""
node_state:
  description: The result of M(instinct.fleet.node_state).
  returned: success
  type: dict
host_facts:
  description: The additional facts for the audit. Sizes are bytes.
  returned: success
  type: dict
  contains:
    cmdline: {description: Words of the kernel command line now and at the next boot by C(file)., type: dict}
    sysctls: {description: "Value now and at boot with the file and line that set it, by key.", type: dict}
    cpu: {description: "Vendor, CPUs by governor, idle states with the CPUs that may enter them, SMT.", type: dict}
    huge_pages: {description: The mode of transparent huge pages., type: str, sample: madvise}
    boot_settings: {description: What C(tmpfiles.d) writes below C(/sys) at boot., type: dict}
    tuned: {description: Profile of the tuned daemon; null if it does not run., type: str}
    limits: {description: File and value of the limits that hold for all users., type: dict}
    docker_stop: {description: File and value of docker.service's C(TimeoutStopSec); null without the unit., type: dict}
    shm_bytes: {description: Size of C(/dev/shm)., type: int}
    pci_gpus: {description: AMD's accelerators on the PCI bus., type: list, elements: dict}
    acs: {description: "Bridges with Access Control Services, and those that have them enabled.", type: dict}
    iommus: {description: How many IOMMUs the kernel found., type: int}
    nics: {description: Ports of RDMA NICs., type: list, elements: dict}
    clock_synchronized: {description: Whether the clock is synchronised; null if unknown., type: bool}
    time_service: {description: The process that keeps the time; null if none of the known ones runs., type: str}
    time: {description: The host's clock in seconds since 1970., type: float}
    clock_ahead: {description: How many seconds it is ahead of the control node's clock or more., type: float}
    kernel_log: {description: Lines in which amdgpu reports trouble., type: dict}
    problems: {description: Sources that could not be read., type: list, elements: dict}
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import finish
from ansible_collections.instinct.fleet.plugins.module_utils.common.processes import Program, run_program
from ansible_collections.instinct.fleet.plugins.module_utils.observe.audit_facts import read_host
from ansible_collections.instinct.fleet.plugins.module_utils.observe.node_state import DEFAULTS, node_state
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source

ROOT = "/"
COMMAND_SECONDS = 30


def argument_spec() -> dict[str, Any]:
    """Return the module's arguments, as DOCUMENTATION describes them."""
    return {"cache_dirs": {"type": "list", "elements": "path"}}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Read both parts. Return the module's result."""

    def run(command: list[str]) -> str:
        done = run_program(Program(command, {**os.environ, "LC_ALL": "C"}), COMMAND_SECONDS)
        if done.code:
            raise OSError(done.err.strip() or f"{command[0]} ended with exit code {done.code}")
        if done.code is None:
            raise OSError(f"{command[0]} did not finish within {COMMAND_SECONDS} s, and was killed")
        return done.out

    source = Source(ROOT)
    facts = read_host(source, run)
    facts["problems"] = source.problems
    args = {**DEFAULTS, "sysfs_root": ROOT, "cache_dirs": module.params["cache_dirs"]}
    return {"changed": False, "host_facts": facts, "node_state": node_state(args)}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    finish(module, [], lambda: work(module))


if __name__ == "__main__":
    main()
