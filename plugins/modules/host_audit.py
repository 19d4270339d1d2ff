#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of host_audit; the work is done on the control node, by plugins/action/host_audit.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_audit
short_description: Judge the fleet's hosts by AMD's requirements
version_added: "0.1.0"
description:
  - Compares the results of M(instinct.fleet.host_facts) on each host, registered as C(host_facts_result), with the
    items of C(catalog/host_items.yml), and prints a table with hosts in the same state together, the worst first.
  - Runs on the control node only, once for the whole fleet (C(run_once)), and connects to nothing.
  - Does not fail by itself; RV(failing) names the hosts on which a required item is wrong.
options:
  hosts:
    description: Hosts to judge. Default is the hosts of the play in the group C(instinct), else that group.
    type: list
    elements: str
  explain:
    description: Print every item with its reason and source, and the BIOS settings that Linux does not show.
    type: bool
    default: false
  audit_file:
    description: Write the audit as JSON to this file on the control node, also in check mode.
    type: path
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
attributes:
  check_mode:
    support: full
    details: Nothing is ever changed.
  diff_mode:
    support: N/A
    details: Nothing is ever changed.
author: instinct-fleet contributors (@instinct-fleet)
seealso:
  - module: instinct.fleet.host_facts
"""

EXAMPLES = r"""
- name: Read the host
  instinct.fleet.host_facts:
  become: true
  register: host_facts_result

- name: Judge
  instinct.fleet.host_audit:
    audit_file: audit.json
  run_once: true
  register: host_audit_result
"""

RETURN = r"""
hosts:
  description: Result, findings and the actions of prepare.yml, by host.
  returned: success
  type: dict
failing:
  description: Hosts on which a required item is wrong.
  returned: success
  type: list
  elements: str
  sample: [n3]
verdict:
  description: RV(failing) in one line, with the wrong items; empty if there are none.
  returned: success
  type: str
  sample: "Wrong on n3: iommu-pt."
waiting:
  description: Items that need a reboot, by host.
  returned: success
  type: dict
  sample: {n3: [iommu-pt]}
todo:
  description: Hosts on which prepare.yml has actions, in the form that M(ansible.builtin.add_host) needs.
  returned: success
  type: list
  elements: dict
spanning:
  description:
    - Instances of deployments that span several hosts, one of which needs a reboot, by host, for
      M(instinct.fleet.vllm_server).
  returned: success
  type: dict
text:
  description: The printed audit.
  returned: success
  type: str
"""
