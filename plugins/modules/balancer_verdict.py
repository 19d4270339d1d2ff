#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of balancer_verdict; the work is done on the control node, by plugins/action/balancer_verdict.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: balancer_verdict
short_description: Decide whether enough load balancers applied a change
version_added: "0.1.0"
description:
  - Runs on the control node after M(instinct.fleet.balancer_server) was called for every load balancer. One that
    answers is enough for a run to continue; the others are named in a warning. Fails if none answers, or if one
    refuses.
  - If an operator drains or returns instances, all load balancers must answer, so it then fails if one does not.
options:
  results:
    description: The results of M(instinct.fleet.balancer_server), called in a loop over load balancers.
    type: list
    elements: dict
    required: true
  by:
    description: Who requests the change.
    type: str
    choices: [operator, run]
    default: run
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
attributes:
  check_mode:
    support: full
    details: Fails only if none answers, as nothing is set.
  diff_mode:
    support: N/A
    details: Nothing is changed.
author: instinct-fleet contributors (@instinct-fleet)
"""

EXAMPLES = r"""
- name: Check that a load balancer answered
  instinct.fleet.balancer_verdict:
    results: "{{ drained.results }}"
"""

RETURN = r"""
lost:
  description: The load balancers that did not answer, each with the reason.
  type: dict
  returned: always
  sample: {lb-01: "Failed to connect to the host via ssh: No route to host"}
class:
  description: V(balancer) if none answers, as the instances are then not the cause; else that of the refusal.
  type: str
  returned: failure
"""
