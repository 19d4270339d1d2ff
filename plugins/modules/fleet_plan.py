#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of fleet_plan; the work is done on the control node, by plugins/action/fleet_plan.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_plan
short_description: Plan what is missing on each node of the fleet
version_added: "0.1.0"
description:
  - Compares what the inventory wants (C(vllm_deployments) and the variables of the roles) with what
    M(instinct.fleet.node_state) found, and returns the ordered actions of each host, with reasons.
  - Runs on the control node only, once for the whole fleet. Use it with C(run_once) in a play on the group
    C(instinct), after a task that registers M(instinct.fleet.node_state) as C(node_state_result). A host without that
    result is left out and named in the plan.
  - The whole input is checked first. All problems are reported at once, each with its key, the file and line
    of the key, the hosts, and the fix.
  - Image references and model revisions that were never resolved are asked of their registry and hub, and
    pinned in a lock file. For what is going to be fetched by older pins, registry and hub are asked whether it
    may be had; when they cannot be reached from here, that is a warning. A run with nothing to fetch asks nobody.
  - What images answered on nodes when M(instinct.fleet.vllm_image) asked what is in them is kept in the lock file
    too. Of a host with an image of which nobody knows it, only what comes before the answer is planned, and it is put
    into the group C(fleet_partial), to be planned again.
options:
  hosts:
    description:
      - Hosts to plan. Default is the hosts of the play that are in the group C(instinct), else that group.
    type: list
    elements: str
  again:
    description:
      - The second plan of a run, made after images were asked - these hosts were observed anew, and only theirs
        is told, in RV(todo), RV(changes) and RV(text). The others are planned from what was seen of them before,
        as instances may span hosts. Ignores O(refresh).
    type: list
    elements: str
  offline:
    description:
      - Plan from the inventory alone, for hosts that were not looked at. They are taken to be bare, with the
        GPUs that C(instinct_gpus) declares. Nothing is asked of registries and hubs.
    type: bool
    default: false
  explain:
    description: Print every rendered setting of each deployment with its reason and source.
    type: bool
    default: false
  refresh:
    description: Resolve all image references and model revisions anew, and pin what they stand for now.
    type: bool
    default: false
  plan_file:
    description: Write the plan as JSON to this file on the control node, also in check mode.
    type: path
  lock_file:
    description:
      - The pins. Default is C(fleet.lock.json) in the inventory's directory. Not written in check mode.
    type: path
  operation:
    description:
      - What the run is going to do with what serves. V(deploy) replaces it at once. V(upgrade), V(rollback) and
        V(restart) go by batches, which are returned as RV(rollout) and told in the plan's text; V(stop) only stops.
    type: str
    choices: [deploy, upgrade, rollback, restart, stop]
    default: deploy
  deployment:
    description: For V(restart) and V(stop), only this deployment's instances.
    type: str
  instance:
    description: For V(restart) and V(stop), only the instance of this name, on all hosts of the run.
    type: str
  generation:
    description:
      - For V(rollback), the generation to go back to. Default is the newest one that is older than what runs.
    type: int
  why:
    description: For V(rollback), the operator's reason. The deployment is held with it, and the journal has it.
    type: str
  retry:
    description: Upgrade a held deployment to the definition that was turned back before.
    type: bool
    default: false
  canary:
    description: Compare the first unit of an upgrade with what it was.
    type: bool
    default: true
  canary_terms:
    description: How the canary is judged, checked here so that nothing is touched when it makes no sense.
    type: dict
    default: {}
    suboptions:
      canary_tolerance:
        description: Percent of output throughput that may be missing.
        type: float
        default: 10
      canary_latency_tolerance:
        description: Percent by which the medians of TTFT and TPOT may be longer.
        type: float
        default: 30
      canary_runs:
        description: Runs before and after.
        type: int
        default: 5
      canary_max_runs:
        description: Runs after, at most.
        type: int
        default: 15
  serial:
    description: Units that change at a time - a number, a percentage, or a list of these. Default is C([1, "20%"]).
    type: raw
  min_in:
    description: Engines of a deployment that stay in, a number or a percentage. Default is C(50%).
    type: raw
  soak:
    description: Seconds under watch after each batch.
    type: raw
    default: 30
  drain_timeout:
    description: Seconds that running requests get at most; for the text.
    type: int
    default: 300
extends_documentation_fragment:
  - instinct.fleet.attributes.control_node
attributes:
  check_mode:
    support: full
    details: Plans as it would otherwise; pins that are missing are resolved, and not kept.
  diff_mode:
    support: none
    details: The plan is what a run would change.
author: instinct-fleet contributors (@instinct-fleet)
seealso:
  - module: instinct.fleet.node_state
"""

EXAMPLES = r"""
- name: Observe the node
  instinct.fleet.node_state:
  become: true
  register: node_state_result

- name: Plan what is missing
  instinct.fleet.fleet_plan:
    plan_file: plan.json
  run_once: true
  register: fleet_plan_result
"""

RETURN = r"""
plan:
  description: The plan; its schema is C(catalog/schemas/plan.schema.json).
  returned: success
  type: dict
todo:
  description: Hosts with something to do, as M(ansible.builtin.add_host) wants them.
  returned: success
  type: list
  elements: dict
  sample: [{name: n1, groups: [todo_host_prep, todo_vllm_serve], plan: {}}]
rollout:
  description: The operation, its batches in order, and the seconds under watch after each; null for V(deploy).
  returned: success
  type: dict
partial:
  description: Images that have to be asked what is in them before all can be planned.
  returned: success
  type: list
  elements: str
  sample: [registry.example/vllm:nightly]
changes:
  description: Number of actions on all hosts.
  returned: success
  type: int
  sample: 12
text:
  description: The plan for people, as printed.
  returned: success
  type: str
"""
