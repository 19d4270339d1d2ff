#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of rollout_verdict; the work is done on the control node, by plugins/action/rollout_verdict.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_verdict
short_description: Decide how a rollout continues after a batch
version_added: "0.1.0"
description:
  - Runs on the control node, once for all hosts, after each batch. If an instance of the batch failed by itself, or
    the canary's verdict is bad, the batch is rolled back (if possible) and held there, and the rollout ends. If a host
    can no longer be reached, the rollout ends, and finished batches stay.
  - Any other failure, such as of Docker, a disk, the load balancers or a time-out, is not a verdict on the release.
    The hosts that failed go back (if possible), nothing is held, and the same command continues.
  - A measurement continues after a failure; the instances concerned return to service as soon as they are ready.
  - At the end, without O(batch), reports the rollout's result, and fails if the rollout ended early, or if a
    measurement failed somewhere.
options:
  rollout:
    description: The plan's rollout, with its operation and all batches.
    type: dict
    required: true
  batch:
    description: The batch that has just finished. Without it, the rollout is over.
    type: dict
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
attributes:
  check_mode:
    support: full
    details: Makes the same decision.
  diff_mode:
    support: N/A
    details: Nothing is changed.
author: instinct-fleet contributors (@instinct-fleet)
"""

EXAMPLES = r"""
- name: Judge the batch
  instinct.fleet.rollout_verdict:
    rollout: "{{ fleet_host_plan.rollout }}"
    batch: "{{ rollout_batch }}"
  run_once: true
  register: rollout_verdict_result
"""

RETURN = r"""
stop:
  description: Whether the rollout ends.
  type: bool
  returned: with O(batch)
back:
  description: Whether this batch must be rolled back to its earlier generation.
  type: bool
  returned: with O(batch)
turned:
  description: Whether the release was rolled back, and the deployment held.
  type: bool
  returned: with O(batch)
resumable:
  description: Whether the rollout ended because something around the release failed.
  type: bool
  returned: with O(batch)
hosts:
  description: Hosts on which RV(phases) follow.
  type: list
  elements: str
  returned: with O(batch)
missed:
  description: What failed in this batch and in earlier ones, after which a measurement continues.
  type: list
  elements: str
  returned: with O(batch)
lost:
  description: Load balancers that did not answer, with the reasons.
  type: dict
  returned: with O(batch)
phases:
  description: The phases of the batch that follow, by name.
  type: list
  elements: str
  returned: with O(batch)
hold_why:
  description: RV(why), shortened to the length that a hold keeps.
  type: str
  returned: with O(batch)
why:
  description: The reason for the decision.
  type: str
  returned: with O(batch)
batch:
  description: The number of the batch that was judged.
  type: int
  returned: with O(batch)
"""
