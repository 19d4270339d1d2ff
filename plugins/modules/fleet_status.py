#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of fleet_status; the work is done on the control node, by plugins/action/fleet_status.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_status
short_description: Show what runs in the fleet, in one table
version_added: "0.1.0"
description:
  - Judges the results of M(instinct.fleet.instance_status) on each host of the play, registered as
    C(instance_status_result), and prints a table by deployment. Failures come first, each with its first error and the
    next step; instances in the same state share a line.
  - Runs on the control node only, once for the whole fleet (C(run_once)), and connects to nothing. Unreachable hosts
    are listed too; a load balancer knows their instances.
  - Does not fail by itself; RV(verdict) names instances that do not serve.
options:
  detail:
    description: One line for every instance.
    type: bool
    default: false
  status_file:
    description: Write the status as JSON to this file on the control node, also in check mode.
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
  - module: instinct.fleet.instance_status
"""

EXAMPLES = r"""
- name: Read what runs
  instinct.fleet.instance_status:
  become: true
  register: instance_status_result

- name: Show the status
  instinct.fleet.fleet_status:
    detail: true
  run_once: true
  register: fleet_status_result
"""

RETURN = r"""
status:
  description: Deployments with their totals, instances, unreachable hosts, load balancers, problems.
  returned: success
  type: dict
verdict:
  description: The instances that do not serve, in one line; empty if all of them serve.
  returned: success
  type: str
  sample: "1 of 8 instances do not serve: llama-1 on mi300x-02 (gave up)."
text:
  description: The printed table.
  returned: success
  type: str
"""
